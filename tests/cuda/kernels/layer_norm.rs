//! Layer normalisation over rows.

use ops::{Cast, DType, LayerNorm, LayerNormBackward, Op};

use super::harness::Devices;
use super::numbers::Data;

/// Rows and channels: rows that one to eight warps hold, and rows that none do.
const SHAPES: [[usize; 2]; 9] =
    [[1, 8], [67, 40], [130, 768], [9, 772], [65, 1600], [3, 6144], [1, 37], [200, 257], [5, 6200]];

/// What y, x and gradients of parameters are stored in.
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

/// What backward accumulates and casts. An emulated card takes its time: there, of large tensors nothing and all of it.
pub(crate) fn flags_of(elements: usize, devices: &Devices) -> impl Iterator<Item = usize> + use<> {
    (0..8).step_by(if elements > 30_000 && devices.are_emulated() { 7 } else { 1 })
}

/// Whether these are the first of the types of y and x, which the forward pass has alone.
pub(crate) fn is_first_with(dtype: DType, of_x: DType, gradients: DType) -> bool {
    TYPES.iter().find(|types| (types.0, types.1) == (dtype, of_x)) == Some(&(dtype, of_x, gradients))
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn layer_norm_and_its_gradient() {
    const EPSILON: f32 = 1e-5;
    let mut devices = Devices::new();
    for [rows, channels] in SHAPES {
        let f32s = |dims: &[usize], seed| Data::random(DType::F32, dims, 1.0, seed);
        let full = f32s(&[rows, channels], 1).map(|x| 2.0 * x + 0.7);
        let (weight, bias) = (f32s(&[channels], 2), f32s(&[channels], 3));
        let reference = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: DType::F32 });
        for (dtype, of_x, gradients) in TYPES {
            let x = full.stored_as(of_x);
            let operands = [x.clone(), weight.clone(), bias.clone()];
            let statistics = devices.expected(&reference, &operands);
            if is_first_with(dtype, of_x, gradients) {
                let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: dtype });
                devices.check(&op, &reference, &operands);
            }
            for flags in flags_of(rows * channels, &devices) {
                let (accumulate, accumulate_weights, cast) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
                if cast && of_x != DType::F32 {
                    continue; // It is of the type of dy already.
                }
                let dy = Data::random(dtype, &[rows, channels], 1.0, 4);
                let mut inputs = vec![dy, x.clone(), weight.clone()];
                inputs.extend_from_slice(&statistics[1..]);
                inputs.extend(accumulate.then(|| f32s(&[rows, channels], 5).stored_as(of_x)));
                if accumulate_weights {
                    inputs.extend([&weight, &bias].map(|weight| weight.stored_as(gradients)));
                }
                let op = LayerNormBackward { gradients, accumulate, accumulate_weights, cast };
                let reference = LayerNormBackward { gradients: DType::F32, ..op };
                let found =
                    devices.check(&Op::LayerNormBackward(op), &Op::LayerNormBackward(reference), &inputs);
                if cast {
                    let apart = LayerNormBackward { cast: false, ..op };
                    let dx = devices.cuda(&Op::LayerNormBackward(apart), &inputs).swap_remove(0);
                    let cast = devices.cuda(&Op::Cast(Cast { to: dtype }), std::slice::from_ref(&dx));
                    let same = found[0].bits() == dx.bits() && found[3].bits() == cast[0].bits();
                    assert!(same, "{op:?} of {rows} rows of {channels}: other bits than a cast gives");
                }
            }
        }
    }
}
