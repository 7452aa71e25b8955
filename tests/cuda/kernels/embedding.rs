//! Token embedding with optional learned positions.

use ops::{DType, Embedding, EmbeddingBackward, Op};

use super::harness::Devices;
use super::numbers::Data;

/// Batch, sequence, channels, vocabulary: odd channels, row indices of one to three radix-sort digits, and more tokens
/// than the sorting block has threads.
const SHAPES: [[usize; 4]; 7] = [
    [1, 1, 1, 1],
    [3, 37, 40, 257],
    [2, 20, 130, 11],
    [2, 150, 384, 300],
    [2, 64, 8, 2000],
    [17, 1000, 4, 50],
    [3, 100, 1, 70_000],
];

use DType::{BF16, F16, F32};

/// Types of tables and of x.
const TYPES: [(DType, DType); 9] = [
    (F32, F32),
    (F32, BF16),
    (F32, F16),
    (BF16, F32),
    (BF16, BF16),
    (BF16, F16),
    (F16, F32),
    (F16, BF16),
    (F16, F16),
];

/// Types of the tables' gradients and of dx.
const GRADIENTS: [(DType, DType); 7] =
    [(F32, F32), (BF16, F32), (F32, BF16), (BF16, BF16), (F16, F32), (F32, F16), (F16, F16)];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn embedding_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for (shape, [batch, sequence, channels, vocabulary]) in SHAPES.into_iter().enumerate() {
        let numbers = |dims: &[usize], seed| Data::random(DType::F32, dims, 1.0, seed);
        // For some shapes, the position table has more rows than the sequence has tokens.
        let rows = sequence + shape % 2 * 19;
        let (table, positions) = (numbers(&[vocabulary, channels], 1), numbers(&[rows, channels], 2));
        let dx = numbers(&[batch, sequence, channels], 3);
        // Some tokens often, most of them rarely or never; and the last token only.
        let texts: [&dyn Fn(usize) -> usize; 2] =
            [&|i| if i % 3 == 0 { vocabulary / 2 } else { (i * i * 7 + i * 3) % vocabulary }, &|_| {
                vocabulary - 1
            }];
        for (number, text) in texts.into_iter().enumerate() {
            let tokens = Data::tokens(&[batch, sequence], text);
            // Starts of short documents, with different lengths in each sequence.
            let starts =
                Data::tokens(&[batch, sequence], |i| i % sequence / (5 + i / sequence) * (5 + i / sequence));
            for (stored, output) in TYPES {
                let tables = [&table, &positions].map(|table| table.stored_as(stored));
                for (positions, documents) in [(false, false), (true, false), (true, true)] {
                    let op = |output| Op::Embedding(Embedding { scale: 2.5, positions, documents, output });
                    let tables = &tables[..1 + usize::from(positions)];
                    let mut inputs = [std::slice::from_ref(&tokens), tables].concat();
                    inputs.extend(documents.then(|| starts.clone()));
                    devices.check(&op(output), &op(DType::F32), &inputs);
                }
            }
            // Whether there are positions; bits: accumulate table, accumulate positions, documents.
            let flags =
                [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2), (true, 3), (true, 4), (true, 7)];
            // Each text uses all flags and all types, and each flag all types, but not all combinations: each flag uses
            // two types per text, shifted by one for the next text.
            let all = flags.into_iter().enumerate().flat_map(|(flag, flags)| {
                let first = flag + 2 * shape + number;
                [first, first + 3].map(|types| (flags, GRADIENTS[types % GRADIENTS.len()]))
            });
            for ((has_positions, flags), (gradients, dx_dtype)) in all {
                let (accumulate_table, accumulate_positions) = (flags & 1 > 0, flags & 2 > 0);
                let documents = flags & 4 > 0;
                // Each position scans all rows, which takes minutes on the emulated card.
                if documents && batch * sequence > 1000 && devices.are_emulated() {
                    continue;
                }
                let mut inputs = vec![tokens.clone(), dx.stored_as(dx_dtype)];
                inputs.extend(documents.then(|| starts.clone()));
                inputs.extend(accumulate_table.then(|| table.stored_as(gradients)));
                inputs.extend(accumulate_positions.then(|| positions.stored_as(gradients)));
                let op = |gradients| {
                    Op::EmbeddingBackward(EmbeddingBackward {
                        vocabulary,
                        scale: 2.5,
                        gradients,
                        positions: has_positions.then_some(rows),
                        documents,
                        accumulate_table,
                        accumulate_positions,
                    })
                };
                devices.check(&op(gradients), &op(DType::F32), &inputs);
            }
        }
    }
}

