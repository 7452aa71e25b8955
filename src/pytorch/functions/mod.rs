//! PyTorch's operations: what each requests, in its order, what it saves for backward, and the order of its gradients.
//!
//! B batch, T sequence, N = B*T rows, C channels, H query heads, G key and value heads, D channels per head.

mod attention;
mod cast;
mod dropout;
mod elementwise;
mod embedding;
mod four_bit;
mod linear;
mod loss;
mod norm;
mod reduce;
mod rotary;
mod views;

pub(crate) use attention::{Heads, is_flash, is_unfused, manual_attention, scaled_dot_product_attention};
pub(crate) use cast::{cast, converted};
pub(crate) use dropout::dropout;
pub(crate) use elementwise::{
    activation, add, add_number, mean_last, mul, power, rsqrt, scale, scale_in_place, soft_cap, tanh,
};
pub(crate) use embedding::{embedding, scan_scratch};
pub(crate) use four_bit::FourBitWeight;
pub(crate) use linear::{addmm, linear};
pub(crate) use loss::cross_entropy;
pub(crate) use norm::{layer_norm, rms_norm};
pub(crate) use reduce::{count, sum_to};
pub(crate) use rotary::{rotate, rotate_part};
pub(crate) use views::{Layout, chunk_rows, columns, concatenated, copied, full_slices, heads, split};

use crate::tensor::DType;
use crate::torch::Torch;

/// A product of cuBLAS: its output, and the workspace while it runs.
fn matmul_output(torch: &Torch, dims: ops::Shape, dtype: DType) -> crate::tensor::Tensor {
    let output = torch.tensor(dims, dtype);
    torch.cublas_workspace();
    output
}
