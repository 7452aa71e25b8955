//! The shapes between layers, and limits of their sizes.

use super::layer::{
    ConvLayer, GroupNormLayer, Layer, LayerGroup, LinearLayer, PoolLayer, Repeat, ResidualLayer,
};
use super::modules::{MOST_MODULES, count, repeated_name};
use super::sequence::{AttentionLayer, Branch, EmbeddingLayer};
use super::{LAYERS, Sequential};
use crate::reader::error::Problem;
use crate::reader::tree::{Node, Table, Value};
use crate::schema::rules::attach_span;
use ops::{Shape, Window};

/// Dimensions of a sample: a batch has one more.
const MOST_DIMENSIONS: usize = 3;

/// The sizes of some layers.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Of the output.
    shape: Shape,
    parameters: u128,
    /// Elements of all outputs, for one sample.
    elements: u128,
    /// Multiplications of all matmuls, for one sample.
    products: u128,
    /// The fewest values of a channel, for one sample, that a batch norm gets.
    normalised: Option<usize>,
    /// What else needs the output in PyTorch.
    needed_by: Option<Reader>,
}

/// What needs a value in PyTorch besides the next layer, which then cannot overwrite it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reader {
    /// The backward of the layer that computed it.
    Backward(&'static str),
    /// The other branch of a residual layer.
    Residual,
}

/// Layers whose shapes do not fit.
#[derive(Debug)]
struct Misfit {
    /// The way to the layer, from the innermost list outwards.
    steps: Vec<Step>,
    message: String,
    help: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Index(usize),
    Key(&'static str),
}

impl Misfit {
    fn within(mut self, step: Step) -> Misfit {
        self.steps.push(step);
        self
    }
}

impl Sizes {
    /// Of no layers.
    fn of(Input { shape, needed_by, .. }: Input) -> Sizes {
        Sizes { shape, parameters: 0, elements: 0, products: 0, normalised: None, needed_by }
    }

    /// These layers, and others after them.
    fn then(self, next: Sizes) -> Sizes {
        self.and(next, 1)
    }

