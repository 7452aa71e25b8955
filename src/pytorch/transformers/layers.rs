//! The layers that the library's decoders share.

use std::cell::RefCell;

use crate::coverage::gathered_dtype;
use crate::functions::{self, FourBitWeight};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Activation;
use spec::{ModelFamily, RunConfig, TorchOptions};

/// `nn.Linear`, a family's class in its place or bitsandbytes' `Linear4bit`, or PEFT's `lora.Linear` or `lora.Linear4bit`
/// around it.
pub(super) struct Linear {
    weight: Weight,
    /// The first call of `Linear4bit` casts it to the dtype of products.
    bias: RefCell<Option<Tensor>>,
    adapter: Option<Adapter>,
}

enum Weight {
    /// `nn.Linear`: [M, K]
    Plain(Tensor),
    /// `FalconLinear`, which multiplies by the transposed weight [M, K] and adds the bias.
    Falcon(Tensor),
    /// `Conv1D`: [K, M], with a bias.
    Conv1d(Tensor),
    FourBit(FourBitWeight),
}

/// PEFT's factors `lora_A` [R, K] and `lora_B` [M, R] of a layer with K inputs and M outputs.
struct Adapter {
    a: Tensor,
    b: Tensor,
    has_dropout: bool,
}

/// A target of adapters, and the module that it names.
type Named = (&'static str, &'static str);

/// The module of a family's class for a target of adapters.
pub(crate) fn peft_module(family: Option<ModelFamily>, target: &str) -> Option<&'static str> {
    let separate = [("attention.q", "q_proj"), ("attention.k", "k_proj"), ("attention.v", "v_proj")];
    let (input, others): (&[Named], &[Named]) = match family {
        // PEFT takes a name as the end of a path: both outputs are named `c_proj`.
        Some(ModelFamily::Gpt2) => (
            &[("attention.qkv", "c_attn")],
            &[("attention.out", "attn.c_proj"), ("mlp.up", "c_fc"), ("mlp.out", "mlp.c_proj")],
        ),
        Some(ModelFamily::GptNeox | ModelFamily::Falcon) => (
            &[("attention.qkv", "query_key_value")],
            &[("attention.out", "dense"), ("mlp.up", "dense_h_to_4h"), ("mlp.out", "dense_4h_to_h")],
        ),
        Some(ModelFamily::Phi) => {
            (&separate, &[("attention.out", "dense"), ("mlp.up", "fc1"), ("mlp.out", "fc2")])
        }
        Some(ModelFamily::Phi3) => (
            &[("attention.qkv", "qkv_proj")],
            &[("attention.out", "o_proj"), ("mlp.gate_up", "gate_up_proj"), ("mlp.out", "down_proj")],
        ),
        Some(ModelFamily::Starcoder2) => {
            (&separate, &[("attention.out", "o_proj"), ("mlp.up", "c_fc"), ("mlp.out", "c_proj")])
        }
        _ => (
            &separate,
            &[
                ("attention.out", "o_proj"),
                ("mlp.gate", "gate_proj"),
                ("mlp.up", "up_proj"),
                ("mlp.out", "down_proj"),
            ],
        ),
    };
    input.iter().chain(others).find(|(path, _)| *path == target).map(|(_, module)| *module)
}

/// Makes the parameters of a layer.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    torch: &'a Torch,
    config: &'a RunConfig,
    is_trained: bool,
    /// Whether PEFT trains a copy of the layer's modules beside adapters (`modules_to_save`).
    is_copied: bool,
}

/// A parameter of a module outside blocks.
#[derive(Clone)]
pub(super) struct ModuleWeight {
    pub(super) weight: Tensor,
    /// The frozen weight that a trained one was copied from.
    _original: Option<Tensor>,
}

