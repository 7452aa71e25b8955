//! Attention, forward and backward.

use crate::ops::{
    Attention, AttentionBackward, MaterializedAttention, MaterializedAttentionBackward, Op, TensorType,
};

use crate::device::cpu::kernels::simd::Level;

use super::harness::{Data, How, NUMBERS, assert_slope, check, inner_product, launch};
use super::reference;

/// Shorter and longer than a tile of queries or keys, and no multiple of one; odd heads.
const SHAPES: [[usize; 4]; 5] =
    [[1, 1, 1, 5], [3, 33, 2, 20], [2, 96, 1, 32], [1, 130, 2, 40], [1, 389, 1, 24]];

fn sizes([batch, sequence, heads, head]: [usize; 4]) -> reference::Attention {
    reference::Attention { batch, sequence, heads, head }
}

#[test]
fn forward_and_backward_match_the_reference() {
    for (shape, number) in SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|number| (shape, number))) {
        let sizes = sizes(shape);
        let [batch, sequence, heads, _] = shape;
        let qkv = Data::random(&[batch, sequence, 3 * sizes.channels()], 1).map(|x| 3.0 * x);
        let qkv = qkv.stored_as(number);
        let expected = sizes.forward(&qkv.to_f64());
        check(Op::Attention(Attention { heads }), std::slice::from_ref(&qkv), &expected);
        let dout = Data::random(&[batch, sequence, sizes.channels()], 2).stored_as(number);
        let rounded = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
        let [out, lse] = expected;
        let out = Data::F32(TensorType::f32(&[batch, sequence, sizes.channels()]), rounded(&out));
        let out = out.stored_as(number);
        let dqkv = sizes.backward(&dout.to_f64(), &qkv.to_f64(), &out.to_f64());
        let lse = Data::F32(TensorType::f32(&[batch, heads, sequence]), rounded(&lse));
        check(Op::AttentionBackward(AttentionBackward), &[dout, qkv, out, lse], &[dqkv]);
    }
}

#[test]
fn materialized_forward_and_backward_match_the_reference() {
    for (shape, number) in SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|number| (shape, number))) {
        let sizes = sizes(shape);
        let [batch, sequence, heads, _] = shape;
        let qkv = Data::random(&[batch, sequence, 3 * sizes.channels()], 1).map(|x| 3.0 * x);
        let qkv = qkv.stored_as(number);
        let expected = sizes.materialized(&qkv.to_f64());
        let op = Op::MaterializedAttention(MaterializedAttention { heads });
        check(op, std::slice::from_ref(&qkv), &expected);
        let dout = Data::random(&[batch, sequence, sizes.channels()], 2).stored_as(number);
        let probabilities = expected[1].iter().map(|&value| value as f32).collect();
        let ty = TensorType::f32(&[batch, heads, sequence, sequence]);
        let probabilities = Data::F32(ty, probabilities).stored_as(number);
        let expected = sizes.materialized_backward(&dout.to_f64(), &qkv.to_f64(), &probabilities.to_f64());
        let op = Op::MaterializedAttentionBackward(MaterializedAttentionBackward);
        check(op, &[dout, qkv, probabilities], &expected);
    }
}

/// Queries, keys and values whose scores are whole numbers of up to 256, which is what those of the last two keys are, the
/// largest of every row: beyond what f32 has a power of e for, and far above those of the keys that most queries see.
fn steep(sizes: &reference::Attention) -> Data {
    let channels = sizes.channels();
    let random = Data::random(&[1, sizes.sequence, 3 * channels], 1).map(|x| (8.0 * x).round());
    let Data::F32(ty, mut numbers) = random else { unreachable!("random numbers are f32") };
    for (index, number) in numbers.iter_mut().enumerate() {
        let (position, part) = (index / (3 * channels), index / channels % 3);
        if part == 0 || (part == 1 && position + 2 >= sizes.sequence) {
            *number = [8.0, -8.0][index % 2];
        }
    }
    Data::F32(ty, numbers)
}

#[test]
fn steep_scores_are_softened_right() {
    let sizes = sizes([1, 70, 2, 16]);
    let qkv = steep(&sizes);
    let inputs = std::slice::from_ref(&qkv);
    check(Op::Attention(Attention { heads: 2 }), inputs, &sizes.forward(&qkv.to_f64()));
    let op = Op::MaterializedAttention(MaterializedAttention { heads: 2 });
    check(op.clone(), inputs, &sizes.materialized(&qkv.to_f64()));
    for level in Level::available() {
        let probabilities = &launch(&op, inputs, How { threads: 1, level, share: false })[1];
        assert!(!probabilities.iter().any(|weight| weight.is_subnormal()), "{level:?}");
    }
}

#[test]
fn the_reference_is_differentiated_right() {
    let sizes = sizes([2, 5, 2, 3]);
    let qkv = Data::random(&[2, 5, 18], 3).to_f64();
    let dout = Data::random(&[2, 5, 6], 4).to_f64();
    let out = &sizes.forward(&qkv)[0];
    assert_slope(&sizes.backward(&dout, &qkv, out), &qkv, |qkv| inner_product(&sizes.forward(qkv)[0], &dout));
    let [out, probabilities, _] = sizes.materialized(&qkv);
    let [dqkv, dprobabilities, _] = sizes.materialized_backward(&dout, &qkv, &probabilities);
    assert_slope(&dqkv, &qkv, |qkv| inner_product(&sizes.materialized(qkv)[0], &dout));
    // The output is linear in the probabilities.
    assert!((inner_product(&dprobabilities, &probabilities) - inner_product(&dout, &out)).abs() < 1e-12);
}