    /// These layers, and others after them, several times.
    fn and(self, next: Sizes, times: u128) -> Sizes {
        let sum = |own: u128, next: u128| own.saturating_add(next.saturating_mul(times));
        Sizes {
            shape: next.shape,
            needed_by: next.needed_by,
            parameters: sum(self.parameters, next.parameters),
            elements: sum(self.elements, next.elements),
            products: sum(self.products, next.products),
            normalised: [self.normalised, next.normalised].into_iter().flatten().min(),
        }
    }
}

/// The number of elements, which may exceed a usize.
fn elements(shape: Shape) -> u128 {
    shape.dims().iter().map(|&dim| dim as u128).product()
}

fn misfit(message: String, help: &'static str) -> Misfit {
    Misfit { steps: Vec::new(), message, help }
}

/// An activation in place, whose input something else needs.
fn overwritten(reader: Reader) -> Misfit {
    let needed_by = match reader {
        Reader::Backward(layer) => format!("the backward of `{layer}` needs in PyTorch"),
        Reader::Residual => "the other branch of `residual` needs too".to_owned(),
    };
    misfit(
        format!("inplace = true overwrites a value that {needed_by}"),
        "remove inplace, or change the order",
    )
}

/// The sizes of an image [channels, height, width].
fn image(input: Shape, layer: &str) -> Result<[usize; 3], Misfit> {
    <[usize; 3]>::try_from(input.dims()).map_err(|_| {
        misfit(
            format!("{layer} takes images of shape [channels, height, width], not {input}"),
            "set model.sequential.input to three sizes, and use it before flatten",
        )
    })
}

/// The height and width of the output of a window.
fn slide(window: Window, size: [usize; 2]) -> Result<[usize; 2], Misfit> {
    window.output(size).ok_or_else(|| {
        let [height, width] = size;
        misfit(
            format!("the window of {} does not fit images of {height}x{width}", window.kernel[0]),
            "use a smaller kernel, more padding, or fewer strides and pools before it",
        )
    })
}

/// The sizes of a sequence [length, channels].
fn sequence(input: Shape, layer: &str) -> Result<[usize; 2], Misfit> {
    <[usize; 2]>::try_from(input.dims()).map_err(|_| {
        misfit(
            format!("{layer} takes sequences of shape [length, channels], not {input}"),
            "put embedding before it, or to_sequence between it and an image",
        )
    })
}

/// The input of a layer.
#[derive(Clone, Copy, Debug)]
struct Input {
    shape: Shape,
    /// Whether it is the model's input, and that is ids.
    ids: bool,
    needed_by: Option<Reader>,
}

impl Input {
    fn of(shape: Shape) -> Input {
        Input { shape, ids: false, needed_by: None }
    }
}

fn of_list(layers: &[Layer], input: Input) -> Result<Sizes, Misfit> {
    let layers = layers.iter().enumerate();
    layers.into_iter().try_fold(Sizes::of(input), |before, (index, layer)| {
        let Sizes { shape, needed_by, .. } = before;
        let input = Input { shape, needed_by, ids: input.ids && index == 0 };
        let sizes = of_layer(layer, input).map_err(|misfit| misfit.within(Step::Index(index)))?;
        Ok(before.then(sizes))
    })
}

fn of_layer(layer: &Layer, all @ Input { shape: input, ids, needed_by }: Input) -> Result<Sizes, Misfit> {
    let module = |shape: Shape, parameters: u128, products: u128| Sizes {
        shape,
        parameters,
        elements: elements(shape),
        products,
        normalised: None,
        needed_by: None,
    };
    let features = input.last() as u128;
    Ok(match layer {
        Layer::Activation(layer) => {
            if let (true, Some(reader)) = (layer.inplace, needed_by) {
                return Err(overwritten(reader));
            }
            Sizes { needed_by: layer.needed_output().map(Reader::Backward), ..module(input, 0, 0) }
        }
        Layer::Softmax => Sizes { needed_by: Some(Reader::Backward("softmax")), ..module(input, 0, 0) },
        // In evaluations, dropout returns its input, but no backward follows.
        Layer::Dropout(_) => {
            let needed_by = needed_by.filter(|reader| *reader == Reader::Residual);
            Sizes { needed_by, ..module(input, 0, 0) }
        }
        Layer::Linear(LinearLayer { out, bias }) => {
            let outputs = *out as u128;
            let parameters = features * outputs + if *bias { outputs } else { 0 };
            module(input.with_last(*out), parameters, elements(input).saturating_mul(outputs))
        }
        Layer::LayerNorm(_) => module(input, 2 * features, 0),
        Layer::RmsNorm(_) => module(input, features, 0),
        Layer::Conv2d(layer @ ConvLayer { out, kernel, groups, bias, .. }) => {
            let [channels, size @ ..] = image(input, "conv2d")?;
            for (count, of) in [(channels, "input"), (*out, "output")] {
                if !count.is_multiple_of(*groups) {
                    return Err(misfit(
                        format!("{count} {of} channels cannot be divided into {groups} groups"),
                        "use a number of groups that divides both",
                    ));
                }
            }
            let size = slide(layer.window(), size)?;
            let of_kernel = (channels / groups * kernel * kernel) as u128;
            let bias = if *bias { *out as u128 } else { 0 };
            let shape = Shape::new(&[*out, size[0], size[1]]);
            module(shape, *out as u128 * of_kernel + bias, elements(shape).saturating_mul(of_kernel))
        }
        Layer::MaxPool(layer) | Layer::AvgPool(layer) => {
            let PoolLayer { kernel, padding, .. } = *layer;
            let [channels, size @ ..] = image(input, "a pool")?;
            if 2 * padding > kernel {
                return Err(misfit(
                    format!("padding = {padding} is more than half of kernel = {kernel}"),
                    "use less padding",
                ));
            }
            let size = slide(layer.window(), size)?;
            module(Shape::new(&[channels, size[0], size[1]]), 0, 0)
        }
        Layer::GlobalPool => {
            let [channels, ..] = image(input, "global_pool")?;
            module(Shape::new(&[channels, 1, 1]), 0, 0)
        }
        Layer::BatchNorm(..) => match *input.dims() {
            [channels] | [channels, _, _] => {
                let normalised = Some(input.elements() / channels);
                Sizes { normalised, ..module(input, 2 * channels as u128, 0) }
            }
            _ => {
                return Err(misfit(
                    format!("batch_norm takes [features] or [channels, height, width], not {input}"),
                    "use layer_norm, or change the shape",
                ));
            }
        },
        Layer::GroupNorm(GroupNormLayer { groups, .. }) => {
            let channels = input.dims()[0];
            if !channels.is_multiple_of(*groups) || input.dims().len() == 2 {
                return Err(misfit(
                    format!("group_norm cannot divide {input} into {groups} groups of channels"),
                    "give it [features] or [channels, height, width], and a number of groups that divides the first",
                ));
            }
            module(input, 2 * channels as u128, 0)
        }
        Layer::Flatten => Sizes { needed_by, ..module(Shape::new(&[input.elements()]), 0, 0) },
        Layer::Embedding(EmbeddingLayer { count, dim }) => match *input.dims() {
            [length] if ids => module(Shape::new(&[length, *dim]), *count as u128 * *dim as u128, 0),
            _ if ids => {
                return Err(misfit(
                    format!("embedding takes ids of shape [length], not {input}"),
                    "set model.sequential.input to one size",
                ));
            }
            _ => {
                return Err(misfit(
                    "embedding takes integer ids, which only the input of the model is".to_owned(),
                    "make it the first layer, outside of residual",
                ));
            }
        },
        Layer::Positions => {
            sequence(input, "positions")?;
            module(input, elements(input), 0)
        }
        Layer::ToSequence => {
            let [channels, height, width] = image(input, "to_sequence")?;
            // PyTorch copies the transposed image, unless that is contiguous.
            let needed_by = needed_by.filter(|_| channels == 1 || height * width == 1);
            Sizes { needed_by, ..module(Shape::new(&[height * width, channels]), 0, 0) }
        }
        Layer::MeanPool => {
            let [_, channels] = sequence(input, "mean_pool")?;
            module(Shape::new(&[channels]), 0, 0)
        }
        Layer::Attention(AttentionLayer { heads, bias, .. }) => {
            let [length, channels] = sequence(input, "attention")?;
            if !channels.is_multiple_of(*heads) {
                return Err(misfit(
                    format!("{channels} channels of {input} cannot be divided into {heads} heads"),
                    "use a number of heads that divides the channels",
                ));
            }
            let [length, heads] = [length, *heads].map(|size| size as u128);
            let products = elements(input).saturating_mul(4 * features + 2 * length);
            let parameters = 4 * features * features + if *bias { 4 * features } else { 0 };
            // Queries, keys and values, two outputs, and scores, probabilities and their dropout.
            let outputs = 5 * elements(input) + 3 * heads * length * length;
            Sizes { elements: outputs, ..module(input, parameters, products) }
        }
        Layer::TransformerBlock(block) => {
            let [_, channels] = sequence(input, "transformer_block")?;
            let branches = block.branches(channels);
            let mut layers = branches.iter().flat_map(Branch::layers);
            layers
                .try_fold(Sizes::of(Input::of(input)), |before, layer| {
                    Ok(before.then(of_layer(layer, Input::of(before.shape))?))
                })?
                .and(module(input, 0, 0), branches.len() as u128)
        }
        Layer::Block(layers) => {
            let inner = of_list(layers, all).map_err(|misfit| misfit.within(Step::Key("block")))?;
            Sizes::of(all).then(inner)
        }
        Layer::Residual(ResidualLayer { layers, projection }) => {
            let within = |misfit: Misfit| misfit.within(Step::Key("residual"));
            let inputs = Input { needed_by: Some(Reader::Residual), ..Input::of(input) };
            let inner = of_list(layers, inputs).map_err(within)?;
            let projected = of_list(projection, inputs)
                .map_err(|misfit| within(misfit.within(Step::Key("projection"))))?;
            if inner.shape != projected.shape {
                let added = if projection.is_empty() { "the input" } else { "the projection" };
                return Err(misfit(
                    format!(
                        "the layers of `residual` give {} per sample, {added} is {}",
                        inner.shape, projected.shape
                    ),
                    "give both one shape: change the layers, or add projection = [{ linear = .. }]",
                ));
            }
            inner.then(projected).then(module(inner.shape, 0, 0))
        }
        Layer::Repeat(Repeat { times, layers }) => {
            let mut all = Sizes::of(all);
            for time in 0..*times {
                let Sizes { shape, needed_by, .. } = all;
                let input = Input { shape, needed_by, ids: ids && time == 0 };
                let once = of_list(layers, input).map_err(|misfit| misfit.within(Step::Key("repeat")))?;
                if once.shape == shape && once.needed_by == needed_by && !input.ids {
                    // All further times are equal.
                    return Ok(all.and(once, (times - time) as u128));
                }
                all = all.then(once);
            }
            all
        }
        Layer::Group(LayerGroup { layers, .. }) => {
            of_list(layers, all).map_err(|misfit| misfit.within(Step::Key("group")))?
        }
    })
}

/// The place of a layer: its name in messages, and its node if the file has it.
fn locate<'t>(tree: &'t Table, steps: &[Step]) -> (String, Option<&'t Node>) {
    let mut node = tree.find(LAYERS).map(|entry| &entry.node);
    let mut name = LAYERS.to_owned();
    let entry = |node: &'t Node, key: &str| Some(&node.table()?.entry(key)?.node);
    for step in steps.iter().rev() {
        match step {
            Step::Index(index) => {
                name.push_str(&format!("[{index}]"));
                let list = node.and_then(|node| entry(node, "layers").or(Some(node)));
                node = list.and_then(|node| match &node.value {
                    Value::List(nodes) => nodes.get(*index),
                    _ => None,
                });
            }
            Step::Key(key) => {
                name.push_str(&format!(".{key}"));
                node = node.and_then(|node| entry(node, key));
            }
        }
    }
    (name, node)
}

