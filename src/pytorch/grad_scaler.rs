//! `torch.amp.GradScaler`

use crate::optimizer::Optimizer;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

#[derive(Default)]
pub(crate) struct GradScaler {
    /// The scale and its growth tracker, made at the first call.
    scale: Option<[Tensor; 2]>,
}

impl GradScaler {
    /// `scaler.scale(loss)`
    pub(crate) fn scale(&mut self, torch: &Torch, loss: &Tensor) -> Tensor {
        let scale = self.scale.get_or_insert_with(|| [torch.scalar(DType::F32), torch.scalar(DType::F32)]);
        let shape = loss.shape();
        torch.output((shape, DType::F32), None, &[loss], &[&scale[0]], move |torch, _| {
            vec![torch.tensor(shape, DType::F32).into()]
        })
    }

    /// The sum of the overflow flags of unscaled gradients, which `scaler.step` gives a fused optimizer.
    pub(crate) fn sum_of_overflows(torch: &Torch, optimizer: &Optimizer) -> Option<Tensor> {
        optimizer.is_fused().then(|| torch.scalar(DType::F32))
    }

    /// `scaler.unscale_(optimizer)`, or what `scaler.step(optimizer)` makes for an optimizer that takes the scale
    /// itself. Returns what lives until the step is over.
    pub(crate) fn unscale(torch: &Torch, optimizer: &Optimizer, explicitly: bool) -> Vec<Tensor> {
        if optimizer.is_fused() && !explicitly {
            let mut made: Vec<Tensor> = (0..4).map(|_| torch.scalar(DType::F32)).collect();
            let found = made.swap_remove(2);
            drop(made);
            return vec![found, torch.scalar(DType::F32), torch.scalar(DType::F32)];
        }
        // The inverse scale in f64 and back.
        let _single = {
            let double = torch.scalar(DType::F64);
            let inverse = torch.scalar(DType::F64);
            drop(double);
            let single = torch.scalar(DType::F32);
            drop(inverse);
            single
        };
        let _found = torch.scalar(DType::F32);
        let on_device = torch.scalar(DType::F32);
        let _inverse = torch.scalar(DType::F32);
        vec![on_device]
    }
}
