//! Token embedding.

use ops::{Embedding, EmbeddingBackward, Op, TensorType};

use super::harness::{Data, added, check, pairs};

#[test]
fn embedding_matches_the_reference() {
    const SCALE: f32 = 2.5;
    for [batch, sequence, channels, vocabulary] in [[1, 1, 1, 1], [3, 37, 40, 257], [2, 20, 130, 11]] {
        let tokens = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(_, numbers) = &tokens else { unreachable!("tokens are whole numbers") };
        let (table, positions) =
            (Data::random(&[vocabulary, channels], 1), Data::random(&[sequence, channels], 2));
        let dx = Data::random(&[batch, sequence, channels], 3);
        // Of as many tokens each, and of a different number in each sequence.
        let start = |row: usize| row % sequence / (5 + row / sequence) * (5 + row / sequence);
        let starts = (0..batch * sequence).map(|row| start(row) as i32);
        let starts = Data::I32(TensorType::i32(&[batch, sequence]), starts.collect());
        for ((stored, output), documents) in pairs().flat_map(|pair| [(pair, false), (pair, true)]) {
            let start = |row: usize| if documents { start(row) } else { 0 };
            let inputs = [table.clone(), positions.clone()].map(|table| table.stored_as(stored));
            let [rows, sums] = {
                let [table, positions] = inputs.each_ref().map(Data::to_f64);
                let places = numbers.iter().enumerate().flat_map(|(row, &token)| {
                    let at = [token as usize * channels, (row % sequence - start(row)) * channels];
                    (0..channels).map(move |c| (at[0] + c, at[1] + c))
                });
                let both = places.map(|(a, b)| (f64::from(SCALE) * table[a], positions[b]));
                let both = both.map(|(row, position)| (row, row + position));
                <[Vec<f64>; 2]>::from(both.unzip())
            };
            let [table, positions] = inputs;
            let op = |positions| {
                let documents = documents && positions;
                Op::Embedding(Embedding { scale: SCALE, positions, documents, output })
            };
            check(op(false), &[tokens.clone(), table.clone()], &[rows]);
            let inputs =
                [tokens.clone(), table, positions].into_iter().chain(documents.then(|| starts.clone()));
            check(op(true), &inputs.collect::<Vec<_>>(), &[sums]);
        }
        // Whether there are positions, and what is accumulated.
        let flags =
            [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2), (true, 3), (true, 4), (true, 7)];
        let all = flags.into_iter().flat_map(|flags| pairs().map(move |pair| (flags, pair)));
        for ((has_positions, flags), (of_dx, of_gradients)) in all {
            let (accumulated, documents) = ([flags & 1 > 0, flags & 2 > 0], flags & 4 > 0);
            let start = |row: usize| if documents { start(row) } else { 0 };
            let dx = dx.clone().stored_as(of_dx);
            let so_far = [&table, &positions].map(|table| table.clone().stored_as(of_gradients));
            let mut inputs = vec![tokens.clone(), dx.clone()];
            inputs.extend(documents.then(|| starts.clone()));
            let mut expected = [vec![0.0; vocabulary * channels], vec![0.0; sequence * channels]];
            for (row, &token) in numbers.iter().enumerate() {
                for c in 0..channels {
                    let places =
                        [token as usize * channels + c, (row % sequence - start(row)) * channels + c];
                    let dx = dx.to_f64()[row * channels + c];
                    expected[0][places[0]] += dx * f64::from(SCALE);
                    expected[1][places[1]] += dx;
                }
            }
            for (index, so_far) in so_far.iter().enumerate() {
                if accumulated[index] {
                    inputs.push(so_far.clone());
                    expected[index] = added(&expected[index], &so_far.to_f64());
                }
            }
            let [accumulate_table, accumulate_positions] = accumulated;
            let op = EmbeddingBackward {
                vocabulary,
                scale: SCALE,
                gradients: of_gradients,
                positions: has_positions,
                documents,
                accumulate_table,
                accumulate_positions,
            };
            check(Op::EmbeddingBackward(op), &inputs, &expected[..1 + usize::from(has_positions)]);
        }
    }
}
