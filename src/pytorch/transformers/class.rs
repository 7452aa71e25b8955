//! Differences between the classes with Llama's code.

use super::layers::Maker;
use super::norm::{NormClass, NormPlace};
use crate::functions;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Activation;
use spec::{ModelFamily, NormPlacement, TorchKernels, TorchProgram};

/// The code of the model's class.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Class {
    Llama,
    /// Results are scaled before they are added to the residual stream.
    Granite,
    /// Gemma 1 to 3.
    Gemma,
    /// OLMo 2 and 3. Norms follow attention and the feed-forward layer. Queries and keys are rotated in fp32.
    Olmo2,
    /// Linear layers are stacked. A part of the channels is rotated.
    Phi3,
    /// `nn.LayerNorm`, and no gate.
    Starcoder2,
}

impl Class {
    pub(super) fn of(family: Option<ModelFamily>) -> Class {
        match family {
            Some(ModelFamily::Granite) => Class::Granite,
            Some(ModelFamily::Gemma | ModelFamily::Gemma2 | ModelFamily::Gemma3) => Class::Gemma,
            Some(ModelFamily::Olmo2 | ModelFamily::Olmo3) => Class::Olmo2,
            Some(ModelFamily::Phi3) => Class::Phi3,
            Some(ModelFamily::Starcoder2) => Class::Starcoder2,
            _ => Class::Llama,
        }
    }

    /// The class of a norm. liger-kernel replaces the classes before the model is made, or with `Trainer` the norms of the
    /// model: then it leaves those of OLMo's queries and keys.
    pub(super) fn norm(self, maker: Maker<'_>, place: NormPlace) -> NormClass {
        let options = maker.options();
        let is_trainer = options.program == TorchProgram::Trainer;
        let own = match self {
            Class::Llama | Class::Granite | Class::Phi3 => NormClass::Llama,
            Class::Gemma => NormClass::Gemma,
            Class::Olmo2 => NormClass::Olmo2,
            Class::Starcoder2 => NormClass::Layer,
        };
        if options.kernels == TorchKernels::Torch
            || self == Class::Olmo2 && is_trainer && place == NormPlace::Heads
        {
            return own;
        }
        let model = maker.config().model.transformer();
        let is_sandwiched = model.is_some_and(|model| model.norm_placement == NormPlacement::Sandwich);
        let in_place = match self {
            Class::Olmo2 => is_trainer && place == NormPlace::Head,
            _ => !is_sandwiched,
        };
        NormClass::Liger { in_place }
    }

    /// `residual + result`, or `residual + result * residual_multiplier`.
    pub(super) fn add(self, torch: &Torch, residual: &Tensor, result: &Tensor) -> Tensor {
        match self {
            Class::Granite => functions::add(torch, residual, &functions::scale(torch, result)),
            _ => functions::add(torch, residual, result),
        }
    }

    /// `gelu_pytorch_tanh`, that of these classes, is one operation, as GELU is.
    pub(super) fn activation(self, activation: Activation) -> Activation {
        match (self, activation) {
            (Class::Gemma | Class::Starcoder2, Activation::GeluTanh) => Activation::Gelu,
            (_, activation) => activation,
        }
    }

    /// The dtype of cosines and sines beside hidden states of a dtype.
    pub(super) fn rotary_dtype(self, hidden: DType) -> DType {
        if self == Class::Olmo2 { DType::F32 } else { hidden }
    }

    /// `apply_rotary_pos_emb` of queries and keys.
    pub(super) fn rotate(self, torch: &Torch, xs: [Tensor; 2], [cos, sin]: &[Tensor; 2]) -> [Tensor; 2] {
        match self {
            Class::Phi3 => functions::rotate_part(torch, xs.each_ref(), cos, sin),
            _ => {
                let rotated = xs.each_ref().map(|x| functions::rotate(torch, x, cos, sin));
                match self {
                    Class::Olmo2 => {
                        [0, 1].map(|part| functions::cast(torch, &rotated[part], xs[part].dtype()))
                    }
                    _ => rotated,
                }
            }
        }
    }
}
