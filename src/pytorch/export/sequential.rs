//! Layers in a list as modules of `torch.nn`, with the names of `nn.Sequential`.

use super::{Script, python_bool};
use spec::{
    ActivationLayer, ActivationOffload, Attention, AttentionLayer, BatchNormLayer, ConvLayer,
    CrossEntropyLoss, EmbeddingLayer, GroupNormLayer, Layer, LinearLayer, Module, NormLayer, OutputLoss,
    PoolLayer, Recompute, Sequential,
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

const SEQUENCE_CLASSES: &str = "

class Positions(nn.Module):
    def __init__(self, length, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, channels).normal_(std=0.02))

    def forward(self, x):
        return x + self.weight


class ToSequence(nn.Module):
    def forward(self, x):
        return x.flatten(2).transpose(1, 2).contiguous()


class MeanPool(nn.Module):
    def forward(self, x):
        return x.mean(1)


class TransformerBlock(nn.ModuleDict):
    def __init__(self, layers, branches):
        super().__init__(layers)
        self.branches = branches

    def forward(self, x):
        for added, after in self.branches:
            x = x + self.call(added, x)
            x = self.call(after, x)
        return x

    def call(self, names, x):
        for name in names:
            x = self[name](x)
        return x


class Attention(nn.MultiheadAttention):
    def __init__(self, length, channels, heads, causal, bias, dropout):
        super().__init__(channels, heads, dropout, bias)
        self.causal = causal
        MASK

    def forward(self, x):
        return self.out_proj(self.attend(F.linear(x, self.in_proj_weight, self.in_proj_bias)))

    def attend(self, x):
        q, k, v = x.split(self.embed_dim, -1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (q, k, v))
        ATTEND
        return y.transpose(1, 2).flatten(-2)
";

const FUSED: [&str; 2] = [
    "",
    "        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
",
];