impl<'a> Maker<'a> {
    /// The maker of a layer's parameters. With adapters, the model is frozen.
    pub(super) fn new(torch: &'a Torch, config: &'a RunConfig, layer: &str) -> Maker<'a> {
        let strategy = &config.strategy;
        let is_frozen = strategy.lora.is_some() || strategy.freeze.iter().any(|frozen| frozen == layer);
        let trained = strategy.lora.as_ref().map_or(&[][..], |lora| &lora.trained);
        let is_copied = trained.iter().any(|trained| trained == layer);
        Maker { torch, config, is_trained: !is_frozen, is_copied }
    }

    pub(super) fn config(self) -> &'a RunConfig {
        self.config
    }

    pub(super) fn options(self) -> TorchOptions {
        self.torch.options
    }

    /// The weight of a module.
    pub(super) fn module(self, dims: &[usize]) -> ModuleWeight {
        let [weight] = self.modules([dims]);
        weight
    }

    /// The parameters of a module, or their trained copies beside adapters.
    pub(super) fn modules<const N: usize>(self, dims: [&[usize]; N]) -> [ModuleWeight; N] {
        dims.map(|dims| self.parameter(dims)).map(|weight| match self.is_copied {
            true => ModuleWeight { weight: self.torch.like(&weight).leaf(), _original: Some(weight) },
            false => ModuleWeight { weight, _original: None },
        })
    }

    /// A parameter in the dtype that it has in forward, if ranks gather it in one.
    fn gathered(self, parameter: &Tensor) -> Tensor {
        match gathered_dtype(self.config) {
            Some(dtype) => parameter.with_dtype(dtype),
            None => parameter.clone(),
        }
    }

    pub(super) fn parameter(self, dims: &[usize]) -> Tensor {
        let tensor = self.torch.empty(dims, super::dtype(self.config));
        let tensor = self.gathered(&tensor);
        if self.is_trained { tensor.leaf() } else { tensor }
    }

    /// `path`: the layer's path in its block, as in the targets of adapters.
    pub(super) fn linear(self, path: &str, inner: usize, outer: usize, bias: bool) -> Linear {
        let family = self.config.model.transformer().and_then(super::family);
        let weight = match (super::four_bit(self.config), family) {
            (Some(double), _) => {
                let dtype = super::compute_dtype(self.config);
                Weight::FourBit(FourBitWeight::new(self.torch, [outer, inner], dtype, double))
            }
            (None, Some(ModelFamily::Gpt2)) => Weight::Conv1d(self.parameter(&[inner, outer])),
            (None, Some(ModelFamily::Falcon)) => Weight::Falcon(self.parameter(&[outer, inner])),
            (None, _) => Weight::Plain(self.parameter(&[outer, inner])),
        };
        let bias = RefCell::new(bias.then(|| self.parameter(&[outer])));
        let lora = self.config.strategy.lora.as_ref();
        let adapter = lora.filter(|lora| lora.targets.iter().any(|target| target == path)).map(|lora| {
            let dtype = super::adapter_dtype(self.config);
            let factor = |dims: [usize; 2]| self.gathered(&self.torch.empty(&dims, dtype)).leaf();
            let (a, b) = (factor([lora.rank, inner]), factor([outer, lora.rank]));
            Adapter { a, b, has_dropout: lora.dropout > 0.0 }
        });
        Linear { weight, bias, adapter }
    }
}

impl Linear {
    /// x [.., K]. PEFT computes the factors' product in their dtype.
    pub(super) fn forward(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        let mut result = self.base(torch, x);
        let Some(Adapter { a, b, has_dropout }) = &self.adapter else { return result };
        let dtype = result.dtype();
        // Under autocast, `lora.Linear4bit` leaves casts to it.
        let is_four_bit = matches!(self.weight, Weight::FourBit(_));
        let converts = !is_four_bit || torch.autocast().is_none();
        if is_four_bit {
            result = functions::copied(torch, &result);
        }
        let x = if converts { functions::cast(torch, x, a.dtype()) } else { x.clone() };
        let mut update = {
            let product = {
                let inner = {
                    let dropped = functions::dropout_if(torch, x.clone(), *has_dropout && trains);
                    functions::linear(torch, &dropped, a, None)
                };
                functions::linear(torch, &inner, b, None)
            };
            functions::scale(torch, &product)
        };
        if is_four_bit {
            if converts {
                update = functions::cast(torch, &update, dtype);
            }
            return functions::add(torch, &result, &update);
        }
        result = functions::add(torch, &result, &update);
        drop(update);
        functions::cast(torch, &result, dtype)
    }

    /// The base layer.
    fn base(&self, torch: &Torch, x: &Tensor) -> Tensor {
        let bias = &self.bias;
        match &self.weight {
            Weight::Plain(weight) => functions::linear(torch, x, weight, bias.borrow().as_ref()),
            Weight::Falcon(weight) => {
                let product = functions::matmul(torch, x, weight);
                match &*bias.borrow() {
                    None => product,
                    Some(bias) => functions::add(torch, &product, bias),
                }
            }
            Weight::Conv1d(weight) => {
                let bias = bias.borrow();
                functions::addmm(torch, bias.as_ref().expect("`Conv1D` has a bias"), x, weight)
            }
            Weight::FourBit(weight) => weight.linear(torch, x, bias),
        }
    }

    /// The parameters that may be trained.
    pub(super) fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let weight = match &self.weight {
            Weight::Plain(weight) | Weight::Falcon(weight) | Weight::Conv1d(weight) => Some(weight.clone()),
            Weight::FourBit(_) => None,
        };
        let factors = self.adapter.iter().flat_map(|adapter| [adapter.a.clone(), adapter.b.clone()]);
        weight.into_iter().chain(self.bias.borrow().clone()).chain(factors)
    }
}

/// `ACT2FN[..]`: GELU by tanh is `gelu_new`, which the library writes out.
pub(super) fn activation(torch: &Torch, x: Tensor, activation: Activation) -> Tensor {
    match activation {
        Activation::GeluTanh => new_gelu(torch, &x),
        Activation::ReluSquared => {
            // The argument lives until the function returns.
            let relu = functions::activation(torch, x.clone(), Activation::Relu);
            functions::power(torch, &relu)
        }
        Activation::Gelu
        | Activation::Relu
        | Activation::Silu
        | Activation::Tanh
        | Activation::Sigmoid
        | Activation::LeakyRelu => functions::activation(torch, x, activation),
    }
}

/// `0.5 * x * (1.0 + torch.tanh(c * (x + 0.044715 * torch.pow(x, 3.0))))`
fn new_gelu(torch: &Torch, x: &Tensor) -> Tensor {
    let half = functions::scale(torch, x);
    let increased = {
        let mut inner = functions::power(torch, x);
        inner = functions::scale(torch, &inner);
        inner = functions::add(torch, x, &inner);
        inner = functions::scale(torch, &inner);
        inner = functions::tanh(torch, &inner);
        functions::add_number(torch, &inner)
    };
    functions::mul(torch, &half, &increased)
}
