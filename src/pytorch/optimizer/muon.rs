//! `torch.optim.Muon`: the temporaries of a step.

use crate::functions::{matmul_output, norm_of_all};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// The variable `update` holds a matrix's update until the next one's replaces it.
pub(super) fn step(torch: &Torch, parameters: &[Tensor], nesterov: bool, steps: usize) {
    let mut update = None;
    for parameter in parameters {
        // grad.lerp(buf, momentum), or the momentum itself
        update = nesterov.then(|| torch.like(parameter));
        let orthogonal = orthogonalized(torch, parameter, update.as_ref(), steps);
        update = Some(orthogonal);
    }
    drop(update);
}

/// `_zeropower_via_newtonschulz`, in bf16.
fn orthogonalized(torch: &Torch, parameter: &Tensor, update: Option<&Tensor>, steps: usize) -> Tensor {
    let shape = parameter.shape();
    let mut x = match parameter.dtype() {
        DType::BF16 if !torch.rules.muon_copies => update.cloned().unwrap_or_else(|| parameter.clone()),
        _ => torch.tensor(shape, DType::BF16),
    };
    {
        let norm = norm_of_all(torch, &x);
        let _clamped = torch.like(&norm);
        drop(norm);
    }
    let short = shape.rows().min(shape.last());
    let square = Shape::new(&[short, short]);
    // The update of a tall matrix is a transposed view; later x are contiguous.
    let mut is_contiguous = shape.rows() <= shape.last();
    let [mut gram, mut polynomial] = [None, None];
    for _ in 0..steps {
        gram = Some(matmul_output(torch, square, DType::BF16));
        polynomial = Some(added_product(torch, square, short, true));
        x = added_product(torch, shape, short, is_contiguous);
        is_contiguous = true;
    }
    drop((gram, polynomial));
    x
}

/// `torch.addmm` of a matrix. cuBLASLt has no factors of one row.
fn added_product(torch: &Torch, shape: Shape, inner: usize, is_contiguous: bool) -> Tensor {
    let output = torch.tensor(shape, DType::BF16);
    match torch.rules.adds_matrices_by_cublaslt && is_contiguous && inner > 1 {
        true => torch.cublaslt_workspace(),
        false => torch.cublas_workspace(),
    }
    output
}
