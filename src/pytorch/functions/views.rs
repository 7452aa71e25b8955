//! Views: other shapes of a storage, and the gradients of views.

use super::elementwise::promoted;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// The layout of a gradient of [B, heads, T, D].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// That of [B, T, heads, D].
    Tokens,
    /// Contiguous.
    Heads,
    /// That of [B, heads, D, T].
    Channels,
}

/// `x.flatten(1)`: [B, ..] as a matrix; x itself if it is one.
pub(crate) fn flattened(torch: &Torch, x: &Tensor) -> Tensor {
    let before = x.shape();
    let &[samples, _, _, ..] = before.dims() else { return x.clone() };
    let matrix = Shape::new(&[samples, x.elements() / samples]);
    torch.output((matrix, x.dtype()), Some(x), &[x], &[], move |_, backward| {
        vec![backward.gradient().view(before).into()]
    })
}

/// `x.flatten(2).transpose(1, 2).contiguous()`: [B, C, H, W] as [B, H*W, C]. The gradient is a view.
pub(crate) fn to_sequence(torch: &Torch, x: &Tensor) -> Tensor {
    let before = x.shape();
    let &[samples, channels, height, width] = before.dims() else { unreachable!("images") };
    let sequence = Shape::new(&[samples, height * width, channels]);
    torch.output((sequence, x.dtype()), None, &[x], &[], move |_, backward| {
        vec![backward.gradient().view(before).into()]
    })
}

/// `x.view(..).transpose(1, 2)`: [B, T, heads*D] as [B, heads, T, D]. The gradient is a view if its
/// layout has [B*T, heads*D] as a matrix, else a copy.
pub(crate) fn heads(torch: &Torch, x: &Tensor, dims: &[usize], gradient: Layout) -> Tensor {
    let before = x.shape();
    let copies_gradient = match gradient {
        Layout::Tokens => false,
        Layout::Heads => dims[1] > 1,
        Layout::Channels => dims[0] > 1,
    };
    torch.output((Shape::new(dims), x.dtype()), Some(x), &[x], &[], move |torch, backward| {
        let gradient = backward.gradient();
        let gradient = match copies_gradient {
            true => torch.tensor(before, gradient.dtype()).into_view(),
            false => gradient.view(before),
        };
        vec![gradient.into()]
    })
}

/// `x.split(..)` into equal parts along the last dimension; the gradient is one tensor of all parts.
pub(crate) fn split(torch: &Torch, x: &Tensor, parts: usize) -> Vec<Tensor> {
    let full = x.shape();
    let mut dims = full.dims().to_vec();
    *dims.last_mut().expect("a row") /= parts;
    let part = x.view(Shape::new(&dims));
    let dtype = x.dtype();
    let node = torch.node_with_outputs(parts, &[x], move |torch, _| vec![torch.tensor(full, dtype).into()]);
    let part = |output| match &node {
        Some(node) => part.clone().output_of(node, output),
        None => part.detached(),
    };
    (0..parts).map(part).collect()
}

/// `x[.., a:b, ..]`, a part of x: a view, whose gradient is zeros with a copied slice.
pub(crate) fn slice(torch: &Torch, x: &Tensor, shape: Shape) -> Tensor {
    let full = x.shape();
    torch.output((shape, x.dtype()), Some(x), &[x], &[], move |torch, backward| {
        vec![torch.tensor(full, backward.gradient().dtype()).into()]
    })
}

/// `x[.., [n], ..]`, a part of x that a list with one index selects: a copy. Its gradient is zeros to which the sorted
/// indices add. `copies_gradient`: whether the gradient is not contiguous.
pub(crate) fn listed(torch: &Torch, x: &Tensor, shape: Shape, copies_gradient: bool) -> Tensor {
    let (full, number) = (x.shape(), |torch: &Torch| torch.empty(&[1], DType::I64));
    let index = number(torch);
    torch.output((shape, x.dtype()), None, &[x], &[&index], move |torch, backward| {
        let gradient = backward.gradient();
        let zeros = torch.tensor(full, gradient.dtype());
        let _position = {
            let _wrapped = number(torch);
            number(torch)
        };
        let _values = copies_gradient.then(|| torch.like(gradient));
        let _sorted = [(); 3].map(|()| number(torch));
        torch.scratch(1);
        vec![zeros.into()]
    })
}

