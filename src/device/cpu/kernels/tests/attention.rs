//! Attention, fused and materialized.

use ops::{
    Attention, AttentionBackward, AttentionConfig, DType, DropoutMask, MaterializedAttention,
    MaterializedAttentionBackward, Op, TensorType,
};

use crate::cpu::kernels::simd::Level;

use super::harness::{
    Data, FLOATS, LaunchOptions, Variants, assert_gradient, cases, check, check_variants, inner_product,
    launch,
};
use super::reference;

/// Batch, sequence, heads, head size: sequences shorter and longer than a tile, not multiples of one, and odd head
/// sizes.
const SHAPES: [[usize; 4]; 5] =
    [[1, 1, 1, 5], [3, 33, 2, 20], [2, 96, 1, 32], [1, 130, 2, 40], [1, 389, 1, 24]];

/// Each shape with causal attention, and with grouped heads, windows, soft caps, documents, dropout, or without a
/// causal mask.
fn sizes_and_types() -> impl Iterator<Item = (reference::Attention, DType, Variants)> {
    let masks = |heads: usize| {
        let plain = AttentionConfig::causal(heads);
        // Dropout scales up the remaining weights and so their f32 error; nearly equal weights keep the error small.
        let even = AttentionConfig { scale: Some(0.05), ..plain };
        [
            plain,
            AttentionConfig { heads: 3 * heads, ..plain },
            AttentionConfig { causal: false, ..plain },
            AttentionConfig { window: Some(20), ..plain },
            AttentionConfig {
                heads: 2 * heads,
                window: Some(300),
                cap: Some(2.0),
                scale: Some(0.3),
                ..plain
            },
            AttentionConfig { causal: false, cap: Some(1.5), ..plain },
            AttentionConfig { documents: true, ..plain },
            AttentionConfig { heads: 2 * heads, documents: true, window: Some(30), cap: Some(2.0), ..plain },
            AttentionConfig { dropped: DropoutMask::at_rate(0.3, 9), ..even },
            AttentionConfig {
                heads: 2 * heads,
                dropped: DropoutMask::at_rate(0.6, 1),
                documents: true,
                cap: Some(2.0),
                ..even
            },
            AttentionConfig { causal: false, dropped: DropoutMask::at_rate(0.5, 2), ..even },
        ]
    };
    cases(3, [SHAPES.len(), masks(1).len(), FLOATS.len()]).into_iter().map(
        move |([shape, mask, dtype], variants)| {
            let [batch, sequence, heads, head] = SHAPES[shape];
            (
                reference::Attention { batch, sequence, head, attending: masks(heads)[mask] },
                FLOATS[dtype],
                variants,
            )
        },
    )
}

/// The document starts, if documents are masked.
fn starts(sizes: &reference::Attention) -> Option<Data> {
    let reference::Attention { batch, sequence, attending, .. } = *sizes;
    let positions = (0..batch).flat_map(|batch| (0..sequence).map(move |position| (batch, position)));
    let starts = positions.map(|(batch, position)| sizes.start(batch, position) as i32);
    attending.documents.then(|| Data::I32(TensorType::i32(&[batch, sequence]), starts.collect()))
}

/// The dropout seeds, if there is dropout.
fn seeds(sizes: &reference::Attention) -> Option<Data> {
    sizes.attending.dropped.map(|_| Data::seeds(sizes.batch))
}

/// Causal attention without further options.
fn plain([batch, sequence, heads, head]: [usize; 4]) -> reference::Attention {
    reference::Attention { batch, sequence, head, attending: AttentionConfig::causal(heads) }
}

#[test]
fn forward_and_backward_match_the_reference() {
    for (sizes, dtype, variants) in sizes_and_types() {
        let reference::Attention { batch, sequence, attending, .. } = sizes;
        let qkv = Data::random(&[batch, sequence, sizes.width()], 1).map(|x| 3.0 * x);
        let qkv = qkv.stored_as(dtype);
        let expected = sizes.forward(&qkv.to_f64());
        let inputs = [qkv.clone()].into_iter().chain(starts(&sizes)).chain(seeds(&sizes)).collect::<Vec<_>>();
        check_variants(variants, Op::Attention(Attention { attending }), &inputs, &expected);
        let dout = Data::random(&[batch, sequence, sizes.channels()], 2).stored_as(dtype);
        let rounded = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
        let [out, lse] = expected;
        let out = Data::F32(TensorType::f32(&[batch, sequence, sizes.channels()]), rounded(&out));
        let out = out.stored_as(dtype);
        let dqkv = sizes.backward(&dout.to_f64(), &qkv.to_f64(), &out.to_f64());
        let lse = Data::F32(TensorType::f32(&[batch, attending.heads, sequence]), rounded(&lse));
        let inputs: Vec<Data> =
            [dout, qkv, out, lse].into_iter().chain(starts(&sizes)).chain(seeds(&sizes)).collect();
        check_variants(variants, Op::AttentionBackward(AttentionBackward { attending }), &inputs, &[dqkv]);
    }
}

