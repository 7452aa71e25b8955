//! Causal self-attention.

use runner::ops::{
    Attending, Attention, AttentionBackward, DType, MaterializedAttention, MaterializedAttentionBackward, Op,
};

use super::harness::{Devices, TOLERANCE, of_tensor_cores};
use super::numbers::{Data, NUMBERS};

/// B, T, H and D: every padded head dimension, heads whose rows have whole vectors and others, sequences of less than a
/// tile, of whole tiles and of more.
const SHAPES: [[usize; 4]; 10] = [
    [2, 17, 1, 16],
    [1, 64, 2, 20],
    [2, 65, 3, 32],
    [1, 1, 2, 64],
    [2, 130, 2, 64],
    [1, 300, 1, 64],
    [1, 200, 1, 80],
    [1, 130, 2, 128],
    [1, 70, 2, 250],
    [1, 90, 1, 256],
];

/// What out, and gradients, may be off by, relative to their norm. Of 16-bit types, weights and their gradients are
/// rounded before they are multiplied again, and results once more.
fn tolerances(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::F32 | DType::I32 | DType::U8 | DType::U4 => [4e-6, 4e-6],
        DType::BF16 => [3e-3, 5e-3],
        DType::F16 => [4e-4, 7e-4],
    }
}

/// Asserts that numbers differ little, relative to their norm or the `least` it counts for.
fn assert_near(found: &[f32], expected: &[f32], tolerance: f64, least: f64, what: &str) {
    let norm =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().map(|&number| f64::from(number)));
    let error = norm(&mut found.iter().zip(expected).map(|(&f, &e)| f64::from(f) - f64::from(e)));
    let error = error / size.max(least);
    // So that not-a-number is wrong too.
    let right = error < tolerance;
    assert!(right, "{what} is off by {error:e}");
}

/// Sizes and a type of numbers.
struct Case {
    shape: [usize; 4],
    dtype: DType,
}

fn cases() -> impl Iterator<Item = Case> {
    SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|dtype| Case { shape, dtype }))
}

impl Case {
    /// qkv and dout.
    fn operands(&self) -> [Data; 2] {
        let [batch, sequence, heads, head] = self.shape;
        [(3 * heads * head, 1), (heads * head, 2)]
            .map(|(channels, seed)| Data::random(self.dtype, &[batch, sequence, channels], 1.0, seed))
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let [batch, sequence, heads, head] = self.shape;
        write!(f, "{} B{batch} T{sequence} H{heads} D{head}", self.dtype)
    }
}

/// Asserts that each part of a dqkv is near. Returns what gradients that may vanish count for at least.
fn assert_gradients_near(found: &Data, expected: &Data, tolerance: f64, what: &Case) -> f64 {
    // A single position has no gradient but its value's.
    let least = expected.numbers.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>().sqrt() / 100.0;
    for (index, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
        let [found, expected] = [found, expected].map(|dqkv| part(dqkv, index));
        assert_near(&found, &expected, tolerance, least, &format!("{what}: {name}"));
    }
    least
}

/// Queries, keys or values of all rows of a qkv.
fn part(qkv: &Data, part: usize) -> Vec<f32> {
    let channels = qkv.ty.shape.last() / 3;
    let rows = qkv.numbers.chunks_exact(3 * channels);
    rows.flat_map(|row| &row[part * channels..(part + 1) * channels]).copied().collect()
}

#[test]
fn attention_and_its_gradient() {
    let mut devices = Devices::new();
    for case in cases() {
        let [.., heads, head] = case.shape;
        let [out_tolerance, gradient_tolerance] = tolerances(case.dtype);
        let [qkv, dout] = case.operands();

        let attending = Attending::causal(heads);
        let op = Op::Attention(Attention { attending });
        let found = devices.cuda(&op, std::slice::from_ref(&qkv));
        let expected = devices.expected(&op, std::slice::from_ref(&qkv));
        assert_near(&found[0].numbers, &expected[0].numbers, out_tolerance, 0.0, &format!("{case}: out"));
        let tensor_cores = if case.dtype == DType::F32 { 0.0 } else { of_tensor_cores(head) };
        let lse_tolerance = TOLERANCE + tensor_cores;
        assert_near(&found[1].numbers, &expected[1].numbers, lse_tolerance, 0.0, &format!("{case}: lse"));

        let op = Op::AttentionBackward(AttentionBackward { attending });
        let inputs = [dout, qkv, found[0].clone(), found[1].clone()];
        let found = devices.cuda(&op, &inputs);
        let expected = devices.expected(&op, &inputs);
        assert_gradients_near(&found[0], &expected[0], gradient_tolerance, &case);
    }
}

/// Scores, probabilities and their gradients are stored, and computed with, as operands are.
#[test]
fn materialized_attention_and_its_gradient() {
    let mut devices = Devices::new();
    for case in cases() {
        let [.., heads, _] = case.shape;
        let [tolerance, gradient_tolerance] = tolerances(case.dtype);
        let [qkv, dout] = case.operands();

        let attending = Attending::causal(heads);
        let op = Op::MaterializedAttention(MaterializedAttention { attending });
        let found = devices.cuda(&op, std::slice::from_ref(&qkv));
        let expected = devices.expected(&op, std::slice::from_ref(&qkv));
        for ((name, found), expected) in ["out", "probabilities", "scores"].iter().zip(&found).zip(&expected)
        {
            assert_near(&found.numbers, &expected.numbers, tolerance, 0.0, &format!("{case}: {name}"));
        }

        let op = Op::MaterializedAttentionBackward(MaterializedAttentionBackward { attending });
        let inputs = [dout, qkv, found[1].clone()];
        let found = devices.cuda(&op, &inputs);
        let expected = devices.expected(&op, &inputs);
        let least = assert_gradients_near(&found[0], &expected[0], gradient_tolerance, &case);
        for (index, name) in [(1, "dprobabilities"), (2, "dscores")] {
            let [found, expected] = [&found, &expected].map(|outputs| &outputs[index].numbers);
            assert_near(found, expected, gradient_tolerance, least, &format!("{case}: {name}"));
        }
    }
}

/// Scores are whole numbers of up to 256, which is what those of the last two keys are, the largest of every row: beyond what
/// f32 has a power of e for, and far above those of the keys that most queries see.
#[test]
fn steep_scores_are_softened_right() {
    let (sequence, channels) = (70, 32);
    let attending = Attending::causal(2);
    let mut qkv = Data::random(DType::F32, &[1, sequence, 3 * channels], 8.0, 1).map(f32::round);
    for (index, number) in qkv.numbers.iter_mut().enumerate() {
        let (position, part) = (index / (3 * channels), index / channels % 3);
        if part == 0 || (part == 1 && position + 2 >= sequence) {
            *number = [8.0, -8.0][index % 2];
        }
    }
    let mut devices = Devices::new();
    let [tolerance, _] = tolerances(DType::F32);
    let operations = [
        Op::Attention(Attention { attending }),
        Op::MaterializedAttention(MaterializedAttention { attending }),
    ];
    for op in operations {
        let found = devices.cuda(&op, std::slice::from_ref(&qkv));
        let expected = devices.expected(&op, std::slice::from_ref(&qkv));
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let what = format!("{}: output {index}", op.name());
            assert_near(&found.numbers, &expected.numbers, tolerance, 0.0, &what);
        }
    }
}