/// `torch.broadcast_to(x, ..).flatten(2, 3)` of x [N, G, 1, D] to [N, G, R, D]: a copy, unless one of G and R is 1. Its gradient
/// is summed.
pub(crate) fn expanded(torch: &Torch, x: &Tensor, shape: Shape) -> Tensor {
    if x.shape() == shape {
        return x.clone();
    }
    let (before, base) = (x.shape(), (x.shape().dims()[1] == 1).then_some(x));
    torch.output((shape, x.dtype()), base, &[x], &[], move |torch, backward| {
        vec![torch.tensor(before, backward.gradient().dtype()).into()]
    })
}

/// `x.flatten(0, 1).chunk(count)`: slices of rows; the gradient is one tensor of all slices.
pub(crate) fn chunk_rows(torch: &Torch, x: &Tensor, count: usize) -> Vec<Tensor> {
    let (rows, columns) = (x.shape().rows(), x.shape().last());
    let flat = Shape::new(&[rows, columns]);
    let x = torch.output((flat, x.dtype()), Some(x), &[x], &[], {
        let shape = x.shape();
        move |_, backward| vec![backward.gradient().view(shape).into()]
    });
    let length = rows.div_ceil(count);
    let chunks: Vec<usize> = (0..rows).step_by(length).map(|first| length.min(rows - first)).collect();
    let dtype = x.dtype();
    let node =
        torch.node_with_outputs(chunks.len(), &[&x], move |torch, _| vec![torch.tensor(flat, dtype).into()]);
    let chunk = |(output, rows): (usize, usize)| {
        let view = x.view(Shape::new(&[rows, columns]));
        match &node {
            Some(node) => view.output_of(node, output),
            None => view.detached(),
        }
    };
    chunks.into_iter().enumerate().map(chunk).collect()
}

/// A copy, as `clone()` makes, or `reshape` or a matmul of a view; its gradient is passed on.
pub(crate) fn copied(torch: &Torch, x: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), None, &[x], &[], |_, backward| {
        vec![backward.gradient().clone().into()]
    })
}

/// A copy, whose gradient is a copy too.
pub(super) fn copied_both_ways(torch: &Torch, x: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), None, &[x], &[], |torch, backward| {
        vec![torch.like(backward.gradient()).into()]
    })
}

/// `x[:, :]` with `count` indices `:`. In some versions each is an operation, whose gradient is a copy.
pub(crate) fn full_slices(torch: &Torch, x: &Tensor, count: usize) -> Tensor {
    let slice = |x: Tensor, _| {
        torch.output((x.shape(), x.dtype()), Some(&x), &[&x], &[], |torch, backward| {
            vec![torch.like(backward.gradient()).into()]
        })
    };
    let count = if torch.rules.copies_gradients_of_full_slices { count } else { 0 };
    (0..count).fold(x.clone(), slice)
}

/// `x[..., first:first + count]`: a view, whose gradient is zeros with a copied slice.
pub(crate) fn columns(torch: &Torch, x: &Tensor, count: usize) -> Tensor {
    let full = x.shape();
    if count == full.last() {
        // An alias.
        return torch.output((full, x.dtype()), Some(x), &[x], &[], |_, backward| {
            vec![backward.gradient().clone().into()]
        });
    }
    slice(torch, x, full.with_last(count))
}

/// `x[..., :count]` and `x[..., count:]`
pub(crate) fn divided_columns(torch: &Torch, x: &Tensor, count: usize) -> [Tensor; 2] {
    [count, x.shape().last() - count].map(|count| columns(torch, x, count))
}

/// `torch.cat([a, b], -1)` in the wider type, whose gradients are slices of the gradient.
pub(crate) fn joined(torch: &Torch, [a, b]: [&Tensor; 2]) -> Tensor {
    let shapes = [a.shape(), b.shape()];
    let shape = shapes[0].with_last(shapes[0].last() + shapes[1].last());
    torch.output((shape, promoted(a, b)), None, &[a, b], &[], move |_, backward| {
        shapes.into_iter().map(|shape| backward.gradient().view(shape).into()).collect()
    })
}

/// `torch.cat([empty, x])`: a copy, whose gradient is a slice of the gradient. `empty`: the dtype of the empty tensor.
pub(crate) fn concatenated(torch: &Torch, x: &Tensor, empty: DType) -> Tensor {
    let shape = x.shape();
    let dtype = if empty == DType::F32 { empty } else { x.dtype() };
    torch.output((shape, dtype), None, &[x], &[], move |torch, backward| {
        let gradient = backward.gradient().view(shape);
        vec![match backward.dtypes[0] == dtype {
            true => gradient.into(),
            false => torch.tensor(shape, backward.dtypes[0]).into(),
        }]
    })
}
