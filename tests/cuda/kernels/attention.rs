//! Self-attention.

use ops::{
    Attention, AttentionBackward, AttentionConfig, DType, DropoutMask, MaterializedAttention,
    MaterializedAttentionBackward, Op,
};

use super::dropout::seeds;
use super::harness::{Devices, TOLERANCE, tensor_core_error};
use super::numbers::{Data, NUMBERS};

/// B, T, H and D: every padded head dimension, head rows with and without whole vectors, sequences shorter than a tile,
/// of whole tiles, and of partial tiles.
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

/// Tolerances of out and of gradients, relative to their norm. With 16-bit types, attention weights and their gradients
/// are rounded before the next matmul, and results once more.
fn tolerances(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::F32 | DType::I32 | DType::U16 | DType::U8 | DType::U4 => [4e-6, 4e-6],
        DType::BF16 => [3e-3, 5e-3],
        DType::F16 => [4e-4, 7e-4],
    }
}

/// Asserts that the error is within the tolerance, relative to the norm, or to `least` if the norm is smaller.
fn assert_near(found: &[f32], expected: &[f32], tolerance: f64, least: f64, what: &str) {
    let norm =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().map(|&number| f64::from(number)));
    let error = norm(&mut found.iter().zip(expected).map(|(&f, &e)| f64::from(f) - f64::from(e)));
    let error = error / size.max(least);
    // NaN must fail too.
    let right = error < tolerance;
    assert!(right, "{what} has an error of {error:e}");
}

/// Sizes, type and attention variant.
struct Case {
    batch: usize,
    sequence: usize,
    head: usize,
    dtype: DType,
    attending: AttentionConfig,
}

/// Attention variants with B, T and D: shared keys, windows shorter than a tile, as long as a tile and longer than the
/// sequence, windows without a causal mask, score caps, another scale, documents, and dropout with tiles of each size.
fn variants() -> Vec<([usize; 3], AttentionConfig)> {
    let of = |heads, kv_heads| AttentionConfig { kv_heads, ..AttentionConfig::causal(heads) };
    let shared = of(6, 2);
    let dropped = DropoutMask::at_rate(0.3, 5);
    vec![
        ([2, 130, 32], shared),
        ([1, 70, 20], of(4, 1)),
        ([1, 200, 64], AttentionConfig { window: Some(17), ..AttentionConfig::causal(2) }),
        ([2, 150, 80], AttentionConfig { window: Some(64), ..shared }),
        ([1, 90, 128], AttentionConfig { window: Some(2), ..of(2, 1) }),
        ([1, 40, 64], AttentionConfig { window: Some(1000), ..AttentionConfig::causal(1) }),
        ([2, 100, 64], AttentionConfig { causal: false, ..AttentionConfig::causal(2) }),
        ([1, 131, 32], AttentionConfig { causal: false, window: Some(50), ..shared }),
        ([1, 66, 250], AttentionConfig { causal: false, ..of(2, 1) }),
        ([1, 140, 64], AttentionConfig { cap: Some(1.5), ..shared }),
        ([1, 70, 128], AttentionConfig { cap: Some(50.0), window: Some(20), scale: Some(0.25), ..of(2, 1) }),
        ([1, 60, 256], AttentionConfig { cap: Some(2.0), ..of(2, 1) }),
        ([1, 50, 96], AttentionConfig { cap: Some(2.0), causal: false, ..AttentionConfig::causal(1) }),
        ([1, 33, 8], AttentionConfig { scale: Some(1.0), ..AttentionConfig::causal(2) }),
        ([2, 300, 64], AttentionConfig { documents: true, ..AttentionConfig::causal(2) }),
        ([2, 150, 20], AttentionConfig { documents: true, ..shared }),
        ([1, 140, 128], AttentionConfig { documents: true, window: Some(30), ..of(2, 1) }),
        ([1, 70, 250], AttentionConfig { documents: true, cap: Some(1.5), ..of(2, 1) }),
        ([2, 150, 20], AttentionConfig { documents: true, dropped, ..of(2, 1) }),
        ([2, 140, 64], AttentionConfig { window: Some(50), dropped, ..AttentionConfig::causal(2) }),
        ([1, 101, 80], AttentionConfig { cap: Some(1.5), dropped, ..of(4, 2) }),
        ([1, 131, 128], AttentionConfig { documents: true, window: Some(30), dropped, ..of(2, 1) }),
        ([2, 70, 250], AttentionConfig { causal: false, dropped, ..AttentionConfig::causal(2) }),
    ]
}

fn cases() -> impl Iterator<Item = Case> {
    let plain = SHAPES
        .map(|[batch, sequence, heads, head]| ([batch, sequence, head], AttentionConfig::causal(heads)));
    let all = plain.into_iter().chain(variants());
    all.flat_map(|([batch, sequence, head], attending)| {
        NUMBERS.map(|dtype| Case { batch, sequence, head, dtype, attending })
    })
}

impl Case {
    /// qkv and dout.
    fn operands(&self) -> [Data; 2] {
        let AttentionConfig { heads, kv_heads, .. } = self.attending;
        [((heads + 2 * kv_heads) * self.head, 1), (heads * self.head, 2)].map(|(channels, seed)| {
            Data::random(self.dtype, &[self.batch, self.sequence, channels], 1.0, seed)
        })
    }

