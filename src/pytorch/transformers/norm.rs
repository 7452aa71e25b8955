//! The norms of the library's classes.

use super::layers::{Maker, ModuleWeight};
use crate::functions;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// The class of a norm.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NormClass {
    /// `nn.LayerNorm`
    Layer,
    /// `LlamaRMSNorm`
    Llama,
    /// `Olmo2RMSNorm`
    Olmo2,
    /// `GemmaRMSNorm`
    Gemma,
    /// `LigerRMSNorm`
    Liger { in_place: bool },
}

/// The place of a norm in a model.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NormPlace {
    /// Before or after a sub-layer.
    Residual,
    /// Before the head.
    Head,
    /// Of queries and keys.
    Heads,
}

pub(super) struct Norm {
    class: NormClass,
    /// [C]
    weight: ModuleWeight,
    bias: Option<ModuleWeight>,
}

impl Norm {
    pub(super) fn new(maker: Maker<'_>, class: NormClass, channels: usize) -> Norm {
        if class == NormClass::Layer {
            let [weight, bias] = maker.modules([&[channels], &[channels]]);
            return Norm { class, weight, bias: Some(bias) };
        }
        Norm { class, weight: maker.module(&[channels]), bias: None }
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = Tensor> {
        [&self.weight].into_iter().chain(&self.bias).map(|parameter| parameter.weight.clone())
    }

    /// x [.., C]
    pub(super) fn forward(&self, torch: &Torch, x: &Tensor) -> Tensor {
        self.of_layout(torch, x, false)
    }

    /// The norm of the rows of x [B, heads, T, C], which lies in memory as [B, T, heads, C].
    pub(super) fn by_head(&self, torch: &Torch, x: &Tensor) -> Tensor {
        self.of_layout(torch, x, x.shape().dims()[1] > 1)
    }

    fn of_layout(&self, torch: &Torch, x: &Tensor, is_transposed: bool) -> Tensor {
        let weight = &self.weight.weight;
        match (self.class, &self.bias) {
            (NormClass::Liger { in_place }, _) => {
                functions::liger_rms_norm(torch, x, weight, in_place, is_transposed)
            }
            (_, Some(bias)) => functions::layer_norm(torch, x, weight, &bias.weight),
            (NormClass::Gemma, None) => gemma_rms_norm(torch, x, weight),
            (NormClass::Olmo2, None) => olmo2_rms_norm(torch, x, weight),
            (NormClass::Layer | NormClass::Llama, None) => llama_rms_norm(torch, x, weight),
        }
    }
}

/// `LlamaRMSNorm`: in fp32, and back. x [.., C], weight [C].
fn llama_rms_norm(torch: &Torch, x: &Tensor, weight: &Tensor) -> Tensor {
    let [normed, _variance] = normalized(torch, x);
    let cast = functions::cast(torch, &normed, x.dtype());
    functions::mul(torch, weight, &cast)
}

/// `Olmo2RMSNorm`: the product with the weight is in fp32, too.
fn olmo2_rms_norm(torch: &Torch, x: &Tensor, weight: &Tensor) -> Tensor {
    let [normed, _variance] = normalized(torch, x);
    let product = functions::mul(torch, weight, &normed);
    functions::cast(torch, &product, x.dtype())
}

/// The normed rows in fp32, and their variance. Unlike in `functions::rms_norm`, it is a variable, which lives until the
/// norm returns.
fn normalized(torch: &Torch, x: &Tensor) -> [Tensor; 2] {
    let x = functions::cast(torch, x, DType::F32);
    let variance = {
        let squares = functions::power(torch, &x);
        functions::mean_last(torch, &squares)
    };
    let rrms = {
        let shifted = functions::add_number(torch, &variance);
        functions::rsqrt(torch, &shifted)
    };
    [functions::mul(torch, &x, &rrms), variance]
}

/// `GemmaRMSNorm`: the product with the weight, which is stored less one, is in fp32, too. Unlike in `functions::rms_norm`, the
/// variable with the normed rows is assigned again, which releases them.
fn gemma_rms_norm(torch: &Torch, x: &Tensor, weight: &Tensor) -> Tensor {
    let dtype = x.dtype();
    let mut output = {
        let x = functions::cast(torch, x, DType::F32);
        let rrms = {
            let shifted = {
                let mean = {
                    let squares = functions::power(torch, &x);
                    functions::mean_last(torch, &squares)
                };
                functions::add_number(torch, &mean)
            };
            functions::rsqrt(torch, &shifted)
        };
        functions::mul(torch, &x, &rrms)
    };
    output = {
        let scale = {
            let weight = functions::cast(torch, weight, DType::F32);
            functions::add_number(torch, &weight)
        };
        functions::mul(torch, &output, &scale)
    };
    functions::cast(torch, &output, dtype)
}
