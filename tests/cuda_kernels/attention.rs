//! Causal self-attention.

use runner::ops::{Attention, AttentionBackward, DType, Op};

use super::harness::{Devices, Exactness};
use super::numbers::{Data, NUMBERS};

/// Batch, sequence, heads, and channels of a head: those that kernels are made for, and others.
const SHAPES: [[usize; 4]; 5] =
    [[1, 1, 1, 16], [2, 65, 3, 20], [1, 130, 2, 64], [1, 40, 1, 96], [1, 33, 1, 128]];

/// Scores and their gradients are rounded to the matrices' type before they are multiplied, so that a result is off by
/// a part of what all of them are like.
fn exactness(dtype: DType) -> Exactness {
    let tolerance = match dtype {
        DType::BF16 => 4e-2,
        DType::F16 => 5e-3,
        _ => 4e-6,
    };
    Exactness { roundings: 1.0, tolerance }
}

#[test]
fn attention_and_its_gradient() {
    let mut devices = Devices::new();
    for [batch, sequence, heads, width] in SHAPES {
        for dtype in NUMBERS {
            let random = |channels, seed| Data::random(dtype, &[batch, sequence, channels], 1.0, seed);
            let channels = heads * width;
            let (qkv, dout) = (random(3 * channels, 1), random(channels, 2));
            let forward = Op::Attention(Attention { heads });
            devices.check_within(exactness(dtype), &forward, &forward, std::slice::from_ref(&qkv));
            let [out, lse] = devices.cuda(&forward, std::slice::from_ref(&qkv)).try_into().unwrap();
            let backward = Op::AttentionBackward(AttentionBackward { heads });
            devices.check_within(exactness(dtype), &backward, &backward, &[dout, qkv, out, lse]);
        }
    }
}
