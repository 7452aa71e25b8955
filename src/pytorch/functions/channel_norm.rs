//! Norms of channels: `torch.nn.functional.batch_norm` without cuDNN, and `group_norm`.
//!
//! B samples, C channels, H x W pixels, G groups of channels.

use super::{cast, reduce};
use crate::coverage::NotCovered;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::KeywordEnum;

/// x [B, C, H, W] or [B, C], weight, bias and running statistics [C]. Autocast leaves x in its dtype. Saves x, the weight and
/// the running statistics, then the batch's mean and standard deviation in fp32, which an evaluation computes from the
/// running ones.
pub(crate) fn batch_norm(
    torch: &Torch,
    x: &Tensor,
    [weight, bias]: [&Tensor; 2],
    [running_mean, running_variance]: [&Tensor; 2],
    trains: bool,
) -> Tensor {
    let (shape, dtype, channels) = (x.shape(), x.dtype(), x.shape().dims()[1]);
    let rows = shape.elements() / channels;
    if trains {
        check_count(torch, rows);
    }
    let of_parameters = weight.dtype();
    // Forward takes images of one channel for images, backward for rows of one number.
    let (forward_by_rows, by_rows) = (rows == shape.dims()[0], has_channels_last(shape));
    let statistics = move |torch: &Torch| torch.empty(&[channels], DType::F32);
    let saved = [x, weight, running_mean, running_variance];
    let node = torch.node(&[x, weight, bias], &saved, move |torch, backward| {
        let parameter = || torch.empty(&[channels], of_parameters);
        if !by_rows {
            let dx = backward.needs(0).then(|| torch.tensor(shape, dtype));
            let [dw, db] = [1, 2].map(|input| backward.needs(input).then(parameter));
            return vec![dx.into(), dw.into(), db.into()];
        }
        // The sums of the gradient, and of its products with x, which are gradients of the parameters too.
        let _sums = [(); 2].map(|()| statistics(torch));
        let [dw, db] = [(); 2].map(|()| parameter());
        reduce::batch_norm_scratch(torch, [rows, channels], 2);
        let dx = backward.needs(0).then(|| torch.tensor(shape, dtype));
        vec![dx.into(), dw.into(), db.into()]
    });
    let output = torch.tensor(shape, dtype);
    let [mean, deviation] = [(); 2].map(|()| statistics(torch));
    if trains && forward_by_rows {
        reduce::batch_norm_scratch(torch, [rows, channels], 4);
    }
    match node {
        None => output,
        Some(node) => {
            [mean, deviation].iter().for_each(|saved| node.save(torch, saved));
            output.output_of(&node, 0)
        }
    }
}

/// x [B, C, H, W] or [B, C], weight and bias [C]. In fp32 under autocast. Saves x and the weight, then mean and standard
/// deviation [B, G].
pub(crate) fn group_norm(torch: &Torch, x: &Tensor, [weight, bias]: [&Tensor; 2], groups: usize) -> Tensor {
    let [bias, weight, x] = [bias, weight, x].map(|input| match torch.autocast() {
        Some(_) => cast(torch, input, DType::F32),
        None => input.clone(),
    });
    let (shape, dtype, parameter) = (x.shape(), x.dtype(), weight.shape());
    let [samples, channels] = [shape.dims()[0], shape.dims()[1]];
    let by_rows = torch.rules.group_norm_by_rows;
    if !by_rows && shape.elements() == samples * channels {
        let version = torch.rules.version.keyword();
        torch.refuse(NotCovered(format!("group norm of single pixels or features with PyTorch {version}")));
    }
    let is_image = shape.dims().len() > 2;
    check_count(torch, shape.elements() / groups);
    let by_channel = move |torch: &Torch| torch.empty(&[samples, channels], DType::F32);
    let by_group = move |torch: &Torch, dtype| torch.empty(&[samples, groups], dtype);
    let node = torch.node(&[&x, &weight, &bias], &[&x, &weight], move |torch, backward| {
        let dx = backward.needs(0).then(|| torch.tensor(shape, dtype));
        let [dw, db] = [1, 2].map(|input| backward.needs(input).then(|| torch.tensor(parameter, dtype)));
        // The sums of each channel of each sample, and the coefficients of the gradient of x: one a channel of the
        // gradient, unless x has channels last, two a group of x.
        let _sums = is_image.then(|| [(); 2].map(|()| by_channel(torch)));
        let _of_x = dx.is_some().then(|| [(); 2].map(|()| by_group(torch, DType::F32)));
        let _of_gradient =
            (is_image && dx.is_some() && !(by_rows && has_channels_last(shape))).then(|| by_channel(torch));
        vec![dx.into(), dw.into(), db.into()]
    });
    let output = torch.tensor(shape, dtype);
    let [mean, deviation] = [(); 2].map(|()| by_group(torch, dtype));
    // The scale and shift of each channel of each sample.
    drop(is_image.then(|| [(); 2].map(|()| by_channel(torch))));
    match node {
        None => output,
        Some(node) => {
            [mean, deviation].iter().for_each(|saved| node.save(torch, saved));
            output.output_of(&node, 0)
        }
    }
}

/// Checks that a norm's statistics are those of several values. Those of group norm are counted over all samples.
fn check_count(torch: &Torch, values: usize) {
    if values == 1 {
        let reason = "norms of one value per channel or group, which PyTorch refuses";
        torch.refuse(NotCovered(reason.to_owned()));
    }
}

/// Whether a contiguous x has the channels of a pixel side by side, for which there are kernels of their own.
fn has_channels_last(x: Shape) -> bool {
    let [channels, pixels] = [x.dims()[1], x.dims()[2..].iter().product::<usize>()];
    channels == 1 || pixels == 1
}
