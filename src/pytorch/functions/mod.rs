//! PyTorch's operations: what each requests, in its order, what it saves for backward, and the order of its gradients.
//!
//! B batch, T sequence, N = B*T rows, C channels, H query heads, G key and value heads, D channels per head.

mod attention;
mod cast;
mod channel_norm;
mod convolution;
mod dropout;
mod elementwise;
mod embedding;
mod four_bit;
mod liger;
mod linear;
mod loss;
mod manual_attention;
mod norm;
mod pooling;
mod reduce;
mod rotary;
mod views;

pub(crate) use attention::{Heads, is_flash, is_unfused, scaled_dot_product_attention};
pub(crate) use cast::{cast, converted};
pub(crate) use channel_norm::{batch_norm, group_norm};
pub(crate) use convolution::{Convolution, conv2d};
pub(crate) use dropout::{dropout, dropout_if};
pub(crate) use elementwise::{
    activation, activation_in_place, add, add_in_place, add_number, mean_last, mul, power, rsqrt, scale,
    scale_in_place, soft_cap, softmax, tanh,
};
pub(crate) use embedding::{embedding, scan_scratch};
pub(crate) use four_bit::FourBitWeight;
pub(crate) use liger::{fused_linear_cross_entropy, liger_gated, liger_rms_norm, liger_rotate};
pub(crate) use linear::{addmm, linear, matmul};
pub(crate) use loss::{
    binary_cross_entropy_with_logits, cross_entropy, mse_loss, smoothed_cross_entropy, sum,
};
pub(crate) use manual_attention::{Eager, eager_attention, manual_attention, repeated};
pub(crate) use norm::{layer_norm, rms_norm};
pub(crate) use pooling::{avg_pool2d, global_pool, max_pool2d, mean_pool, windows};
pub(crate) use reduce::{all, count, mean_of_rows, norm_of_all, norm_of_columns, norm_of_rows, sum_to};
pub(crate) use rotary::{rotate, rotate_part};
pub(crate) use views::{
    Layout, chunk_rows, columns, concatenated, copied, divided_columns, expanded, flattened, full_slices,
    heads, joined, listed, slice, split, to_sequence,
};

use crate::autograd::{Node, Strides};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// A product of cuBLAS: its output, and the workspace while it runs.
pub(crate) fn matmul_output(torch: &Torch, dims: ops::Shape, dtype: DType) -> Tensor {
    let output = torch.tensor(dims, dtype);
    torch.cublas_workspace();
    output
}

/// A product of a gradient: cuBLAS reads a contiguous copy of one that repeats a number.
fn product_of_gradient(torch: &Torch, gradient: &Tensor, dims: ops::Shape, dtype: DType) -> Tensor {
    if !gradient.repeats() {
        return matmul_output(torch, dims, dtype);
    }
    let output = torch.tensor(dims, dtype);
    let _copy = torch.like(gradient);
    torch.cublas_workspace();
    output
}

/// Saves the factors of a product for backward, each if the other needs a gradient: the second first.
fn save_factors(torch: &Torch, node: &Node, [a, b]: [&Tensor; 2], [of_a, of_b]: [Strides; 2]) {
    for (factor, other, strides) in [(b, a, of_b), (a, b, of_a)] {
        if other.requires_grad() {
            node.save_with(torch, factor, strides);
        }
    }
}