impl Sequential {
    fn sizes(&self) -> Result<Sizes, Misfit> {
        let modules = count(&self.layers);
        if modules > MOST_MODULES {
            let message = format!("the list has {modules} layers, those of repeated ones included");
            return Err(Misfit { steps: Vec::new(), message, help: "use at most 16384" });
        }
        of_list(&self.layers, Input { ids: self.ids().is_some(), ..Input::of(self.input_shape()) })
    }

    /// The shape of the output of one sample; that of the input if layers do not fit.
    pub fn output(&self) -> Shape {
        self.sizes().map_or_else(|_| self.input_shape(), |sizes| sizes.shape)
    }

    /// The fewest values of a channel, for one sample, of which batch norm computes statistics.
    pub(crate) fn least_normalised(&self) -> Option<usize> {
        self.sizes().ok()?.normalised
    }

    /// Whether it has a parameter.
    pub fn has_parameters(&self) -> bool {
        self.sizes().map_or(true, |sizes| sizes.parameters > 0)
    }

    /// Whether the list can be expanded and each layer fits the one before.
    pub(super) fn check_shapes(&self, tree: &Table) -> Result<(), Problem> {
        if self.input.len() > MOST_DIMENSIONS {
            let message =
                format!("a sample has at most {MOST_DIMENSIONS} dimensions, not {}", self.input.len());
            return Err(attach_span(message, &["model.sequential.input"], tree, "use one to three sizes"));
        }
        self.sizes().map_err(|Misfit { steps, message, help }| {
            let (name, node) = locate(tree, &steps);
            let problem = Problem::new(format!("`{name}`: {message}")).help(help);
            match node {
                Some(node) => problem.at(node.span),
                None => problem,
            }
        })?;
        if let Some(name) = repeated_name(&self.modules()) {
            let message = format!("two layers have the name `{name}`");
            let help = "give each group a name of its own; a repeated group cannot have one";
            return Err(attach_span(message, &[LAYERS], tree, help));
        }
        Ok(())
    }

    pub(super) fn check_counts(&self, (key, batch_size): (&str, usize), tree: &Table) -> Result<(), Problem> {
        let Ok(sizes) = self.sizes() else { return Ok(()) };
        let Sizes { parameters, products, .. } = sizes;
        if parameters > 1 << 40 {
            let message = format!("the model would have {parameters} parameters");
            return Err(attach_span(message, &[LAYERS], tree, "use at most 2^40 (about 10^12)"));
        }
        let samples = batch_size as u128;
        // Room for gradients, wider dtypes and recomputation.
        let bytes = 16 * samples * (sizes.elements + elements(self.input_shape()));
        let work = 16 * samples * products;
        if bytes > 1 << 57 || work > 1 << 62 {
            let message = format!("one batch of {batch_size} samples exceeds the counters of 64 bits");
            let keys = [key, "model.sequential.input", LAYERS];
            return Err(attach_span(message, &keys, tree, "use smaller batches or a smaller model"));
        }
        Ok(())
    }
}