#[test]
fn materialized_forward_and_backward_match_the_reference() {
    for (sizes, dtype, variants) in sizes_and_types() {
        let reference::Attention { batch, sequence, attending, .. } = sizes;
        let qkv = Data::random(&[batch, sequence, sizes.width()], 1).map(|x| 3.0 * x);
        let qkv = qkv.stored_as(dtype);
        let expected = sizes.materialized(&qkv.to_f64());
        let op = Op::MaterializedAttention(MaterializedAttention { attending });
        let inputs = [qkv.clone()].into_iter().chain(starts(&sizes)).chain(seeds(&sizes)).collect::<Vec<_>>();
        let outputs = 3 + usize::from(attending.dropped.is_some());
        check_variants(variants, op, &inputs, &expected[..outputs]);
        let dout = Data::random(&[batch, sequence, sizes.channels()], 2).stored_as(dtype);
        let [_, probabilities, scores, _] = expected;
        let ty = TensorType::f32(&[batch, attending.heads, sequence, sequence]);
        let [probabilities, scores] = [probabilities, scores].map(|numbers| {
            Data::F32(ty, numbers.iter().map(|&number| number as f32).collect()).stored_as(dtype)
        });
        // The derivative of the cap uses the stored scores.
        let stored = scores.to_f64();
        let stored = attending.cap.map(|_| &stored[..]);
        let (d, q, p) = (dout.to_f64(), qkv.to_f64(), probabilities.to_f64());
        let dropped = sizes.drop_all_weights(&p).into_iter().map(|number| number as f32).collect();
        let dropped = Data::F32(ty, dropped).stored_as(dtype);
        let expected = sizes.materialized_backward(&d, &q, [&p, &dropped.to_f64()], stored);
        let op = Op::MaterializedAttentionBackward(MaterializedAttentionBackward { attending });
        let inputs = [dout, qkv, probabilities].into_iter().chain(attending.cap.map(|_| scores));
        let inputs = inputs.chain(attending.dropped.map(|_| dropped)).chain(seeds(&sizes));
        check_variants(variants, op, &inputs.collect::<Vec<_>>(), &expected);
    }
}

/// Queries, keys and values whose scores are integers up to 256. The last two keys score 256, the largest of every row:
/// `e^256` overflows f32, and 256 is far above the scores of the keys that are visible to most queries.
fn steep(sizes: &reference::Attention) -> Data {
    let channels = sizes.channels();
    let random = Data::random(&[1, sizes.sequence, 3 * channels], 1).map(|x| (8.0 * x).round());
    let Data::F32(ty, mut numbers) = random else { unreachable!("random data is f32") };
    for (index, number) in numbers.iter_mut().enumerate() {
        let (position, part) = (index / (3 * channels), index / channels % 3);
        if part == 0 || (part == 1 && position + 2 >= sizes.sequence) {
            *number = [8.0, -8.0][index % 2];
        }
    }
    Data::F32(ty, numbers)
}

#[test]
fn large_scores_do_not_overflow_the_softmax() {
    let sizes = plain([1, 70, 2, 16]);
    let qkv = steep(&sizes);
    let inputs = std::slice::from_ref(&qkv);
    check(Op::Attention(Attention { attending: sizes.attending }), inputs, &sizes.forward(&qkv.to_f64()));
    let op = Op::MaterializedAttention(MaterializedAttention { attending: sizes.attending });
    check(op.clone(), inputs, &sizes.materialized(&qkv.to_f64())[..3]);
    for level in Level::available() {
        let probabilities = &launch(&op, inputs, LaunchOptions { threads: 1, level, alias: false })[1];
        assert!(!probabilities.iter().any(|weight| weight.is_subnormal()), "{level:?}");
    }
}

#[test]
fn attention_reference_matches_numeric_gradient() {
    let shared = AttentionConfig { heads: 2, kv_heads: 1, ..AttentionConfig::causal(2) };
    let capped = AttentionConfig { window: Some(2), cap: Some(0.7), ..shared };
    let documents = AttentionConfig { documents: true, ..shared };
    let dropped = AttentionConfig { dropped: DropoutMask::at_rate(0.4, 3), ..capped };
    let bidirectional = AttentionConfig { causal: false, ..capped };
    for attending in [AttentionConfig::causal(2), shared, capped, bidirectional, documents, dropped] {
        let attending =
            AttentionConfig { window: attending.window.filter(|_| attending.causal), ..attending };
        let sizes = reference::Attention { batch: 2, sequence: 5, head: 3, attending };
        let qkv = Data::random(&[2, 5, sizes.width()], 3).to_f64();
        let dout = Data::random(&[2, 5, 6], 4).to_f64();
        let out = &sizes.forward(&qkv)[0];
        let loss = |qkv: &[f64]| inner_product(&sizes.forward(qkv)[0], &dout);
        assert_gradient(&sizes.backward(&dout, &qkv, out), &qkv, loss);
        let [out, probabilities, _, dropped] = sizes.materialized(&qkv);
        let [dqkv, dprobabilities, _] =
            sizes.materialized_backward(&dout, &qkv, [&probabilities, &dropped], None);
        assert_gradient(&dqkv, &qkv, |qkv| inner_product(&sizes.materialized(qkv)[0], &dout));
        // The output is linear in the probabilities.
        assert!((inner_product(&dprobabilities, &probabilities) - inner_product(&dout, &out)).abs() < 1e-12);
    }
}

#[test]
fn masked_keys_do_not_change_outputs() {
    let attending = AttentionConfig { window: Some(40), ..AttentionConfig::causal(1) };
    let qkv = Data::random(&[1, 300, 24], 1);
    let run = |qkv: &Data| {
        let options = LaunchOptions { threads: 1, level: Level::best(), alias: false };
        launch(&Op::Attention(Attention { attending }), std::slice::from_ref(qkv), options).swap_remove(0)
    };
    let before = run(&qkv);
    let Data::F32(ty, mut numbers) = qkv else { unreachable!("random data is f32") };
    numbers[100 * 24 + 8..101 * 24].fill(1e4);
    let after = run(&Data::F32(ty, numbers));
    for position in 0..300 {
        let row = position * 8..(position + 1) * 8;
        let same = before[row.clone()] == after[row];
        assert_eq!(same, !(100..140).contains(&position), "position {position}");
    }
}
