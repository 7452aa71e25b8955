//! `torch.nn.functional.linear` and `torch.addmm`.

use super::{cast, product_of_gradient, reduce, save_factors};
use crate::autograd::{Gradient, Strides};
use crate::checkpoint::results;
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::{OpKind, Shape};

/// `x W^T + bias`: `addmm` by cuBLASLt with a bias, `mm` by cuBLAS without. x [.., K], weight [M, K], bias [M].
pub(crate) fn linear(torch: &Torch, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let [bias, weight, x] = match torch.autocast() {
        Some(dtype) => {
            let bias = bias.map(|bias| cast(torch, bias, dtype));
            let weight = cast(torch, weight, dtype);
            [bias, Some(weight), Some(cast(torch, x, dtype))]
        }
        None => [bias.cloned(), Some(weight.clone()), Some(x.clone())],
    };
    let (Some(weight), Some(x)) = (weight, x) else { unreachable!("both are given") };
    let shape = x.shape().with_last(weight.shape().dims()[0]);
    // The views of x and of the weight are nodes of their own: gradients of biases are complete before those of
    // weights, and sums of input gradients wait for both with a bias, or come first without.
    let (x, weight) = if bias.is_some() {
        let x = as_matrix(torch, x);
        (x, viewed(torch, &weight))
    } else {
        let weight = viewed(torch, &weight);
        (as_matrix(torch, x), weight)
    };
    product(torch, &x, (&weight, Strides::Permuted), bias.as_ref(), shape)
}

/// `x @ weight.T`. Autocast casts the transposed weight, which its cache does not hold. x [.., K], weight [M, K].
pub(crate) fn matmul(torch: &Torch, x: &Tensor, weight: &Tensor) -> Tensor {
    let shape = x.shape().with_last(weight.shape().dims()[0]);
    let weight = viewed(torch, weight);
    let [weight, x] = [&weight, x].map(|factor| match torch.autocast() {
        Some(dtype) => cast(torch, factor, dtype),
        None => factor.clone(),
    });
    let x = as_matrix(torch, x);
    product(torch, &x, (&weight, Strides::Permuted), None, shape)
}

/// `torch.addmm(bias, x, weight)` of x as a matrix, by cuBLASLt. x [.., K], weight [K, M], bias [M].
pub(crate) fn addmm(torch: &Torch, bias: &Tensor, x: &Tensor, weight: &Tensor) -> Tensor {
    let shape = x.shape().with_last(weight.shape().last());
    let x = viewed(torch, x);
    let [weight, x, bias] = [weight, &x, bias].map(|factor| match torch.autocast() {
        Some(dtype) => cast(torch, factor, dtype),
        None => factor.clone(),
    });
    let output = product(torch, &x, (&weight, Strides::Contiguous), Some(&bias), shape);
    viewed(torch, &output)
}

/// The product of x and a weight: `addmm` with a bias, `mm` without. `shape`: of the result.
fn product(
    torch: &Torch,
    x: &Tensor,
    (weight, strides): (&Tensor, Strides),
    bias: Option<&Tensor>,
    shape: Shape,
) -> Tensor {
    let (rows, outer, dtype) = (x.shape().rows(), shape.last(), x.dtype());
    let (x_shape, weight_shape) = (x.shape(), weight.shape());
    let node = match bias {
        Some(bias) => torch.node(&[bias, x, weight], &[], move |torch, backward| {
            let product = |shape| product_of_gradient(torch, backward.gradient(), shape, dtype);
            let dx = backward.needs(1).then(|| product(x_shape));
            let dw = backward.needs(2).then(|| product(weight_shape));
            let sum = match backward.gradient().repeats() {
                true => reduce::sum_rows_one_by_one,
                false => reduce::sum_rows,
            };
            let db = Gradient::Later(Box::new(move |torch| sum(torch, rows, outer, dtype)));
            vec![db, dx.into(), dw.into()]
        }),
        None => torch.node(&[x, weight], &[], move |torch, backward| {
            let product = |shape| product_of_gradient(torch, backward.gradient(), shape, dtype);
            let dw = backward.needs(1).then(|| product(weight_shape));
            let dx = backward.needs(0).then(|| product(x_shape));
            vec![dx.into(), dw.into()]
        }),
    };
    if let Some(node) = &node {
        match bias {
            Some(_) => save_factors(torch, node, [weight, x], [strides, Strides::Contiguous]),
            None => save_factors(torch, node, [x, weight], [Strides::Contiguous, strides]),
        }
    }
    let output = only(results(torch, OpKind::Linear, || {
        let output = torch.tensor(shape, dtype);
        match bias {
            Some(_) => torch.cublaslt_workspace(),
            None => torch.cublas_workspace(),
        }
        vec![output]
    }));
    match node {
        Some(node) => output.output_of(&node, 0),
        None => output,
    }
}

/// The result of an operation that has one.
pub(super) fn only(mut results: Vec<Tensor>) -> Tensor {
    results.pop().expect("one result")
}

/// `x.view(-1, K)`, a node of its own unless x is a matrix already. x [.., K].
fn as_matrix(torch: &Torch, x: Tensor) -> Tensor {
    if x.shape().dims().len() > 2 { viewed(torch, &x) } else { x }
}

/// A view, whose gradient is a view.
pub(super) fn viewed(torch: &Torch, tensor: &Tensor) -> Tensor {
    let shape = tensor.shape();
    torch.output((shape, tensor.dtype()), Some(tensor), &[tensor], &[], move |_, backward| {
        vec![backward.gradient().view(shape).into()]
    })
}
