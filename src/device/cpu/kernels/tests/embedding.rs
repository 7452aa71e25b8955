//! Token embedding.

use ops::{DType, Embedding, EmbeddingBackward, Op, TensorType};

use super::harness::{Data, added, cases, check_variants, float_pairs};

const SCALE: f32 = 2.5;

/// Batch, sequence, channels, vocabulary.
const SHAPES: [[usize; 4]; 3] = [[1, 1, 1, 1], [3, 37, 40, 257], [2, 20, 130, 11]];

/// A batch of tokens and documents.
struct TokenRows {
    sequence: usize,
    /// Rows of the position table: for some shapes more than the sequence has tokens.
    positions: usize,
    channels: usize,
    vocabulary: usize,
    tokens: Data,
    numbers: Vec<i32>,
    /// The first position of each row's document. All documents of a sequence have the same length, which differs
    /// between sequences.
    starts: Vec<i32>,
    batch: usize,
}

impl TokenRows {
    fn new([batch, sequence, channels, vocabulary]: [usize; 4]) -> TokenRows {
        let tokens = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(_, numbers) = &tokens else { unreachable!("tokens are i32") };
        let start = |row: usize| row % sequence / (5 + row / sequence) * (5 + row / sequence);
        let starts = (0..batch * sequence).map(|row| start(row) as i32).collect();
        let positions = sequence + batch % 2 * 7;
        TokenRows {
            sequence,
            positions,
            channels,
            vocabulary,
            numbers: numbers.clone(),
            tokens,
            starts,
            batch,
        }
    }

    fn starts(&self) -> Data {
        Data::I32(TensorType::i32(&[self.batch, self.sequence]), self.starts.clone())
    }

    /// The offsets of a row's token and position in their tables.
    fn table_offsets(&self, row: usize, documents: bool) -> [usize; 2] {
        let start = if documents { self.starts[row] as usize } else { 0 };
        [self.numbers[row] as usize * self.channels, (row % self.sequence - start) * self.channels]
    }
}

#[test]
fn embedding_matches_the_reference() {
    let pairs: Vec<(DType, DType)> = float_pairs().collect();
    // Without positions, with positions in the sample, with positions in the document.
    let kinds = [(false, false), (true, false), (true, true)];
    for ([shape, pair, kind], variants) in cases(3, [SHAPES.len(), pairs.len(), kinds.len()]) {
        let (rows, (stored, output)) = (TokenRows::new(SHAPES[shape]), pairs[pair]);
        let (has_positions, documents) = kinds[kind];
        let dims = [[rows.vocabulary, rows.channels], [rows.positions, rows.channels]];
        let tables = [0, 1].map(|table| Data::random(&dims[table], 1 + table as u64).stored_as(stored));
        let [table, positions] = tables.each_ref().map(Data::to_f64);
        let embed_row = |row: usize| {
            let [token, position] = rows.table_offsets(row, documents);
            let position = |c: usize| if has_positions { positions[position + c] } else { 0.0 };
            (0..rows.channels).map(move |c| (token + c, position(c))).collect::<Vec<_>>()
        };
        let expected = (0..rows.numbers.len()).flat_map(embed_row);
        let expected = expected.map(|(index, position)| f64::from(SCALE) * table[index] + position).collect();
        let [table, positions] = tables;
        let mut inputs = vec![rows.tokens.clone(), table];
        inputs.extend(has_positions.then_some(positions));
        inputs.extend(documents.then(|| rows.starts()));
        let op = Embedding { scale: SCALE, positions: has_positions, documents, output };
        check_variants(variants, Op::Embedding(op), &inputs, &[expected]);
    }
}

#[test]
fn embedding_gradients_match_the_reference() {
    let pairs: Vec<(DType, DType)> = float_pairs().collect();
    // Whether there are positions; bits: accumulate the table (1), accumulate positions (2), documents (4).
    let flags = [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2), (true, 3), (true, 4), (true, 7)];
    for ([shape, pair, flag], variants) in cases(3, [SHAPES.len(), pairs.len(), flags.len()]) {
        let (rows, (dx_type, gradients)) = (TokenRows::new(SHAPES[shape]), pairs[pair]);
        let (has_positions, flags) = flags[flag];
        let (accumulated, documents) = ([flags & 1 > 0, flags & 2 > 0], flags & 4 > 0);
        let TokenRows { batch, sequence, positions, channels, vocabulary, .. } = rows;
        let dx = Data::random(&[batch, sequence, channels], 3).stored_as(dx_type);
        let dx64 = dx.to_f64();
        let mut inputs = vec![rows.tokens.clone(), dx];
        inputs.extend(documents.then(|| rows.starts()));
        let mut expected = [vec![0.0; vocabulary * channels], vec![0.0; positions * channels]];
        for row in 0..rows.numbers.len() {
            let [token, position] = rows.table_offsets(row, documents);
            for c in 0..channels {
                let gradient = dx64[row * channels + c];
                expected[0][token + c] += gradient * f64::from(SCALE);
                expected[1][position + c] += gradient;
            }
        }
        let previous = [Data::random(&[vocabulary, channels], 1), Data::random(&[positions, channels], 2)];
        for (index, previous) in previous.into_iter().enumerate().filter(|(index, _)| accumulated[*index]) {
            let previous = previous.stored_as(gradients);
            expected[index] = added(&expected[index], &previous.to_f64());
            inputs.push(previous);
        }
        let op = EmbeddingBackward {
            vocabulary,
            scale: SCALE,
            gradients,
            positions: has_positions.then_some(positions),
            documents,
            accumulate_table: accumulated[0],
            accumulate_positions: accumulated[1],
        };
        check_variants(
            variants,
            Op::EmbeddingBackward(op),
            &inputs,
            &expected[..1 + usize::from(has_positions)],
        );
    }
}