    /// Appends the mask operands: document starts, different in each sequence and with lengths from one position to
    /// many, and dropout seeds.
    fn with_mask_inputs(&self, operands: impl IntoIterator<Item = Data>) -> Vec<Data> {
        let start = |i: usize| {
            let (sequence, position) = (i / self.sequence, i % self.sequence);
            let begins = [1, 20, 21, 95, 200].map(|begin| begin + 3 * sequence);
            begins.into_iter().filter(|begin| *begin <= position).max().unwrap_or(0)
        };
        let starts = self.attending.documents.then(|| Data::tokens(&[self.batch, self.sequence], start));
        operands.into_iter().chain(starts).chain(self.seeds()).collect()
    }

    fn seeds(&self) -> Option<Data> {
        self.attending.dropped.map(|_| seeds(self.batch))
    }

    /// Splits qkv into queries, keys and values.
    fn parts(&self, qkv: &Data) -> [Vec<f32>; 3] {
        let AttentionConfig { heads, kv_heads, .. } = self.attending;
        let ends = [0, heads, heads + kv_heads, heads + 2 * kv_heads].map(|heads| heads * self.head);
        let rows = || qkv.numbers.chunks_exact(ends[3]);
        [0, 1, 2].map(|part| rows().flat_map(|row| &row[ends[part]..ends[part + 1]]).copied().collect())
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Case { batch, sequence, head, dtype, attending } = self;
        write!(f, "{dtype} B{batch} T{sequence} D{head} {attending:?}")
    }
}

/// Asserts that dq, dk and dv are within the tolerance. Returns the minimum norm for gradients that may vanish.
fn assert_gradients_near(found: &Data, expected: &Data, tolerance: f64, what: &Case) -> f64 {
    // With a single position, only dv is nonzero.
    let least = expected.numbers.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>().sqrt() / 100.0;
    let [found, expected] = [found, expected].map(|dqkv| what.parts(dqkv));
    for ((name, found), expected) in ["dq", "dk", "dv"].iter().zip(&found).zip(&expected) {
        assert_near(found, expected, tolerance, least, &format!("{what}: {name}"));
    }
    least
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn attention_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for case in cases() {
        let [out_tolerance, gradient_tolerance] = tolerances(case.dtype);
        let [qkv, dout] = case.operands();

        let attending = case.attending;
        let op = Op::Attention(Attention { attending });
        let inputs = case.with_mask_inputs([qkv.clone()]);
        let (found, expected) = (devices.cuda(&op, &inputs), devices.expected(&op, &inputs));
        assert_near(&found[0].numbers, &expected[0].numbers, out_tolerance, 0.0, &format!("{case}: out"));
        let tensor_cores = if case.dtype == DType::F32 { 0.0 } else { tensor_core_error(case.head) };
        let lse_tolerance = TOLERANCE + tensor_cores;
        assert_near(&found[1].numbers, &expected[1].numbers, lse_tolerance, 0.0, &format!("{case}: lse"));

        let op = Op::AttentionBackward(AttentionBackward { attending });
        let inputs = case.with_mask_inputs([dout, qkv, found[0].clone(), found[1].clone()]);
        let found = devices.cuda(&op, &inputs);
        let expected = devices.expected(&op, &inputs);
        assert_gradients_near(&found[0], &expected[0], gradient_tolerance, &case);
    }
}

/// Scores, probabilities and their gradients are stored in the operands' type.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn materialized_attention_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for case in cases() {
        let [tolerance, gradient_tolerance] = tolerances(case.dtype);
        let [qkv, dout] = case.operands();

        let attending = case.attending;
        let op = Op::MaterializedAttention(MaterializedAttention { attending });
        let inputs = case.with_mask_inputs([qkv.clone()]);
        let (found, expected) = (devices.cuda(&op, &inputs), devices.expected(&op, &inputs));
        let names = ["out", "probabilities", "scores", "left"];
        for ((name, found), expected) in names.iter().zip(&found).zip(&expected) {
            assert_near(&found.numbers, &expected.numbers, tolerance, 0.0, &format!("{case}: {name}"));
        }

        let op = Op::MaterializedAttentionBackward(MaterializedAttentionBackward { attending });
        let mut inputs = vec![dout, qkv, found[1].clone()];
        inputs.extend(attending.cap.map(|_| found[2].clone()));
        inputs.extend(found.get(3).cloned());
        inputs.extend(case.seeds());
        let found = devices.cuda(&op, &inputs);
        let expected = devices.expected(&op, &inputs);
        let least = assert_gradients_near(&found[0], &expected[0], gradient_tolerance, &case);
        for (index, name) in [(1, "dprobabilities"), (2, "dscores")] {
            let [found, expected] = [&found, &expected].map(|outputs| &outputs[index].numbers);
            assert_near(found, expected, gradient_tolerance, least, &format!("{case}: {name}"));
        }
    }
}

/// Scores are integers of up to 256, reached by the last two keys: exp of them overflows f32, and they far exceed the
/// scores of the keys that most queries see.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn softmax_of_large_scores_does_not_overflow() {
    let (sequence, channels) = (70, 32);
    let attending = AttentionConfig::causal(2);
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
