//! The modules of a list, and modules within modules.

use std::ops::Range;

use crate::coverage::NotCovered;
use crate::functions::{self, Convolution};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{Activation, Shape, Window};
use spec::{Layer, LinearLayer, Module};

/// Modules that are called one after the other.
#[derive(Default)]
pub(super) struct Layers {
    modules: Vec<TorchLayer>,
    /// Whether the last one computes the logits.
    has_head: bool,
}

/// A module, with its parameters in the order of PyTorch's: weight, bias.
struct TorchLayer {
    parameters: Vec<Tensor>,
    /// Running statistics and the number of batches.
    _buffers: Vec<Tensor>,
    call: Call,
}

/// The `forward` of a module.
enum Call {
    Activation(Activation),
    Softmax,
    Linear,
    LayerNorm,
    RmsNorm,
    Conv2d(Convolution),
    MaxPool(Window),
    AvgPool(Window),
    GlobalPool,
    BatchNorm,
    GroupNorm(usize),
    Flatten,
    Dropout,
    Block(Layers),
    /// Layers and projection.
    Residual([Layers; 2]),
}

impl Layers {
    pub(super) fn len(&self) -> usize {
        self.modules.len()
    }

    /// The parameters of all modules, in their order.
    pub(super) fn parameters(&self) -> Vec<Tensor> {
        let of = |module: &TorchLayer| match &module.call {
            Call::Block(layers) => layers.parameters(),
            Call::Residual(parts) => parts.iter().flat_map(Layers::parameters).collect(),
            _ => module.parameters.clone(),
        };
        self.modules.iter().flat_map(of).collect()
    }

    /// `for layer in layers: x = layer(x)`. The caller holds x until it returns.
    pub(super) fn call(&self, torch: &Torch, modules: Range<usize>, x: &Tensor, trains: bool) -> Tensor {
        let mut x = x.clone();
        for index in modules {
            let computes_logits = self.has_head && index + 1 == self.len();
            let purpose = if computes_logits { Purpose::Loss } else { torch.purpose() };
            x = torch.with_purpose(purpose, || self.modules[index].call(torch, &x, trains));
        }
        x
    }

    fn call_all(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        self.call(torch, 0..self.len(), x, trains)
    }
}

impl TorchLayer {
    fn call(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        match (&self.call, &self.parameters[..]) {
            (Call::Activation(activation), _) => functions::activation(torch, x.clone(), *activation),
            (Call::Softmax, _) => {
                // Under autocast, in fp32.
                let dtype = if torch.autocast().is_some() { DType::F32 } else { x.dtype() };
                functions::softmax(torch, x, dtype)
            }
            (Call::Linear, [weight, bias @ ..]) => functions::linear(torch, x, weight, bias.first()),
            (Call::LayerNorm, [weight, bias]) => functions::layer_norm(torch, x, weight, bias),
            (Call::RmsNorm, [weight]) => functions::rms_norm(torch, x, weight, false),
            (Call::Conv2d(convolution), [weight, bias @ ..]) => {
                functions::conv2d(torch, x, weight, bias.first(), *convolution)
            }
            (Call::MaxPool(window), _) => functions::max_pool2d(torch, x, *window),
            (Call::AvgPool(window), _) => functions::avg_pool2d(torch, x, *window),
            (Call::GlobalPool, _) => functions::global_pool(torch, x),
            (Call::BatchNorm, [weight, bias]) => functions::batch_norm(torch, x, [weight, bias], trains),
            (Call::GroupNorm(groups), [weight, bias]) => {
                functions::group_norm(torch, x, [weight, bias], *groups)
            }
            (Call::Flatten, _) => functions::flattened(torch, x),
            (Call::Dropout, _) => functions::dropout_if(torch, x.clone(), trains),
            (Call::Block(layers), _) => layers.call_all(torch, x, trains),
            (Call::Residual([layers, projection]), _) => {
                // `self.projection(x) + y`
                let y = layers.call_all(torch, x, trains);
                let projected = projection.call_all(torch, x, trains);
                functions::add(torch, &projected, &y)
            }
            _ => unreachable!("a module has the parameters of its kind"),
        }
    }
}

