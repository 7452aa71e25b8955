//! Elementwise operations.

use super::save_factors;
use crate::autograd::{Gradient, Strides};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{Activation, Shape};

pub(super) fn promoted(a: &Tensor, b: &Tensor) -> DType {
    if a.dtype() == DType::F32 || b.dtype() == DType::F32 { DType::F32 } else { a.dtype() }
}

/// The shape of two tensors broadcast.
fn broadcast(a: Shape, b: Shape) -> Shape {
    let (longer, shorter) = if a.dims().len() >= b.dims().len() { (a, b) } else { (b, a) };
    let mut dims = longer.dims().to_vec();
    let leading = dims.len() - shorter.dims().len();
    for (dim, &other) in dims[leading..].iter_mut().zip(shorter.dims()) {
        *dim = (*dim).max(other);
    }
    Shape::new(&dims)
}

/// `a + b`; nothing is saved.
pub(crate) fn add(torch: &Torch, a: &Tensor, b: &Tensor) -> Tensor {
    let (shape, dtype) = (broadcast(a.shape(), b.shape()), promoted(a, b));
    let shapes = [a.shape(), b.shape()];
    torch.output((shape, dtype), None, &[a, b], &[], move |_, backward| {
        let of = |shape| Gradient::SumTo(backward.gradient().clone(), shape);
        shapes.into_iter().map(of).collect()
    })
}

/// `a += b` of tensors with one shape and dtype; nothing is saved.
pub(crate) fn add_in_place(torch: &Torch, a: &Tensor, b: &Tensor) -> Tensor {
    torch.output((a.shape(), a.dtype()), Some(a), &[a, b], &[], |_, backward| {
        [(); 2].map(|()| backward.gradient().clone().into()).into()
    })
}

/// `a * b`. Each factor that the other's gradient needs is saved; the second gradient is made first.
pub(crate) fn mul(torch: &Torch, a: &Tensor, b: &Tensor) -> Tensor {
    let (shape, dtype) = (broadcast(a.shape(), b.shape()), promoted(a, b));
    let shapes = [a.shape(), b.shape()];
    let node = torch.node(&[a, b], &[], move |torch, backward| {
        let second = backward.needs(1).then(|| torch.tensor(shape, dtype));
        let first = backward.needs(0).then(|| torch.tensor(shape, dtype));
        let sum = |gradient: Option<Tensor>, shape| {
            gradient.map_or(Gradient::None, |gradient| Gradient::SumTo(gradient, shape))
        };
        vec![sum(first, shapes[0]), sum(second, shapes[1])]
    });
    node.iter().for_each(|node| save_factors(torch, node, [a, b], [Strides::Contiguous; 2]));
    let output = torch.tensor(shape, dtype);
    match node {
        Some(node) => output.output_of(&node, 0),
        None => output,
    }
}

/// An operation whose gradient is one new tensor of the gradient's shape.
fn unary(torch: &Torch, x: &Tensor, saved: &[&Tensor]) -> Tensor {
    torch.output((x.shape(), x.dtype()), None, &[x], saved, |torch, backward| {
        vec![torch.like(backward.gradient()).into()]
    })
}

/// An operation that saves its output.
fn unary_by_output(torch: &Torch, x: &Tensor) -> Tensor {
    let output = unary(torch, x, &[]);
    save_output(torch, &output);
    output
}

fn save_output(torch: &Torch, output: &Tensor) {
    if output.requires_grad()
        && let Some((node, _)) = output.node()
    {
        node.save(torch, &output.detached());
    }
}

/// `x * number`; nothing is saved.
pub(crate) fn scale(torch: &Torch, x: &Tensor) -> Tensor {
    unary(torch, x, &[])
}

/// `x *= number`; nothing is saved.
pub(crate) fn scale_in_place(torch: &Torch, x: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), Some(x), &[x], &[], |torch, backward| {
        vec![torch.like(backward.gradient()).into()]
    })
}

/// `-x`
pub(super) fn negative(torch: &Torch, x: &Tensor) -> Tensor {
    unary(torch, x, &[])
}

