//! Group normalization.

use ops::{DType, GroupNorm, GroupNormBackward, Op};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Images and groups: one channel per group, one group, ends within a block of rows and of channels, one pixel.
const CASES: [([usize; 4], usize); 5] =
    [([3, 1, 1, 12], 2), ([2, 5, 8, 3], 3), ([1, 19, 21, 4], 1), ([70, 2, 3, 6], 2), ([2, 2, 3, 1060], 4)];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn group_norm_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for (shape, groups) in CASES {
        let channels = shape[3];
        let [weight, bias] = [2, 3].map(|seed| Data::random(DType::F32, &[channels], 1.0, seed));
        for dtype in NUMBERS {
            let x = Data::random(dtype, &shape, 1.0, 1).map(|x| 2.0 * x + 0.7);
            let inputs = [x.clone(), weight.clone(), bias.clone()];
            let op = Op::GroupNorm(GroupNorm { groups, epsilon: 1e-5 });
            let normalized = devices.check(&op, &op, &inputs);
            for (flags, gradients) in (0..4).zip([DType::F32, DType::BF16, DType::F16, DType::F32]) {
                let (accumulate, accumulate_weights) = (flags & 1 > 0, flags & 2 > 0);
                let dy = Data::random(dtype, &shape, 1.0, 6);
                let mut inputs =
                    vec![dy, x.clone(), weight.clone(), normalized[1].clone(), normalized[2].clone()];
                inputs.extend(accumulate.then(|| Data::random(dtype, &shape, 1.0, 7)));
                if accumulate_weights {
                    inputs.extend([&weight, &bias].map(|weight| weight.stored_as(gradients)));
                }
                let op = GroupNormBackward { gradients, accumulate, accumulate_weights };
                let reference = GroupNormBackward { gradients: DType::F32, ..op };
                devices.check(&Op::GroupNormBackward(op), &Op::GroupNormBackward(reference), &inputs);
            }
        }
    }
}

/// Sums of squares in f32 would lose the variance.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn group_norm_is_accurate_if_the_mean_is_large() {
    let x = Data::random(DType::F32, &[2, 1000, 6], 1.0, 1).map(|x| 1000.0 + x);
    let affine = [2, 3].map(|seed| Data::random(DType::F32, &[6], 1.0, seed));
    let op = Op::GroupNorm(GroupNorm { groups: 3, epsilon: 1e-5 });
    let inputs: Vec<Data> = [x].into_iter().chain(affine).collect();
    Devices::new().check(&op, &op, &inputs);
}
