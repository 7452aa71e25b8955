//! Trained parameters, and the fp32 copies (master weights) that the optimizer updates in place of 16-bit parameters.

use std::rc::Rc;

use crate::coverage;
use crate::sequence::Purpose;
use crate::tensor::{DType, Hook, Tensor};
use crate::torch::Torch;
use spec::RunConfig;

pub(crate) struct TrainedParameter {
    parameter: Tensor,
    master: Option<Tensor>,
}

impl TrainedParameter {
    /// The trained parameters among those of a model. Makes their master weights.
    pub(crate) fn of(torch: &Torch, config: &RunConfig, parameters: &[Tensor]) -> Vec<TrainedParameter> {
        let has_masters = coverage::has_master_weights(config);
        let copy = |parameter: &Tensor| torch.tensor(parameter.shape(), DType::F32);
        let trained = |parameter: &Tensor| TrainedParameter {
            parameter: parameter.clone(),
            master: has_masters.then(|| torch.with_purpose(Purpose::MasterWeight, || copy(parameter))),
        };
        let trains = |parameter: &&Tensor| parameter.requires_grad();
        parameters.iter().filter(trains).map(trained).collect()
    }

    pub(crate) fn parameter(&self) -> &Tensor {
        &self.parameter
    }

    /// The tensor that the optimizer updates.
    pub(crate) fn updated(&self) -> &Tensor {
        self.master.as_ref().unwrap_or(&self.parameter)
    }

    /// `master.grad = parameter.grad.float()`. `frees`: `parameter.grad = None` follows.
    pub(crate) fn copy_gradient(&self, torch: &Torch, frees: bool) {
        let Some(master) = &self.master else { return };
        master.set_grad(Some(single_gradient(torch, master)));
        if frees {
            self.parameter.set_grad(None);
        }
    }

    /// Has a hook add each gradient to that of the master weight, in fp32.
    pub(crate) fn accumulate_in_hook(&self) {
        let Some(master) = self.master.clone() else { return };
        self.parameter.set_hook(Hook(Rc::new(move |torch, parameter| {
            if !master.has_grad() {
                master.set_grad(Some(single_gradient(torch, &master)));
            }
            parameter.set_grad(None);
        })));
    }

    /// Has a hook call the optimizer for this parameter, and release its gradient.
    pub(crate) fn update_in_hook(&self, step: impl Fn(&Torch, &Tensor) + 'static) {
        let master = self.master.clone();
        self.parameter.set_hook(Hook(Rc::new(move |torch, parameter| {
            if let Some(master) = &master {
                master.set_grad(Some(single_gradient(torch, master)));
                parameter.set_grad(None);
            }
            let updated = master.as_ref().unwrap_or(parameter);
            step(torch, updated);
            updated.set_grad(None);
        })));
    }
}

/// The gradient of a master weight.
fn single_gradient(torch: &Torch, master: &Tensor) -> Tensor {
    torch.with_purpose(Purpose::Gradient, || torch.like(master))
}
