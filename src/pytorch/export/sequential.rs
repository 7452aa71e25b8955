//! Layers in a list as modules of `torch.nn`, with the names of `nn.Sequential`.

use super::{Script, python_bool};
use spec::{
    BatchNormLayer, ConvLayer, GroupNormLayer, Layer, LinearLayer, Module, NormLayer, PoolLayer, Recompute,
    Sequential,
};

use ops::{Activation, Window};

/// The classes that torch.nn lacks.
const CLASSES: &str = "

class ReluSquared(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class RMSNorm(nn.Module):
    def __init__(self, channels, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.epsilon = epsilon

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * x.to(dtype)


class Block(nn.ModuleDict):
    def forward(self, x):
        for layer in self.values():
            x = layer(x)
        return x


class Residual(nn.Module):
    def __init__(self, layers, projection):
        super().__init__()
        self.layers = Block(layers)
        self.projection = Block(projection)

    def forward(self, x):
        y = self.layers(x)
        return self.projection(x) + y
";

/// The constants of a script.
pub(super) fn sizes(model: &Sequential, [batch, micro_batch]: [usize; 2]) -> String {
    let tuple = |dims: &[usize]| dims.iter().map(|dim| format!("{dim}, ")).collect::<String>();
    let (input, output) = (model.input_shape(), model.output());
    let (targets, classes) = output.dims().split_at(output.dims().len() - 1);
    format!(
        "BATCH, MICRO_BATCH = {batch}, {micro_batch}\n\
         INPUT, TARGETS, CLASSES = ({}), ({}), {}\n",
        tuple(input.dims()),
        tuple(targets),
        classes[0]
    )
}

impl Script<'_> {
    /// Whether the model has layers that cuDNN would compute.
    pub(super) fn has_images(&self) -> bool {
        self.config.model.sequential().is_some_and(Sequential::has_images)
    }

    pub(super) fn write_list(&mut self, model: &Sequential) {
        self.text.push_str(CLASSES);
        self.checkpoint_functions();
        let modules = model.modules();
        self.lines(&[
            "",
            "",
            "class Network(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            "        self.layers = nn.ModuleDict()",
        ]);
        let mut shape = model.input_shape();
        for Module { path, layer } in &modules {
            let written = python(layer, &mut shape);
            self.line(&format!("        self.layers[{:?}] = {written}", key(path)));
        }
        self.lines(&["", "    def forward(self, x, targets):"]);
        self.list_calls();
        let flat = model.output().dims().len() > 1;
        let loss = match flat {
            true => "F.cross_entropy(x.flatten(0, -2), targets.flatten())",
            false => "F.cross_entropy(x, targets)",
        };
        self.line(&match crate::coverage::returns_logits(self.config) {
            true => format!("        return {loss}, x"),
            false => format!("        return {loss}"),
        });
    }

    /// The calls of the modules, checkpointed as the strategy has it.
    fn list_calls(&mut self) {
        let each = "        for layer in self.layers.values():";
        match self.config.strategy.recompute {
            Recompute::Block => self.lines(&[each, "            x = checkpoint_in_training(self, layer, x)"]),
            Recompute::Save(_) => self.lines(&[each, "            x = checkpoint_selectively(self, layer, x)"]),
            Recompute::Every(every) => self.lines(&[
                "        for index, layer in enumerate(self.layers.values()):",
                &format!("            if index % {every} == 0:"),
                "                x = checkpoint_in_training(self, layer, x)",
                "            else:",
                "                x = layer(x)",
            ]),
            Recompute::Segments(segments) => self.lines(&[
                "        if self.training:",
                &format!(
                    "            x = checkpoint_sequential(list(self.layers.values()), {segments}, x, use_reentrant={})",
                    self.reentrant()
                ),
                "        else:",
                "            for layer in self.layers.values():",
                "                x = layer(x)",
            ]),
            _ => self.lines(&[each, "            x = layer(x)"]),
        }
    }
}

/// The key of a module in an `nn.ModuleDict`, which has no dots.
fn key(path: &str) -> String {
    path.replace('.', "/")
}

/// A layer as a module of PyTorch, for an input of this shape, which becomes that of the output.
fn python(layer: &Layer, shape: &mut ops::Shape) -> String {
    match layer {
        Layer::Activation(activation) => match activation.0 {
            Activation::Gelu => "nn.GELU()".to_owned(),
            Activation::GeluTanh => "nn.GELU(approximate=\"tanh\")".to_owned(),
            Activation::Relu => "nn.ReLU()".to_owned(),
            Activation::ReluSquared => "ReluSquared()".to_owned(),
            Activation::Silu => "nn.SiLU()".to_owned(),
            Activation::Tanh => "nn.Tanh()".to_owned(),
            Activation::Sigmoid => "nn.Sigmoid()".to_owned(),
            Activation::LeakyRelu => "nn.LeakyReLU()".to_owned(),
        },
        Layer::Softmax => "nn.Softmax(dim=-1)".to_owned(),
        Layer::Linear(LinearLayer { out, bias }) => {
            let features = shape.last();
            *shape = shape.with_last(*out);
            format!("nn.Linear({features}, {out}, bias={})", python_bool(*bias))
        }
        Layer::LayerNorm(NormLayer { epsilon }) => format!("nn.LayerNorm({}, eps={epsilon:e})", shape.last()),
        Layer::RmsNorm(NormLayer { epsilon }) => format!("RMSNorm({}, {epsilon:e})", shape.last()),
        Layer::Conv2d(layer) => {
            let ConvLayer { out, kernel, stride, padding, groups, bias } = *layer;
            let channels = shape.dims()[0];
            *shape = windows(layer.window(), out, shape);
            format!(
                "nn.Conv2d({channels}, {out}, {kernel}, stride={stride}, padding={padding}, groups={groups}, bias={})",
                python_bool(bias)
            )
        }
        Layer::MaxPool(layer) => pool("MaxPool2d", layer, shape),
        Layer::AvgPool(layer) => pool("AvgPool2d", layer, shape),
        Layer::GlobalPool => {
            *shape = ops::Shape::new(&[shape.dims()[0], 1, 1]);
            "nn.AdaptiveAvgPool2d(1)".to_owned()
        }
        Layer::BatchNorm(BatchNormLayer { epsilon, momentum }, _) => {
            let dimensions = if shape.dims().len() == 1 { 1 } else { 2 };
            let channels = shape.dims()[0];
            format!("nn.BatchNorm{dimensions}d({channels}, eps={epsilon:e}, momentum={momentum})")
        }
        Layer::GroupNorm(GroupNormLayer { groups, epsilon }) => {
            format!("nn.GroupNorm({groups}, {}, eps={epsilon:e})", shape.dims()[0])
        }
        Layer::Flatten => {
            *shape = ops::Shape::new(&[shape.elements()]);
            "nn.Flatten()".to_owned()
        }
        Layer::Dropout(rate) => format!("nn.Dropout({rate:?})"),
        Layer::Block(_) => {
            let [layers, _] = layer.inner();
            format!("Block({})", dict(&layers, "", shape))
        }
        Layer::Residual(_) => {
            let [layers, projection] = layer.inner();
            let mut projected = *shape;
            let layers = dict(&layers, "", shape);
            format!("Residual({layers}, {})", dict(&projection, "projection.", &mut projected))
        }
        Layer::Repeat(_) | Layer::Group(_) => unreachable!("the list was expanded into modules"),
    }
}

fn pool(class: &str, layer: &PoolLayer, shape: &mut ops::Shape) -> String {
    let Window { kernel, stride, padding } = layer.window();
    *shape = windows(layer.window(), shape.dims()[0], shape);
    format!("nn.{class}({}, stride={stride}, padding={padding})", kernel[0])
}

/// The shape of an image of these channels with an element for each place of the window.
fn windows(window: Window, channels: usize, image: &ops::Shape) -> ops::Shape {
    let [height, width] = [image.dims()[1], image.dims()[2]];
    let [height, width] = window.output([height, width]).expect("checked: the window fits");
    ops::Shape::new(&[channels, height, width])
}

/// Layers by their names without the prefix, as a dictionary.
fn dict(layers: &[Module], prefix: &str, shape: &mut ops::Shape) -> String {
    let entry = |Module { path, layer }: &Module| {
        let name = path.strip_prefix(prefix).unwrap_or(path);
        format!("{:?}: {}", key(name), python(layer, shape))
    };
    format!("{{{}}}", layers.iter().map(entry).collect::<Vec<_>>().join(", "))
}
