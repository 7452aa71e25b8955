//! `torch.nn.functional.conv2d` without cuDNN (`torch.backends.cudnn.enabled = False`): the size of cuDNN's workspaces is
//! unknown.
//!
//! B samples, C input channels, M output channels, H x W pixels, G groups.

use super::linear::only;
use super::{cast, reduce};
use crate::checkpoint::results;
use crate::tensor::{DType, Tensor};
use crate::torch::{Backward, Torch};
use ops::{OpKind, Shape, Window};

/// What a convolution is beside its parameters.
#[derive(Clone, Copy)]
pub(crate) struct Convolution {
    pub(crate) window: Window,
    pub(crate) groups: usize,
    /// Whether the gradient of its output has channels last, and is copied.
    pub(crate) copies_gradient: bool,
}

/// x [B, C, H, W], weight [M, C / G, KH, KW], bias [M]. The node saves x and the weight, of 16 bits under autocast, whether
/// or not their gradients are needed.
pub(crate) fn conv2d(
    torch: &Torch,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    convolution: Convolution,
) -> Tensor {
    let [bias, weight, x] = match torch.autocast() {
        Some(dtype) => {
            [bias, Some(weight), Some(x)].map(|input| input.map(|input| cast(torch, input, dtype)))
        }
        None => [bias.cloned(), Some(weight.clone()), Some(x.clone())],
    };
    let (Some(weight), Some(x)) = (weight, x) else { unreachable!("both are given") };
    let kernel = Kernel::of(&x, &weight, convolution);
    let inputs: Vec<&Tensor> = [&x, &weight].into_iter().chain(&bias).collect();
    let node = torch.node(&inputs, &[&x, &weight], move |torch, backward| {
        let _dy = convolution.copies_gradient.then(|| torch.like(backward.gradient()));
        let gradients = kernel.backward(torch, backward, backward.edges.len() > 2 && backward.needs(2));
        gradients.into_iter().take(backward.edges.len()).map(Into::into).collect()
    });
    let output = only(results(torch, OpKind::Linear, || vec![kernel.forward(torch)]));
    match node {
        Some(node) => output.output_of(&node, 0),
        None => output,
    }
}

/// The sizes of a convolution.
#[derive(Clone, Copy)]
struct Kernel {
    x: Shape,
    weight: Shape,
    y: Shape,
    dtype: DType,
    groups: usize,
    /// Values of a group's channels under the windows of one sample.
    columns: usize,
    /// Whether these are the channels themselves.
    is_pointwise: bool,
}

impl Kernel {
    fn of(x: &Tensor, weight: &Tensor, Convolution { window, groups, .. }: Convolution) -> Kernel {
        let (&[samples, channels, height, width], &[out, ..]) = (x.shape().dims(), weight.shape().dims())
        else {
            unreachable!("images and their kernels have four dimensions")
        };
        let [out_height, out_width] = window.output([height, width]).expect("the window fits");
        let [kernel_height, kernel_width] = window.kernel;
        Kernel {
            x: x.shape(),
            weight: weight.shape(),
            y: Shape::new(&[samples, out, out_height, out_width]),
            dtype: x.dtype(),
            groups,
            columns: channels / groups * kernel_height * kernel_width * out_height * out_width,
            is_pointwise: window.kernel == [1, 1] && window.stride == 1 && window.padding == 0,
        }
    }

    fn samples(&self) -> usize {
        self.x.dims()[0]
    }

    /// Whether each group has one input channel, for which there is a kernel without temporaries.
    fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.x.dims()[1]
    }

    /// The same for one group.
    fn group(&self) -> Kernel {
        let of_group = |shape: Shape| {
            let mut dims = shape.dims().to_vec();
            dims[1] /= self.groups;
            Shape::new(&dims)
        };
        let weight = self.weight.with_first(self.weight.dims()[0] / self.groups);
        Kernel { x: of_group(self.x), y: of_group(self.y), weight, groups: 1, ..*self }
    }

    /// The part of a tensor that belongs to a group: a copy unless there is one sample.
    fn part(&self, torch: &Torch, shape: Shape) -> Option<Tensor> {
        (self.samples() > 1).then(|| torch.tensor(shape, self.dtype))
    }

    /// The columns of one sample, `im2col`.
    fn columns(&self, torch: &Torch) -> Tensor {
        torch.empty(&[self.columns], self.dtype)
    }

    /// A matrix product for each sample.
    fn products(&self, torch: &Torch) {
        (0..self.samples().min(torch.most_products)).for_each(|_| torch.cublas_workspace());
    }

    fn forward(&self, torch: &Torch) -> Tensor {
        if self.is_depthwise() {
            return torch.tensor(self.y, self.dtype);
        }
        if self.groups == 1 {
            let y = torch.tensor(self.y, self.dtype);
            // Products of a pointwise convolution read x itself.
            let _columns = (!self.is_pointwise).then(|| self.columns(torch));
            self.products(torch);
            return y;
        }
        let group = self.group();
        let part = |_| {
            let _x = group.part(torch, group.x);
            group.forward(torch)
        };
        let _parts: Vec<Tensor> = (0..self.groups).map(part).collect();
        torch.tensor(self.y, self.dtype)
    }

    /// The gradients of x, weight and bias.
    fn backward(&self, torch: &Torch, backward: &Backward<'_>, needs_bias: bool) -> [Option<Tensor>; 3] {
        let needs = [backward.needs(0), backward.needs(1), needs_bias];
        if self.is_depthwise() {
            let dw = needs[1].then(|| torch.tensor(self.weight, self.dtype));
            let dx = needs[0].then(|| torch.tensor(self.x, self.dtype));
            let db = needs[2].then(|| reduce::sum_channels(torch, self.y, self.dtype));
            return [dx, dw, db];
        }
        if self.groups == 1 {
            return self.dense_backward(torch, needs);
        }
        let group = self.group();
        let part = |_| {
            let _dy = group.part(torch, group.y);
            let _x = group.part(torch, group.x);
            group.dense_backward(torch, needs)
        };
        let _parts: Vec<[Option<Tensor>; 3]> = (0..self.groups).map(part).collect();
        let out = Shape::new(&[self.y.dims()[1]]);
        let [x, weight, bias] = [(0, self.x), (1, self.weight), (2, out)]
            .map(|(input, shape)| needs[input].then(|| torch.tensor(shape, self.dtype)));
        [x, weight, bias]
    }

    /// The gradients of x and of the weight share the columns, which the first makes, of pointwise convolutions too.
    fn dense_backward(&self, torch: &Torch, needs: [bool; 3]) -> [Option<Tensor>; 3] {
        let mut columns = None;
        let dx = needs[0].then(|| {
            let dx = torch.tensor(self.x, self.dtype);
            columns = Some(self.columns(torch));
            self.products(torch);
            dx
        });
        let db = needs[2].then(|| reduce::sum_channels(torch, self.y, self.dtype));
        let dw = needs[1].then(|| {
            let dw = torch.tensor(self.weight, self.dtype);
            columns.get_or_insert_with(|| self.columns(torch));
            self.products(torch);
            dw
        });
        [dx, dw, db]
    }
}