const WRITTEN_OUT: [&str; 2] = [
    "        if causal:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            self.register_buffer(\"mask\", mask, persistent=False)
",
    "        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        if self.causal:
            scores = scores.masked_fill(self.mask, float(\"-inf\"))
        scores = F.softmax(scores, -1)
        if self.dropout > 0.0:
            scores = F.dropout(scores, self.dropout, self.training)
        y = scores @ v
",
];

const FUNCTIONS: &str = include_str!("list_functions.py");

/// The micro-batches of inputs without targets.
const INPUTS_ONLY: &str = "

def micro_batches(batches, step):
    [inputs] = batches
    return zip(inputs[step % len(inputs)].split(MICRO_BATCH))
";

/// The functions of a script that are not those of transformers.
pub(super) fn functions(model: &Sequential) -> String {
    let classes = "torch.randint(0, CLASSES, (STEPS + 2, BATCH, *TARGETS))";
    let functions = match model.loss {
        OutputLoss::CrossEntropy(_) => FUNCTIONS.to_owned(),
        OutputLoss::SquaredError | OutputLoss::BinaryCrossEntropy => FUNCTIONS
            .replace(classes, "torch.rand(STEPS + 2, BATCH, *TARGETS)")
            .replace("[\"targets\"].long()", "[\"targets\"]"),
        OutputLoss::Sum => {
            let functions = FUNCTIONS
                .replace("Inputs and targets", "Inputs")
                .replace(&format!(", {classes}"), "")
                .replace(", batches[\"targets\"].long()", "");
            functions + INPUTS_ONLY
        }
    };
    if model.ids().is_none() {
        return functions;
    }
    functions
        .replace("torch.randn(STEPS + 2, BATCH, *INPUT)", "torch.randint(0, IDS, (STEPS + 2, BATCH, *INPUT))")
        .replace("batches[\"input\"]", "batches[\"input\"].long()")
}

/// The constants of a script.
pub(super) fn sizes(model: &Sequential, [batch, micro_batch]: [usize; 2]) -> String {
    let tuple = |dims: &[usize]| dims.iter().map(|dim| format!("{dim}, ")).collect::<String>();
    let (input, output) = (model.input_shape(), model.output());
    let (leading, classes) = output.dims().split_at(output.dims().len() - 1);
    let input = tuple(input.dims());
    let parts = match model.loss {
        OutputLoss::CrossEntropy(_) => {
            format!("INPUT, TARGETS, CLASSES = ({input}), ({}), {}", tuple(leading), classes[0])
        }
        OutputLoss::SquaredError | OutputLoss::BinaryCrossEntropy => {
            format!("INPUT, TARGETS = ({input}), ({})", tuple(output.dims()))
        }
        OutputLoss::Sum => format!("INPUT = ({input})"),
    };
    let ids = model.ids().map_or_else(String::new, |ids| format!("IDS = {ids}\n"));
    format!("BATCH, MICRO_BATCH = {batch}, {micro_batch}\n{parts}\n{ids}")
}

impl Script<'_> {
    /// Whether the model has layers that cuDNN would compute.
    pub(super) fn has_images(&self) -> bool {
        self.config.model.sequential().is_some_and(Sequential::has_images)
    }

    pub(super) fn write_list(&mut self, model: &Sequential) {
        self.text.push_str(CLASSES);
        if model.has_sequences() {
            let [mask, attend] = match self.config.strategy.attention {
                Attention::Fused => FUSED,
                Attention::Materialized => WRITTEN_OUT,
            };
            let classes =
                SEQUENCE_CLASSES.replace("        MASK\n", mask).replace("        ATTEND\n", attend);
            self.text.push_str(&classes);
        }
        self.checkpoint_functions();
        self.on_device();
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
        let targets = if model.targets_part().is_some() { ", targets" } else { "" };
        self.lines(&["", &format!("    def forward(self, x{targets}):")]);
        self.list_calls();
        let classes = match model.output().dims().len() > 1 {
            true => "x.flatten(0, -2), targets.flatten()",
            false => "x, targets",
        };
        let loss = match model.loss {
            OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing: 0.0 }) => {
                format!("F.cross_entropy({classes})")
            }
            OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing }) => {
                format!("F.cross_entropy({classes}, label_smoothing={label_smoothing:?})")
            }
            OutputLoss::SquaredError => "F.mse_loss(x, targets)".to_owned(),
            OutputLoss::BinaryCrossEntropy => "F.binary_cross_entropy_with_logits(x, targets)".to_owned(),
            OutputLoss::Sum => "x.sum()".to_owned(),
        };
        self.line(&match crate::coverage::returns_logits(self.config) {
            true => format!("        return {loss}, x"),
            false => format!("        return {loss}"),
        });
    }

    /// The calls of the modules, checkpointed as the strategy has it.
    fn list_calls(&mut self) {
        let each = "        for layer in self.layers.values():";
        let strategy = &self.config.strategy;
        if strategy.offload.parameters {
            return self.lines(&[each, "            x = on_device(layer, x)"]);
        }
        match strategy.recompute {
            Recompute::Block if strategy.offload.activations != ActivationOffload::Nothing => self.lines(&[
                &format!("        with {}:", self.save_on_cpu()),
                &format!("    {each}"),
                "                x = checkpoint_in_training(self, layer, x)",
            ]),
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
        Layer::Activation(ActivationLayer { activation, inplace }) => {
            let inplace = if *inplace { "inplace=True" } else { "" };
            match activation.0 {
                Activation::Gelu => "nn.GELU()".to_owned(),
                Activation::GeluTanh => "nn.GELU(approximate=\"tanh\")".to_owned(),
                Activation::Relu => format!("nn.ReLU({inplace})"),
                Activation::ReluSquared => "ReluSquared()".to_owned(),
                Activation::Silu => format!("nn.SiLU({inplace})"),
                Activation::Tanh => "nn.Tanh()".to_owned(),
                Activation::Sigmoid => "nn.Sigmoid()".to_owned(),
                Activation::LeakyRelu => format!("nn.LeakyReLU({inplace})"),
            }
        }
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
        Layer::Embedding(EmbeddingLayer { count, dim }) => {
            *shape = ops::Shape::new(&[shape.elements(), *dim]);
            format!("nn.Embedding({count}, {dim})")
        }
        Layer::Positions => {
            let [length, channels] = [shape.dims()[0], shape.last()];
            format!("Positions({length}, {channels})")
        }
        Layer::ToSequence => {
            let [channels, height, width] = [0, 1, 2].map(|index| shape.dims()[index]);
            *shape = ops::Shape::new(&[height * width, channels]);
            "ToSequence()".to_owned()
        }
        Layer::MeanPool => {
            *shape = ops::Shape::new(&[shape.last()]);
            "MeanPool()".to_owned()
        }
        Layer::Attention(AttentionLayer { heads, causal, bias, dropout }) => {
            let [length, channels] = [shape.dims()[0], shape.last()];
            let [causal, bias] = [*causal, *bias].map(python_bool);
            format!(
                "Attention({length}, {channels}, {heads}, causal={causal}, bias={bias}, dropout={dropout:?})"
            )
        }
        Layer::TransformerBlock(block) => {
            let branches = block.branches(shape.last());
            let parts: Vec<[Vec<Module>; 2]> =
                branches.iter().map(|branch| [branch.added(), branch.after()]).collect();
            let names = |modules: &Vec<Module>| {
                let names: Vec<&str> = modules.iter().map(|module| module.path.as_str()).collect();
                format!("{names:?}")
            };
            let branches: Vec<String> =
                parts.iter().map(|[added, after]| format!("({}, {})", names(added), names(after))).collect();
            let layers = parts.concat().concat();
            format!("TransformerBlock({}, [{}])", dict(&layers, "", shape), branches.join(", "))
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
