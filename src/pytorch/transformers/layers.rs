//! The layers that the library's decoders share.

use crate::functions;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use spec::RunConfig;

/// `nn.Linear`
#[derive(Clone)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// Makes the parameters of a layer, trained or frozen.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub(super) torch: &'a Torch,
    pub(super) dtype: DType,
    pub(super) is_trained: bool,
}

impl Maker<'_> {
    pub(super) fn parameter(self, dims: &[usize]) -> Tensor {
        let tensor = self.torch.empty(dims, self.dtype);
        if self.is_trained { tensor.leaf() } else { tensor }
    }

    pub(super) fn linear(self, inner: usize, outer: usize, bias: bool) -> Linear {
        let weight = self.parameter(&[outer, inner]);
        Linear { weight, bias: bias.then(|| self.parameter(&[outer])) }
    }
}

impl Linear {
    pub(super) fn forward(&self, torch: &Torch, x: &Tensor) -> Tensor {
        functions::linear(torch, x, &self.weight, self.bias.as_ref())
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        [&self.weight].into_iter().chain(&self.bias)
    }
}

/// Whether a run trains a layer of its model.
pub(super) fn is_trained(config: &RunConfig, layer: &str) -> bool {
    config.trains() && !config.strategy.freeze.iter().any(|frozen| frozen == layer)
}

/// `LlamaRMSNorm`: in fp32, and back. x [.., C], weight [C].
pub(super) fn rms_norm(torch: &Torch, x: &Tensor, weight: &Tensor) -> Tensor {
    let dtype = x.dtype();
    let x = functions::cast(torch, x, DType::F32);
    let variance = {
        let squares = functions::square(torch, &x);
        functions::mean_last(torch, &squares)
    };
    let normed = {
        let rrms = {
            let shifted = functions::add_number(torch, &variance);
            functions::rsqrt(torch, &shifted)
        };
        functions::mul(torch, &x, &rrms)
    };
    drop(x);
    let cast = functions::cast(torch, &normed, dtype);
    functions::mul(torch, weight, &cast)
}

/// `LlamaRotaryEmbedding`: cosines and sines [T, D] in the dtype of the hidden states.
pub(super) fn rotary_embedding(torch: &Torch, tokens: usize, head: usize, dtype: DType) -> [Tensor; 2] {
    let angles = |channels: usize| torch.empty(&[tokens, channels], DType::F32);
    let _frequencies = {
        let _positions = angles(1);
        angles(head / 2)
    };
    let _embedding = angles(head);
    let [cos, sin] = [(); 2].map(|()| {
        let _unscaled = angles(head);
        angles(head)
    });
    [&cos, &sin].map(|table| functions::cast(torch, table, dtype))
}
