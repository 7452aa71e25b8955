//! Layer normalisation over rows.

use ops::{Cast, DType, LayerNorm, LayerNormBackward, Op};

use super::harness::Devices;
use super::numbers::Data;

/// Rows and channels: rows held by one to eight warps, several of them per warp and partial sum, and rows too long or
/// odd for registers.
const SHAPES: [[usize; 2]; 10] = [
    [1, 8],
    [67, 40],
    [2060, 8],
    [130, 768],
    [9, 772],
    [65, 1600],
    [3, 6144],
    [1, 37],
    [200, 257],
    [5, 6200],
];

/// Types of y, x and the parameters' gradients.
pub(crate) const TYPES: [(DType, DType, DType); 11] = {
    use DType::{BF16, F16, F32};
    [
        (F32, F32, F32),
        (BF16, F32, F32),
        (BF16, F32, BF16),
        (BF16, BF16, F32),
        (BF16, BF16, BF16),
        (F16, F32, F32),
        (F16, F32, F16),
        (F16, F16, F32),
        (F16, F16, F16),
        (F32, F32, BF16),
        (F32, F32, F16),
    ]
};

/// Flags of the backward pass: accumulate, accumulate weights, cast. For large tensors on a slow emulated card, only
/// none and all.
pub(crate) fn backward_flags(elements: usize, devices: &Devices) -> impl Iterator<Item = usize> + use<> {
    (0..8).step_by(if elements > 30_000 && devices.are_emulated() { 7 } else { 1 })
}

/// Whether this is the first entry with these types of y and x: the forward pass has no gradient type.
pub(crate) fn is_first_of_forward_types(dtype: DType, x_dtype: DType, gradients: DType) -> bool {
    TYPES.iter().find(|types| (types.0, types.1) == (dtype, x_dtype)) == Some(&(dtype, x_dtype, gradients))
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn layer_norm_and_its_gradient_match_the_cpu() {
    const EPSILON: f32 = 1e-5;
    let mut devices = Devices::new();
    for [rows, channels] in SHAPES {
        let f32s = |dims: &[usize], seed| Data::random(DType::F32, dims, 1.0, seed);
        let full = f32s(&[rows, channels], 1).map(|x| 2.0 * x + 0.7);
        let (weight, bias) = (f32s(&[channels], 2), f32s(&[channels], 3));
        let reference = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: DType::F32 });
        for (dtype, x_dtype, gradients) in TYPES {
            let x = full.stored_as(x_dtype);
            let operands = [x.clone(), weight.clone(), bias.clone()];
            let statistics = devices.expected(&reference, &operands);
            if is_first_of_forward_types(dtype, x_dtype, gradients) {
                let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: dtype });
                devices.check(&op, &reference, &operands);
            }
            for flags in backward_flags(rows * channels, &devices) {
                let (accumulate, accumulate_weights, cast) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
                if cast && x_dtype != DType::F32 {
                    continue; // x has dy's type already.
                }
                let dy = Data::random(dtype, &[rows, channels], 1.0, 4);
                let mut inputs = vec![dy, x.clone(), weight.clone()];
                inputs.extend_from_slice(&statistics[1..]);
                inputs.extend(accumulate.then(|| f32s(&[rows, channels], 5).stored_as(x_dtype)));
                if accumulate_weights {
                    inputs.extend([&weight, &bias].map(|weight| weight.stored_as(gradients)));
                }
                let op = LayerNormBackward { gradients, accumulate, accumulate_weights, cast };
                let reference = LayerNormBackward { gradients: DType::F32, ..op };
                let found =
                    devices.check(&Op::LayerNormBackward(op), &Op::LayerNormBackward(reference), &inputs);
                if cast {
                    let without_cast = LayerNormBackward { cast: false, ..op };
                    let dx = devices.cuda(&Op::LayerNormBackward(without_cast), &inputs).swap_remove(0);
                    let cast = devices.cuda(&Op::Cast(Cast { to: dtype }), std::slice::from_ref(&dx));
                    let same = found[0].bits() == dx.bits() && found[3].bits() == cast[0].bits();
                    assert!(same, "{op:?} of {rows} rows of {channels}: different bits from a separate cast");
                }
            }
        }
    }
}
