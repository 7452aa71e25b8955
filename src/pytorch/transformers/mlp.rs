//! The feed-forward layers of the library's decoders.
//!
//! C channels, F hidden channels.

use super::class::Class;
use super::layers::{Linear, Maker, activation};
use crate::functions;
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Activation;
use spec::{MlpActivation, TorchKernels, Transformer};

pub(super) struct Mlp {
    /// The layers from C to F channels.
    inputs: InputLayers,
    down: Linear,
    activation: Activation,
    /// Whether the output has dropout.
    has_dropout: bool,
}

enum InputLayers {
    /// `gate_proj` and `up_proj`
    Gate(Box<[Linear; 2]>),
    /// `gate_up_proj` (Phi-3)
    Stacked(Linear),
    /// `c_fc`, `fc1`, `dense_h_to_4h`
    Plain(Linear),
}

impl Mlp {
    pub(super) fn new(maker: Maker<'_>, model: &Transformer, class: Class) -> Mlp {
        let (channels, width) = (model.d_model, model.d_ff);
        let into = |path: &str, width: usize| maker.linear(path, channels, width, model.bias);
        let (inputs, activation) = match model.activation {
            MlpActivation::Plain(activation) => (InputLayers::Plain(into("mlp.up", width)), activation),
            MlpActivation::Gate(activation) if class == Class::Phi3 => {
                (InputLayers::Stacked(into("mlp.gate_up", 2 * width)), activation)
            }
            MlpActivation::Gate(activation) => (
                InputLayers::Gate(Box::new(["mlp.gate", "mlp.up"].map(|path| into(path, width)))),
                activation,
            ),
        };
        Mlp {
            inputs,
            down: maker.linear("mlp.out", width, channels, model.bias),
            activation: class.activation(activation),
            has_dropout: class == Class::Starcoder2 && model.dropout.residual > 0.0,
        }
    }

    /// Two linear layers and an activation as `ACT2FN` has it.
    pub(super) fn plain(maker: Maker<'_>, model: &Transformer, has_dropout: bool) -> Mlp {
        let MlpActivation::Plain(activation) = model.activation else { unreachable!("checked: no gate") };
        let (channels, width) = (model.d_model, model.d_ff);
        Mlp {
            inputs: InputLayers::Plain(maker.linear("mlp.up", channels, width, model.bias)),
            down: maker.linear("mlp.out", width, channels, model.bias),
            activation,
            has_dropout,
        }
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let inputs = match &self.inputs {
            InputLayers::Gate(linear) => &linear[..],
            InputLayers::Stacked(linear) | InputLayers::Plain(linear) => std::slice::from_ref(linear),
        };
        inputs.iter().chain([&self.down]).flat_map(Linear::parameters)
    }

    /// x [B, T, C]
    pub(super) fn forward(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        let activation = |x: Tensor| activation(torch, x, self.activation);
        let uses_liger = torch.options.kernels == TorchKernels::Liger;
        // The variable `gate` of Phi-3 lives until the function returns.
        let (hidden, _gate) = match &self.inputs {
            InputLayers::Gate(linear) => {
                let [gate, up] = &**linear;
                if uses_liger {
                    let hidden = {
                        let factors = [gate, up].map(|linear| linear.forward(torch, x, trains));
                        functions::liger_gated(torch, factors.each_ref(), false)
                    };
                    return self.down.forward(torch, &hidden, trains);
                }
                let gate = activation(gate.forward(torch, x, trains));
                let up = up.forward(torch, x, trains);
                (functions::mul(torch, &gate, &up), None)
            }
            InputLayers::Stacked(linear) => {
                let stacked = linear.forward(torch, x, trains);
                let parts = functions::split(torch, &stacked, 2);
                drop(stacked);
                if uses_liger {
                    let hidden = functions::liger_gated(torch, [&parts[0], &parts[1]], true);
                    return self.down.forward(torch, &hidden, trains);
                }
                let gate = activation(parts[0].clone());
                (functions::mul(torch, &parts[1], &gate), Some(parts[0].clone()))
            }
            InputLayers::Plain(linear) => (activation(linear.forward(torch, x, trains)), None),
        };
        let output = self.down.forward(torch, &hidden, trains);
        drop(hidden);
        functions::dropout_if(torch, output, self.has_dropout && trains)
    }
}
