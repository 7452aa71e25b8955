//! Batch normalization.

use ops::{BatchNorm, BatchNormBackward, BatchNormMode, DType, Op};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Few rows; ends within a block of rows and of channels; several partial results of several blocks; vectors.
const SHAPES: [[usize; 4]; 5] =
    [[4, 1, 1, 3], [1, 5, 8, 1], [3, 7, 10, 33], [2, 100, 101, 3], [2, 5, 15, 132]];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn batch_norm_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for shape in SHAPES {
        let channels = shape[3];
        let f32s = |seed| Data::random(DType::F32, &[channels], 1.0, seed);
        let (weight, bias) = (f32s(2), f32s(3));
        let (running_mean, running_variance) = (f32s(4), f32s(5).map(|x| x + 1.5));
        for dtype in NUMBERS {
            let x = Data::random(dtype, &shape, 1.0, 1).map(|x| 2.0 * x + 0.7);
            let inputs =
                [x.clone(), weight.clone(), bias.clone(), running_mean.clone(), running_variance.clone()];
            let op = |mode| Op::BatchNorm(BatchNorm { epsilon: 1e-5, momentum: 0.25, mode });
            let [training, recomputation, evaluation] =
                [BatchNormMode::Training, BatchNormMode::Recomputation, BatchNormMode::Evaluation].map(op);
            let trained = devices.check(&training, &training, &inputs);
            let recomputed = devices.cuda(&recomputation, &inputs[..3]);
            for (recomputed, trained) in recomputed.iter().zip(&trained) {
                assert_eq!(recomputed.bits(), trained.bits(), "recomputation of {shape:?} in {dtype}");
            }
            devices.check(&evaluation, &evaluation, &inputs);
            for (flags, gradients) in (0..4).zip([DType::F32, DType::BF16, DType::F16, DType::F32]) {
                let (accumulate, accumulate_weights) = (flags & 1 > 0, flags & 2 > 0);
                let dy = Data::random(dtype, &shape, 1.0, 6);
                let mut inputs = vec![dy, x.clone(), weight.clone(), trained[1].clone(), trained[2].clone()];
                inputs.extend(accumulate.then(|| Data::random(dtype, &shape, 1.0, 7)));
                if accumulate_weights {
                    inputs.extend([&weight, &bias].map(|weight| weight.stored_as(gradients)));
                }
                let op = BatchNormBackward { gradients, accumulate, accumulate_weights };
                let reference = BatchNormBackward { gradients: DType::F32, ..op };
                devices.check(&Op::BatchNormBackward(op), &Op::BatchNormBackward(reference), &inputs);
            }
        }
    }
}

/// Sums of squares in f32 would lose the variance.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn batch_norm_is_accurate_if_the_mean_is_large() {
    let x = Data::random(DType::F32, &[5000, 5], 1.0, 1).map(|x| 1000.0 + x);
    let affine = [2, 3].map(|seed| Data::random(DType::F32, &[5], 1.0, seed));
    let op = BatchNorm { epsilon: 1e-5, momentum: 0.1, mode: BatchNormMode::Recomputation };
    let op = Op::BatchNorm(op);
    let inputs: Vec<Data> = [x].into_iter().chain(affine).collect();
    Devices::new().check(&op, &op, &inputs);
}
