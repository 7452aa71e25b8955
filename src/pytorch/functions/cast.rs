//! `Tensor.to(dtype)`, and autocast's cache.

use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// `Tensor.to(dtype)` as a program calls it: autocast keeps none.
pub(crate) fn converted(torch: &Torch, tensor: &Tensor, dtype: DType) -> Tensor {
    if tensor.dtype() == dtype {
        return tensor.clone();
    }
    torch.output((tensor.shape(), dtype), None, &[tensor], &[], |torch, backward| {
        vec![torch.tensor(backward.gradient().shape(), backward.dtypes[0]).into()]
    })
}

/// Casts a tensor. Autocast keeps the casts of fp32 leaves that require gradients until it ends.
pub(crate) fn cast(torch: &Torch, tensor: &Tensor, dtype: DType) -> Tensor {
    if tensor.dtype() == dtype {
        return tensor.clone();
    }
    if let Some(cast) = torch.cached_cast(tensor) {
        return cast;
    }
    let output = converted(torch, tensor, dtype);
    let is_cached = tensor.is_leaf() && tensor.requires_grad() && tensor.dtype() == DType::F32;
    if torch.autocast().is_some() && is_cached {
        output.set_purpose(Purpose::Cast);
        torch.cache_cast(tensor, &output);
    }
    output
}