/// Small integers, whose sums are exact in any order: omitted or repeated tokens are detected.
fn whole_numbers(dims: &[usize]) -> Data {
    Data::random(DType::F32, dims, 8.0, 1).map(f32::round)
}

fn table_gradient(vocabulary: usize, accumulate_table: bool) -> Op {
    let gradients = DType::F32;
    Op::EmbeddingBackward(EmbeddingBackward {
        vocabulary,
        scale: 1.0,
        gradients,
        positions: None,
        documents: false,
        accumulate_table,
        accumulate_positions: false,
    })
}

/// Runs of equal tokens that end within a partial sum of 32 tokens, at its end, and after many of them; tokens that
/// differ in one digit only.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn every_token_is_added_once() {
    let mut devices = Devices::new();
    let mut check =
        |number: usize, vocabulary: usize, text: &dyn Fn(usize) -> usize, [tokens, channels]: [usize; 2]| {
            let inputs = [Data::tokens(&[1, tokens], text), whole_numbers(&[1, tokens, channels])];
            let found = devices.cuda(&table_gradient(vocabulary, false), &inputs);
            let expected = devices.expected(&table_gradient(vocabulary, false), &inputs);
            let same = found[0].numbers == expected[0].numbers;
            assert!(same, "text {number}, {}: different sums", inputs[1].ty);
        };
    let texts: [&dyn Fn(usize) -> usize; 7] = [
        &|i| i / 32,
        &|i: usize| i.div_ceil(32),
        &|i| i % 3,
        &|i| if i < 700 { 7 } else { i % 100 },
        &|i| (i * 7919) % 1500 / 33,
        &|_| 299,
        &|i| i % 2 * 256 + i % 3,
    ];
    for (number, text) in texts.iter().enumerate() {
        for shape in [[1, 3], [31, 4], [32, 4], [33, 7], [64, 4], [1500, 260]] {
            check(number, 300, text, shape);
        }
    }
    check(texts.len(), 66_000, &|i| i % 2 * 65_536 + i % 3, [100, 4]);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn tokens_outside_the_table_are_ignored() {
    let mut devices = Devices::new();
    let (vocabulary, channels) = (40, 8);
    let inside = |i: usize| if i.is_multiple_of(3) { vocabulary } else { i * i % vocabulary };
    let dx = whole_numbers(&[2, 150, channels]);
    let wild = [-1.0, vocabulary as f32, i32::MIN as f32, 2_000_000_000.0];
    let mut tokens = Data::tokens(&[2, 150], inside);
    for (i, token) in tokens.numbers.iter_mut().enumerate() {
        if *token == vocabulary as f32 {
            *token = wild[i % wild.len()];
        }
    }
    let found = devices.cuda(&table_gradient(vocabulary, false), &[tokens, dx.clone()]);
    // In a table with one more row, they all map to that row.
    let inputs = [Data::tokens(&[2, 150], inside), dx];
    let expected = devices.expected(&table_gradient(vocabulary + 1, false), &inputs);
    assert!(found[0].numbers == expected[0].numbers[..vocabulary * channels], "different sums");
}

/// A gradient added to zeros equals the stored gradient.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn gradient_added_to_zeros_equals_the_stored_one() {
    let mut devices = Devices::new();
    let (vocabulary, channels) = (50, 36);
    let tokens = Data::tokens(&[4, 300], |i| i * i % 7 * (i % 5));
    let mut inputs = vec![tokens, Data::random(DType::F32, &[4, 300, channels], 1.0, 1)];
    let stored = devices.cuda(&table_gradient(vocabulary, false), &inputs);
    inputs.push(Data::new(DType::F32, &[vocabulary, channels], vec![0.0; vocabulary * channels]));
    let added = devices.cuda(&table_gradient(vocabulary, true), &inputs);
    assert!(stored[0].bits() == added[0].bits(), "different bits");
}
