//! Pooling of images: `torch.nn.functional.max_pool2d`, `avg_pool2d` and `adaptive_avg_pool2d(x, 1)`. No autocast casts
//! their input.
//!
//! B samples, C channels, H x W pixels.

use super::reduce;
use crate::autograd::Gradient;
use crate::tensor::{DType, Tensor};
use crate::torch::{Backward, Torch};
use ops::{Shape, Window};

/// x [B, C, H, W]. Saves x, and the place of each maximum in 64 bits.
pub(crate) fn max_pool2d(torch: &Torch, x: &Tensor, window: Window) -> Tensor {
    let node = torch.node(&[x], &[x], gradient_of(x));
    let output = torch.tensor(pooled(x.shape(), window), x.dtype());
    let places = torch.tensor(output.shape(), DType::I64);
    match node {
        None => output,
        Some(node) => {
            node.save(torch, &places);
            output.output_of(&node, 0)
        }
    }
}

/// x [B, C, H, W]. Saves x, of which backward needs the shape only.
pub(crate) fn avg_pool2d(torch: &Torch, x: &Tensor, window: Window) -> Tensor {
    torch.output((pooled(x.shape(), window), x.dtype()), None, &[x], &[x], gradient_of(x))
}

/// x [B, C, H, W]: `x.mean((-2, -1), keepdim=True)`, [B, C, 1, 1]. Saves nothing.
pub(crate) fn global_pool(torch: &Torch, x: &Tensor) -> Tensor {
    let node = torch.node(&[x], &[], gradient_of(x));
    let output = reduce::mean_of_images(torch, x);
    match node {
        Some(node) => output.output_of(&node, 0),
        None => output,
    }
}

/// x [B, T, C]: `x.mean(1)`, [B, C]. Saves nothing.
pub(crate) fn mean_pool(torch: &Torch, x: &Tensor) -> Tensor {
    let node = torch.node(&[x], &[], gradient_of(x));
    let output = reduce::mean_of_sequences(torch, x);
    match node {
        Some(node) => output.output_of(&node, 0),
        None => output,
    }
}

/// The backward function: one gradient of x's shape.
fn gradient_of(x: &Tensor) -> impl Fn(&Torch, &Backward<'_>) -> Vec<Gradient> + 'static {
    let (shape, dtype) = (x.shape(), x.dtype());
    move |torch, _| vec![torch.tensor(shape, dtype).into()]
}

/// [B, C, OH, OW]
fn pooled(x: Shape, window: Window) -> Shape {
    let (&[samples, channels], &[height, width]) = (&x.dims()[..2], &x.dims()[2..]) else {
        unreachable!("images")
    };
    let image = windows(Shape::new(&[channels, height, width]), channels, window);
    Shape::new(&[&[samples], image.dims()].concat())
}

/// The shape of an image of these channels with a pixel for each place of the window.
pub(crate) fn windows(image: Shape, channels: usize, window: Window) -> Shape {
    let &[_, height, width] = image.dims() else { unreachable!("an image has three dimensions") };
    let [height, width] = window.output([height, width]).expect("checked: the window fits");
    Shape::new(&[channels, height, width])
}