/// `x + number`, whose gradient is the output's.
pub(crate) fn add_number(torch: &Torch, x: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), None, &[x], &[], |_, backward| {
        vec![backward.gradient().clone().into()]
    })
}

/// `x.pow(number)`, in fp32 under autocast.
pub(crate) fn power(torch: &Torch, x: &Tensor) -> Tensor {
    let x = if torch.autocast().is_some() { super::cast(torch, x, DType::F32) } else { x.clone() };
    torch.output((x.shape(), x.dtype()), None, &[&x], &[&x], |torch, backward| {
        let gradient = backward.gradient();
        let _power = torch.like(gradient);
        let _scaled = torch.like(gradient);
        vec![torch.like(gradient).into()]
    })
}

/// `x.mean(-1, keepdim=True)`
pub(crate) fn mean_last(torch: &Torch, x: &Tensor) -> Tensor {
    let full = x.shape();
    let mut dims = full.dims().to_vec();
    *dims.last_mut().expect("a row") = 1;
    torch.output((Shape::new(&dims), x.dtype()), None, &[x], &[], move |torch, backward| {
        vec![torch.tensor(full, backward.gradient().dtype()).into()]
    })
}

/// `torch.rsqrt(x)`
pub(crate) fn rsqrt(torch: &Torch, x: &Tensor) -> Tensor {
    let output = torch.output((x.shape(), x.dtype()), None, &[x], &[], |torch, backward| {
        let gradient = backward.gradient();
        let _cube = torch.like(gradient);
        let _half = torch.like(gradient);
        vec![torch.like(gradient).into()]
    });
    save_output(torch, &output);
    output
}

/// `torch.tanh(x)`
pub(crate) fn tanh(torch: &Torch, x: &Tensor) -> Tensor {
    unary_by_output(torch, x)
}

/// The activations of `torch.nn.functional`; squared ReLU is `F.relu(x).square()`.
pub(crate) fn activation(torch: &Torch, x: Tensor, activation: Activation) -> Tensor {
    match activation {
        Activation::Gelu | Activation::GeluTanh | Activation::Silu | Activation::LeakyRelu => {
            unary(torch, &x, &[&x])
        }
        Activation::Relu | Activation::Tanh | Activation::Sigmoid => unary_by_output(torch, &x),
        Activation::ReluSquared => {
            let relu = unary_by_output(torch, &x);
            drop(x);
            power(torch, &relu)
        }
    }
}

/// An activation of `torch.nn.functional` with `inplace=True`. SiLU's backward needs its input, of which a copy is
/// saved; that of the others needs the output.
pub(crate) fn activation_in_place(torch: &Torch, x: &Tensor, activation: Activation) -> Tensor {
    if activation != Activation::Silu {
        let output = scale_in_place(torch, x);
        save_output(torch, &output);
        return output;
    }
    let copy = torch.needs_grad(&[x]).then(|| torch.like(x));
    let saved: Vec<&Tensor> = copy.iter().collect();
    torch.output((x.shape(), x.dtype()), Some(x), &[x], &saved, |torch, backward| {
        vec![torch.like(backward.gradient()).into()]
    })
}

/// `torch.softmax(x, -1, dtype)`: fp16 is converted to fp32 by the kernel, bf16 before it.
pub(crate) fn softmax(torch: &Torch, x: &Tensor, dtype: DType) -> Tensor {
    let converts = dtype == DType::F32 && x.dtype() == DType::F16;
    let x = if converts { x.clone() } else { super::cast(torch, x, dtype) };
    let output = torch.output((x.shape(), dtype), None, &[&x], &[], |torch, backward| {
        let gradient = torch.tensor(backward.gradient().shape(), backward.dtypes[0]);
        let _products = torch.like(backward.gradient());
        vec![gradient.into()]
    });
    save_output(torch, &output);
    output
}

/// `torch.tanh(x / cap) * cap`
pub(crate) fn soft_cap(torch: &Torch, x: &Tensor) -> Tensor {
    let tanh = {
        let divided = scale(torch, x);
        tanh(torch, &divided)
    };
    scale(torch, &tanh)
}
