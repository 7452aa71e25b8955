//! Layer normalisation over rows.

use runner::ops::{Cast, DType, LayerNorm, LayerNormBackward, Op};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Rows and channels: rows that one to eight warps hold, and rows that none do.
const SHAPES: [[usize; 2]; 9] =
    [[1, 8], [67, 40], [130, 768], [9, 772], [65, 1600], [3, 6144], [1, 37], [200, 257], [5, 6200]];

#[test]
fn layer_norm_and_its_gradient() {
    const EPSILON: f32 = 1e-5;
    let mut devices = Devices::new();
    for [rows, channels] in SHAPES {
        let f32s = |dims: &[usize], seed| Data::random(DType::F32, dims, 1.0, seed);
        let x = f32s(&[rows, channels], 1).map(|x| 2.0 * x + 0.7);
        let (weight, bias) = (f32s(&[channels], 2), f32s(&[channels], 3));
        let reference = Op::LayerNorm(LayerNorm { epsilon: EPSILON, output: DType::F32 });
        let statistics = devices.cuda(&reference, &[x.clone(), weight.clone(), bias.clone()]);
        for dtype in NUMBERS {
            let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, output: dtype });
            devices.check(&op, &reference, &[x.clone(), weight.clone(), bias.clone()]);
            for flags in 0..8 {
                let (accumulate, accumulate_weights, cast) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
                let dy = Data::random(dtype, &[rows, channels], 1.0, 4);
                let mut inputs = vec![dy, x.clone(), weight.clone()];
                inputs.extend_from_slice(&statistics[1..]);
                inputs.extend(accumulate.then(|| f32s(&[rows, channels], 5)));
                if accumulate_weights {
                    inputs.extend([weight.clone(), bias.clone()]);
                }
                let op = LayerNormBackward { accumulate, accumulate_weights, cast };
                devices.check(&Op::LayerNormBackward(op), &Op::LayerNormBackward(op), &inputs);
                if cast {
                    let found = devices.cuda(&Op::LayerNormBackward(op), &inputs);
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