/// Makes modules on the device.
pub(super) struct Maker<'a> {
    pub(super) torch: &'a Torch,
    /// Frozen layers.
    pub(super) freeze: &'a [String],
}

impl Maker<'_> {
    /// The model's modules. `shape`: of the first one's input, which becomes that of the output.
    pub(super) fn layers(&self, modules: &[Module], prefix: &str, shape: &mut Shape) -> Layers {
        let modules: Vec<TorchLayer> =
            modules.iter().map(|module| self.layer(module, prefix, shape)).collect();
        let has_head = prefix.is_empty()
            && modules.last().is_some_and(|last| !matches!(last.call, Call::Block(_) | Call::Residual(_)));
        Layers { modules, has_head }
    }

    fn layer(&self, Module { path, layer }: &Module, prefix: &str, shape: &mut Shape) -> TorchLayer {
        let name = format!("{prefix}{path}.");
        let plain = |call| TorchLayer { parameters: Vec::new(), _buffers: Vec::new(), call };
        let with = |weight: &[usize], has_bias: bool, call| {
            let bias = has_bias.then_some(&weight[..1]);
            let parameters =
                [weight].into_iter().chain(bias).map(|dims| self.parameter(&name, dims)).collect();
            TorchLayer { parameters, ..plain(call) }
        };
        let (channels, features) = ([shape.dims()[0]], [shape.last()]);
        match layer {
            Layer::Activation(activation) => plain(Call::Activation(activation.0)),
            Layer::Softmax => plain(Call::Softmax),
            Layer::Linear(LinearLayer { out, bias }) => {
                let weight = [*out, features[0]];
                *shape = shape.with_last(*out);
                if weight.contains(&1) {
                    self.torch.refuse(NotCovered("linear layers of one feature".to_owned()));
                }
                with(&weight, *bias, Call::Linear)
            }
            Layer::LayerNorm(_) => with(&features, true, Call::LayerNorm),
            Layer::RmsNorm(_) => with(&features, false, Call::RmsNorm),
            Layer::Conv2d(conv) => {
                let weight = [conv.out, channels[0] / conv.groups, conv.kernel, conv.kernel];
                *shape = functions::windows(*shape, conv.out, conv.window());
                let call = Call::Conv2d(Convolution { window: conv.window(), groups: conv.groups });
                with(&weight, conv.bias, call)
            }
            Layer::MaxPool(pool) => {
                *shape = functions::windows(*shape, channels[0], pool.window());
                plain(Call::MaxPool(pool.window()))
            }
            Layer::AvgPool(pool) => {
                *shape = functions::windows(*shape, channels[0], pool.window());
                plain(Call::AvgPool(pool.window()))
            }
            Layer::GlobalPool => {
                *shape = Shape::new(&[channels[0], 1, 1]);
                plain(Call::GlobalPool)
            }
            Layer::BatchNorm(..) => {
                let layer = with(&channels, true, Call::BatchNorm);
                let [mean, variance] = [(); 2].map(|()| self.torch.empty(&channels, DType::F32));
                TorchLayer { _buffers: vec![mean, variance, self.torch.scalar(DType::I64)], ..layer }
            }
            Layer::GroupNorm(norm) => with(&channels, true, Call::GroupNorm(norm.groups)),
            Layer::Flatten => {
                *shape = Shape::new(&[shape.elements()]);
                plain(Call::Flatten)
            }
            Layer::Dropout(_) => plain(Call::Dropout),
            Layer::Block(_) => {
                let [layers, _] = layer.inner();
                plain(Call::Block(self.layers(&layers, &name, shape)))
            }
            Layer::Residual(_) => {
                let mut projected = *shape;
                let [layers, projection] = layer.inner();
                let layers = self.layers(&layers, &name, shape);
                plain(Call::Residual([layers, self.layers(&projection, &name, &mut projected)]))
            }
            Layer::Repeat(_) | Layer::Group(_) => unreachable!("the list was expanded into modules"),
        }
    }

    fn parameter(&self, module: &str, dims: &[usize]) -> Tensor {
        let tensor = self.torch.empty(dims, DType::F32);
        let is_frozen = self.freeze.iter().any(|layer| module.starts_with(&format!("{layer}.")));
        if is_frozen { tensor } else { tensor.leaf() }
    }
}
