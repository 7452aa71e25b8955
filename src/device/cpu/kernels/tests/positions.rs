//! Learned positions.

use ops::{AddPositions, Op, PositionsGradient};

use super::harness::{Data, FLOATS, added, cases, check_variants};

/// Samples and their elements: one of each, fewer than a buffer, more than one task.
const CASES: [(usize, [usize; 2]); 4] = [(1, [1, 1]), (3, [5, 7]), (2, [3, 400]), (17, [2, 1030])];

#[test]
fn positions_and_their_gradient_match_the_reference() {
    for ([case, dtype, gradients, accumulate], variants) in
        cases(3, [CASES.len(), FLOATS.len(), FLOATS.len(), 2])
    {
        let (samples, [length, channels]) = CASES[case];
        let (dtype, gradients) = (FLOATS[dtype], FLOATS[gradients]);
        let elements = length * channels;
        let x = Data::random(&[samples, length, channels], 1).stored_as(dtype);
        let table = Data::random(&[length, channels], 2).stored_as(dtype);
        let repeated: Vec<f64> = table.to_f64().repeat(samples);
        let y = added(&x.to_f64(), &repeated);
        check_variants(variants, Op::AddPositions(AddPositions), &[x, table], &[y]);

        let dy = Data::random(&[samples, length, channels], 3).stored_as(dtype);
        let mut dtable = vec![0.0; elements];
        for of_sample in dy.to_f64().chunks(elements) {
            dtable = added(&dtable, of_sample);
        }
        let mut inputs = vec![dy];
        let accumulate = accumulate > 0;
        if accumulate {
            let previous = Data::random(&[length, channels], 4).stored_as(gradients);
            dtable = added(&dtable, &previous.to_f64());
            inputs.push(previous);
        }
        let op = PositionsGradient { gradients, accumulate };
        check_variants(variants, Op::PositionsGradient(op), &inputs, &[dtable]);
    }
}
