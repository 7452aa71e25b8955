//! Root-mean-square normalisation over rows.

use ops::{Cast, DType, Op, RmsNorm, RmsNormBackward};

use super::harness::Devices;
use super::layer_norm::{TYPES, backward_flags, is_first_of_forward_types};
use super::numbers::Data;

/// Rows and channels: rows of 1, 2, 4 and 8 warps, several of them per warp and partial sum, and rows that registers do
/// not hold.
const SHAPES: [[usize; 2]; 10] = [
    [1, 8],
    [67, 40],
    [2060, 8],
    [130, 768],
    [1, 37],
    [70, 257],
    [66, 1028],
    [6, 1540],
    [5, 6144],
    [2, 6148],
];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn rms_norm_and_its_gradient_match_the_cpu() {
    const EPSILON: f32 = 1e-5;
    let mut devices = Devices::new();
    for [rows, channels] in SHAPES {
        let f32s = |dims: &[usize], seed| Data::random(DType::F32, dims, 1.0, seed);
        let full = f32s(&[rows, channels], 1).map(|x| 2.0 * x + 0.7);
        let weight = f32s(&[channels], 2);
        // Both values of the weight offset.
        let offset = (rows % 2) as f32;
        let reference = Op::RmsNorm(RmsNorm { epsilon: EPSILON, offset, stream: false, output: DType::F32 });
        for (dtype, x_dtype, gradients) in TYPES {
            let x = full.stored_as(x_dtype);
            let operands = [x.clone(), weight.clone()];
            let statistics = devices.expected(&reference, &operands);
            if is_first_of_forward_types(dtype, x_dtype, gradients) {
                let op = Op::RmsNorm(RmsNorm { epsilon: EPSILON, offset, stream: false, output: dtype });
                devices.check(&op, &reference, &operands);
            }
            for flags in backward_flags(rows * channels, &devices) {
                let (accumulate, accumulate_weight, cast) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
                if cast && x_dtype != DType::F32 {
                    continue; // x has dy's type already.
                }
                let dy = Data::random(dtype, &[rows, channels], 1.0, 4);
                let mut inputs = vec![dy, x.clone(), weight.clone(), statistics[1].clone()];
                inputs.extend(accumulate.then(|| f32s(&[rows, channels], 5).stored_as(x_dtype)));
                inputs.extend(accumulate_weight.then(|| weight.stored_as(gradients)));
                let op = RmsNormBackward { offset, gradients, accumulate, accumulate_weight, cast };
                let reference = RmsNormBackward { gradients: DType::F32, ..op };
                let found = devices.check(&Op::RmsNormBackward(op), &Op::RmsNormBackward(reference), &inputs);
                if cast {
                    let without_cast = RmsNormBackward { cast: false, ..op };
                    let dx = devices.cuda(&Op::RmsNormBackward(without_cast), &inputs).swap_remove(0);
                    let cast = devices.cuda(&Op::Cast(Cast { to: dtype }), std::slice::from_ref(&dx));
                    let same = found[0].bits() == dx.bits() && found[2].bits() == cast[0].bits();
                    assert!(same, "{op:?} of {rows} rows of {channels}: different bits from a separate cast");
                }
            }
        }
    }
}
