//! Token plus learned position embedding.

use runner::ops::{DType, Embedding, EmbeddingBackward, Op};

use super::harness::Devices;
use super::numbers::Data;

/// Batch, sequence, channels, vocabulary: odd channels, a large table, more tokens than a block looks through at once.
const SHAPES: [[usize; 4]; 6] = [
    [1, 1, 1, 1],
    [3, 37, 40, 257],
    [2, 20, 130, 11],
    [2, 300, 384, 900],
    [2, 64, 8, 20_000],
    [17, 1000, 4, 50],
];

#[test]
fn embedding_and_its_gradient() {
    let mut devices = Devices::new();
    for [batch, sequence, channels, vocabulary] in SHAPES {
        let numbers = |dims: &[usize], seed| Data::random(DType::F32, dims, 1.0, seed);
        let (table, positions) = (numbers(&[vocabulary, channels], 1), numbers(&[sequence, channels], 2));
        let dx = numbers(&[batch, sequence, channels], 3);
        // Some tokens often, most of them seldom or never; all of them the last.
        let texts: [&dyn Fn(usize) -> usize; 2] =
            [&|i| if i % 3 == 0 { vocabulary / 2 } else { (i * i * 7 + i * 3) % vocabulary }, &|_| {
                vocabulary - 1
            }];
        for text in texts {
            let tokens = Data::tokens(&[batch, sequence], text);
            let op = Op::Embedding(Embedding);
            devices.check(&op, &op, &[tokens.clone(), table.clone(), positions.clone()]);
            for flags in 0..4 {
                let (accumulate_table, accumulate_positions) = (flags & 1 > 0, flags & 2 > 0);
                let mut inputs = vec![tokens.clone(), dx.clone()];
                inputs.extend(accumulate_table.then(|| table.clone()));
                inputs.extend(accumulate_positions.then(|| positions.clone()));
                let op = EmbeddingBackward { vocabulary, accumulate_table, accumulate_positions };
                let op = Op::EmbeddingBackward(op);
                devices.check(&op, &op, &inputs);
            }
        }
    }
}
