//! The modules of a list, and modules within modules.

use std::ops::Range;

use super::attention::SelfAttention;
use crate::coverage::NotCovered;
use crate::functions::{self, Convolution};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{Shape, Window};
use spec::{ActivationLayer, AttentionLayer, EmbeddingLayer, Layer, LinearLayer, Module};

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
    buffers: Vec<Tensor>,
    call: Call,
}

/// The `forward` of a module.
enum Call {
    Activation(ActivationLayer),
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
    Embedding,
    Positions,
    ToSequence,
    MeanPool,
    Attention(SelfAttention),
    /// Attention and a feed-forward layer: the layers that are added, and those after the addition.
    TransformerBlock([[Layers; 2]; 2]),
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
        let of_plain = |module: &TorchLayer| module.parameters.clone();
        self.modules.iter().flat_map(|module| module.collected(&of_plain)).collect()
    }

    /// The buffers of all modules, in their order.
    pub(super) fn buffers(&self) -> Vec<Tensor> {
        let of_plain = |module: &TorchLayer| match &module.call {
            Call::Attention(attention) => attention.mask.iter().cloned().collect(),
            _ => module.buffers.clone(),
        };
        self.modules.iter().flat_map(|module| module.collected(&of_plain)).collect()
    }

    /// The parameters and buffers of a module, in the order in which `module.to` moves them.
    pub(super) fn stored(&self, module: usize) -> Vec<Tensor> {
        self.modules[module].collected(&|plain| [&plain.parameters[..], &plain.buffers].concat())
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
    /// The tensors of a module without modules, or of each that it contains.
    fn collected(&self, of_plain: &dyn Fn(&TorchLayer) -> Vec<Tensor>) -> Vec<Tensor> {
        let of = |lists: &[Layers]| {
            let modules = lists.iter().flat_map(|layers| &layers.modules);
            modules.flat_map(|module| module.collected(of_plain)).collect()
        };
        match &self.call {
            Call::Block(layers) => of(std::slice::from_ref(layers)),
            Call::Residual(parts) => of(parts),
            Call::TransformerBlock(branches) => of(branches.as_flattened()),
            _ => of_plain(self),
        }
    }

    fn call(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        match (&self.call, &self.parameters[..]) {
            (Call::Activation(ActivationLayer { activation, inplace: true }), _) => {
                functions::activation_in_place(torch, x, activation.0)
            }
            (Call::Activation(layer), _) => functions::activation(torch, x.clone(), layer.activation.0),
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
            (Call::BatchNorm, [weight, bias]) => {
                let running = [&self.buffers[0], &self.buffers[1]];
                functions::batch_norm(torch, x, [weight, bias], running, trains)
            }
            (Call::GroupNorm(groups), [weight, bias]) => {
                functions::group_norm(torch, x, [weight, bias], *groups)
            }
            (Call::Flatten, _) => functions::flattened(torch, x),
            (Call::Embedding, [weight]) => functions::embedding(torch, weight, x),
            (Call::Positions, [weight]) => functions::add(torch, x, weight),
            (Call::ToSequence, _) => functions::to_sequence(torch, x),
            (Call::MeanPool, _) => functions::mean_pool(torch, x),
            (Call::Attention(attention), parameters) => attention.call(torch, x, parameters, trains),
            (Call::TransformerBlock(branches), _) => branches.iter().fold(x.clone(), |x, [added, after]| {
                let sum = {
                    let y = added.call_all(torch, &x, trains);
                    functions::add(torch, &x, &y)
                };
                drop(x);
                after.call_all(torch, &sum, trains)
            }),
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
    /// Of parameters.
    pub(super) dtype: DType,
    /// Whether parameters and buffers stay in host memory.
    pub(super) offloads: bool,
    /// Whether attention is written out.
    pub(super) writes_attention_out: bool,
}

impl Maker<'_> {
    /// The model's modules. `shape`: of the first one's input, which becomes that of the output.
    pub(super) fn layers(&self, modules: &[Module], prefix: &str, shape: &mut Shape) -> Layers {
        let module = |(index, module): (usize, &Module)| {
            let mut layer = self.layer(module, prefix, shape);
            if modules.get(index + 1).is_some_and(|next| matches!(next.layer, Layer::ToSequence)) {
                self.expect_channels_last(&mut layer.call, shape);
            }
            layer
        };
        let first = modules.first().map(|first| first.layer);
        if matches!(first, Some(Layer::ToSequence)) && !prefix.is_empty() {
            self.torch.refuse(NotCovered("to_sequence as the first layer of a module".to_owned()));
        }
        let modules: Vec<TorchLayer> = modules.iter().enumerate().map(module).collect();
        let has_head = prefix.is_empty()
            && modules.last().is_some_and(|last| !matches!(last.call, Call::Block(_) | Call::Residual(_)));
        Layers { modules, has_head }
    }

    /// The gradient of an image that becomes a sequence has its channels last. The model's input has none.
    fn expect_channels_last(&self, call: &mut Call, image: &Shape) {
        match call {
            Call::Conv2d(convolution) if convolution.groups == 1 => {
                let channels = image.dims()[0];
                convolution.copies_gradient = channels > 1 && image.elements() > channels;
            }
            _ => self.torch.refuse(NotCovered(
                "to_sequence after another layer than a convolution without groups".to_owned(),
            )),
        }
    }

    fn layer(&self, Module { path, layer }: &Module, prefix: &str, shape: &mut Shape) -> TorchLayer {
        let name = format!("{prefix}{path}.");
        let plain = |call| TorchLayer { parameters: Vec::new(), buffers: Vec::new(), call };
        let with = |weight: &[usize], has_bias: bool, call| {
            let bias = has_bias.then_some(&weight[..1]);
            let parameters =
                [weight].into_iter().chain(bias).map(|dims| self.parameter(&name, dims)).collect();
            TorchLayer { parameters, ..plain(call) }
        };
        let (channels, features) = ([shape.dims()[0]], [shape.last()]);
        match layer {
            Layer::Activation(layer) => plain(Call::Activation(*layer)),
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
                let call = Call::Conv2d(Convolution {
                    window: conv.window(),
                    groups: conv.groups,
                    copies_gradient: false,
                });
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
                let [mean, variance] = [(); 2].map(|()| self.tensor(Shape::new(&channels), DType::F32));
                let batches = self.tensor(Shape::new(&[]), DType::I64);
                TorchLayer { buffers: vec![mean, variance, batches], ..layer }
            }
            Layer::GroupNorm(norm) => with(&channels, true, Call::GroupNorm(norm.groups)),
            Layer::Flatten => {
                *shape = Shape::new(&[shape.elements()]);
                plain(Call::Flatten)
            }
            Layer::Embedding(EmbeddingLayer { count, dim }) => {
                *shape = Shape::new(&[shape.elements(), *dim]);
                with(&[*count, *dim], false, Call::Embedding)
            }
            Layer::Positions => with(shape.dims(), false, Call::Positions),
            Layer::ToSequence => {
                let [channels, height, width] = [0, 1, 2].map(|index| shape.dims()[index]);
                *shape = Shape::new(&[height * width, channels]);
                plain(Call::ToSequence)
            }
            Layer::MeanPool => {
                *shape = Shape::new(&features);
                plain(Call::MeanPool)
            }
            Layer::Attention(attention) => self.attention(&name, attention, shape),
            Layer::TransformerBlock(block) => {
                let branches = block.branches(features[0]);
                plain(Call::TransformerBlock(branches.each_ref().map(|branch| {
                    [branch.added(), branch.after()].map(|modules| self.layers(&modules, &name, shape))
                })))
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

    /// `model.to` moves the parameters of a module within a module first.
    fn attention(&self, name: &str, layer: &AttentionLayer, shape: &Shape) -> TorchLayer {
        let AttentionLayer { heads, causal, bias, dropout } = *layer;
        let [length, channels] = [shape.dims()[0], shape.last()];
        let head = channels / heads;
        if !self.writes_attention_out && (!head.is_multiple_of(8) || head > 256) {
            let reason = "fused attention of heads that are not 8, 16, .. 256 channels wide";
            self.torch.refuse(NotCovered(reason.to_owned()));
        }
        if length == 1 {
            let reason = "attention of one position, whose transposed views are contiguous";
            self.torch.refuse(NotCovered(reason.to_owned()));
        }
        let linear = |module: &str, features: usize| {
            let weight = self.parameter(module, &[features, channels]);
            [weight].into_iter().chain(bias.then(|| self.parameter(module, &[features]))).collect::<Vec<_>>()
        };
        let out = linear(&format!("{name}out_proj."), channels);
        let parameters = [linear(name, 3 * channels), out].concat();
        let mask =
            (self.writes_attention_out && causal).then(|| self.torch.empty(&[length, length], DType::Bool));
        let attention = SelfAttention {
            heads,
            is_causal: causal,
            has_dropout: dropout > 0.0,
            is_written_out: self.writes_attention_out,
            mask,
        };
        TorchLayer { parameters, buffers: Vec::new(), call: Call::Attention(attention) }
    }

    fn tensor(&self, shape: Shape, dtype: DType) -> Tensor {
        if self.offloads { self.torch.on_host(shape, dtype) } else { self.torch.tensor(shape, dtype) }
    }

    fn parameter(&self, module: &str, dims: &[usize]) -> Tensor {
        let tensor = self.tensor(Shape::new(dims), self.dtype);
        let is_frozen = self.freeze.iter().any(|layer| module.starts_with(&format!("{layer}.")));
        if is_frozen { tensor } else { tensor.leaf() }
    }
}
