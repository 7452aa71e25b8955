//! Normalisation of query and key heads (QK norm).

use std::slice;

use ops::{DType, Op, QkNorm, QkNormBackward, QkNormHeads};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// B, T, channels of query and of key heads, H and G: fewer and more channels than a warp has lanes, fewer and more rows
/// than a partial sum covers; heads wider than a warp holds, and all queries and all keys as one head each.
const SHAPES: [[usize; 6]; 10] = [
    [1, 1, 4, 4, 1, 1],
    [2, 70, 20, 20, 6, 2],
    [1, 33, 64, 64, 2, 2],
    [1, 130, 128, 128, 3, 1],
    [1, 9, 256, 256, 2, 1],
    [1, 5, 80, 80, 2, 1],
    [1, 1030, 8, 8, 1, 1],
    [1, 5, 260, 260, 2, 1],
    [2, 70, 48, 24, 1, 1],
    [1, 33, 520, 270, 1, 1],
];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn qk_norm_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for ([batch, sequence, p, q, queries, keys], dtype) in
        SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|dtype| (shape, dtype)))
    {
        let heads = QkNormHeads { queries, keys };
        // Both values of the weight offset.
        let offset = (queries % 2) as f32;
        let dims = [batch, sequence, queries * p + 2 * keys * q];
        let qkv = Data::random(dtype, &dims, 1.0, 1).map(|x| 2.0 * x + 0.5).stored_as(dtype);
        let weights =
            [(p, 2), (q, 3)].map(|(channels, seed)| Data::random(DType::F32, &[channels], 1.0, seed));
        let inputs = [qkv.clone(), weights[0].clone(), weights[1].clone()];
        let op = Op::QkNorm(QkNorm { heads, epsilon: 1e-5, offset });
        devices.check(&op, &op, &inputs);

        let rrms = devices.cuda(&op, &inputs).swap_remove(1);
        let dy = Data::random(dtype, &dims, 1.0, 4);
        for (accumulate, gradients) in
            [(false, DType::F32), (true, DType::F32), (false, dtype), (true, dtype)]
        {
            let mut inputs = [slice::from_ref(&dy), &inputs, slice::from_ref(&rrms)].concat();
            inputs.extend(weights.iter().filter(|_| accumulate).map(|weight| weight.stored_as(gradients)));
            let op = |gradients| Op::QkNormBackward(QkNormBackward { heads, offset, gradients, accumulate });
            devices.check(&op(gradients), &op(DType::F32), &inputs);
        }
    }
}
