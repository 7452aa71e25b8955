//! Layers in a list. B micro-batch, N rows of a sample, K and M input and output features of a linear layer; images of C
//! channels, H rows and W columns; sequences of T positions with C channels.
//!
//! Each module is a layer of its own: the unit of recomputation and of buckets. Within a module,
//! a linear layer computes the activation after it.

use super::{Graph, Initial, ScopeId};
use data::{Part, PartRole, Sample};
use ops::{
    Activate, Activation, Add, AddPositions, Attention, AttentionConfig, AvgPool, BatchNorm, BatchNormMode,
    Conv2d, Convolution, CrossEntropy, DType, Dropout, DropoutMask, ElementwiseLoss, Embedding, GroupNorm,
    LayerNorm, Linear, LossFunction, LossTerms, MaxPool, Op, RmsNorm, Shape, Softmax, StackedRows, Transpose,
    Window,
};
use spec::{
    ActivationLayer, AttentionLayer, BatchNormLayer, ConvLayer, CrossEntropyLoss, EmbeddingLayer,
    GroupNormLayer, Layer, LinearLayer, Module, NormLayer, OutputLoss, Sequential, Statistics,
    TransformerBlock,
};

/// The forward pass over `micro_batch` = B samples.
pub(super) fn build(model: &Sequential, sample: &Sample, micro_batch: usize) -> Graph {
    let mut graph = Graph::new();
    let input = sample.part(PartRole::Input).expect("layers in a list read an input");
    let mut builder = Builder { graph: &mut graph, dropout: None };
    let mut output = None;
    for Module { path, layer } in model.modules() {
        let scope = builder.graph.layer(path, true);
        let x = output.unwrap_or_else(|| {
            let mut part = |part: &Part| builder.graph.input(scope, part, micro_batch);
            let x = part(input);
            builder.dropout =
                model.has_dropout().then(|| DropoutSites { seeds: part(&Part::seeds()), next: 0 });
            X { value: x, channels: Channels::First }
        });
        output = Some(builder.layer(scope, layer, x));
    }
    let output = output.expect("a list has at least one layer");
    let scope = builder.graph.layer("loss".to_owned(), false);
    let output = builder.channels_first(scope, output);
    let mut part = |role| sample.part(role).map(|part| graph.input(scope, part, micro_batch));
    let (targets, weights) = (part(PartRole::Target), part(PartRole::Weight));
    let terms = LossTerms { weighted: weights.is_some(), ..LossTerms::PLAIN };
    let elementwise = |function| Op::ElementwiseLoss(ElementwiseLoss::of(function, terms));
    let op = match model.loss {
        OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing }) => {
            let smoothing = label_smoothing as f32;
            Op::CrossEntropy(CrossEntropy { smoothing, ..CrossEntropy::of(terms) })
        }
        OutputLoss::SquaredError => elementwise(LossFunction::SquaredError),
        OutputLoss::BinaryCrossEntropy => elementwise(LossFunction::BinaryCrossEntropy),
        OutputLoss::Sum => {
            let rows_of_sample = graph.values[output].ty.shape.rows() / micro_batch;
            elementwise(LossFunction::Sum { rows_of_sample })
        }
    };
    let inputs = [output].into_iter().chain(targets).chain(weights).collect();
    graph.node(op, scope, inputs, ["loss"]);
    graph
}

/// The deviation of vision transformers (Dosovitskiy et al. 2021).
const POSITIONS: Initial = Initial::Normal(0.02);

/// The random sites of dropout, numbered in the order of layers.
struct DropoutSites {
    /// i32[B,2]
    seeds: usize,
    next: u32,
}

/// The output of a layer.
#[derive(Clone, Copy)]
struct X {
    value: usize,
    channels: Channels,
}

/// The order of dimensions. Images have their channels last from one operation on images to the next; a transposition
/// precedes an operation to which the order matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// As the user declares them, and as PyTorch has them: num[B,C,H,W]; also that of samples without images.
    First,
    /// Images num[B,H,W,C].
    Last,
}

/// Builds layers.
struct Builder<'g> {
    graph: &'g mut Graph,
    dropout: Option<DropoutSites>,
}

impl Builder<'_> {
    /// The output of a layer for input x. Its operations and parameters are in this scope.
    fn layer(&mut self, scope: ScopeId, layer: &Layer, x: X) -> X {
        let rows = |builder: &mut Self| builder.channels_first(scope, x);
        let images = |builder: &mut Self| builder.channels_last(scope, x);
        let first = |value| X { value, channels: Channels::First };
        let last = |value| X { value, channels: Channels::Last };
        match layer {
            Layer::Activation(ActivationLayer { activation, .. }) => {
                let op = Op::Activate(Activate { activation: activation.0 });
                X { value: self.node(op, scope, vec![x.value]), ..x }
            }
            Layer::Softmax => {
                let x = rows(self);
                first(self.node(Op::Softmax(Softmax), scope, vec![x]))
            }
            Layer::Linear(layer) => {
                let x = rows(self);
                first(self.linear(scope, layer, x, None))
            }
            Layer::LayerNorm(NormLayer { epsilon }) => {
                let x = rows(self);
                let [weight, bias] = self.affine(scope, x);
                let op = LayerNorm { epsilon: *epsilon as f32, stream: false, output: DType::F32 };
                let names = ["output", "mean", "rstd"];
                let [y, ..] = self.graph.node(Op::LayerNorm(op), scope, vec![x, weight, bias], names);
                first(y)
            }
            Layer::RmsNorm(NormLayer { epsilon }) => {
                let x = rows(self);
                let channels = [self.features(x)];
                let weight = self.graph.parameter("weight", scope, &channels, Initial::Constant(1.0));
                let op = RmsNorm { epsilon: *epsilon as f32, offset: 0.0, stream: false, output: DType::F32 };
                let [y, _] = self.graph.node(Op::RmsNorm(op), scope, vec![x, weight], ["output", "rrms"]);
                first(y)
            }
            Layer::Conv2d(layer) => {
                let x = images(self);
                last(self.conv2d(scope, layer, x))
            }
            Layer::MaxPool(layer) => {
                let x = images(self);
                let op = Op::MaxPool(MaxPool { window: layer.window() });
                let [y, _] = self.graph.node(op, scope, vec![x], ["output", "places"]);
                last(y)
            }
            Layer::AvgPool(layer) => {
                let x = images(self);
                last(self.node(Op::AvgPool(AvgPool { window: layer.window() }), scope, vec![x]))
            }
            Layer::GlobalPool => {
                let x = images(self);
                let [_, height, width, _] = self.image(x);
                let window = Window { kernel: [height, width], stride: 1, padding: 0 };
                last(self.node(Op::AvgPool(AvgPool { window }), scope, vec![x]))
            }
            Layer::BatchNorm(layer, statistics) => {
                let x = if self.is_of_images(x) { last(images(self)) } else { x };
                X { value: self.batch_norm(scope, layer, *statistics, x.value), ..x }
            }
            Layer::GroupNorm(GroupNormLayer { groups, epsilon }) => {
                let x = if self.is_of_images(x) { last(images(self)) } else { x };
                let [weight, bias] = self.affine(scope, x.value);
                let op = Op::GroupNorm(GroupNorm { groups: *groups, epsilon: *epsilon as f32 });
                let inputs = vec![x.value, weight, bias];
                let [y, ..] = self.graph.node(op, scope, inputs, ["output", "mean", "rstd"]);
                X { value: y, ..x }
            }
            Layer::Flatten => first(self.flatten(scope, x)),
            Layer::Embedding(EmbeddingLayer { count, dim }) => {
                let table = self.graph.parameter("weight", scope, &[*count, *dim], Initial::Normal(1.0));
                let op = Embedding { scale: 1.0, positions: false, documents: false, output: DType::F32 };
                first(self.node(Op::Embedding(op), scope, vec![x.value, table]))
            }
            Layer::Positions => {
                let sample = &self.graph.values[x.value].ty.shape.dims()[1..].to_vec();
                let table = self.graph.parameter("weight", scope, sample, POSITIONS);
                first(self.node(Op::AddPositions(AddPositions), scope, vec![x.value, table]))
            }
            Layer::ToSequence => first(self.as_sequence(scope, x)),
            Layer::MeanPool => {
                let positions = self.graph.values[x.value].ty.shape.dims()[1];
                let op = AvgPool { window: Window::column(positions) };
                first(self.node(Op::AvgPool(op), scope, vec![x.value]))
            }
            Layer::Attention(layer) => first(self.attention(scope, layer, x.value)),
            Layer::TransformerBlock(block) => self.transformer_block(scope, block, x),
            Layer::Dropout(rate) => {
                let Some((dropped, seeds)) = self.dropped(*rate) else { return x };
                let op = Dropout { dropped, residual: false, stream: false, to: None };
                X { value: self.node(Op::Dropout(op), scope, vec![x.value, seeds]), ..x }
            }
            Layer::Block(_) => {
                let [layers, _] = layer.inner();
                self.list(scope, &layers, x)
            }
            Layer::Residual(_) => {
                let [layers, projection] = layer.inner();
                let y = self.list(scope, &layers, x);
                let x = self.list(scope, &projection, x);
                self.add(scope, x, y)
            }
            Layer::Repeat(_) | Layer::Group(_) => unreachable!("the list was expanded into modules"),
        }
    }

    /// Layers within a module.
    fn list(&mut self, of: ScopeId, layers: &[Module], mut x: X) -> X {
        let mut layers = layers.iter().peekable();
        while let Some(Module { path, layer }) = layers.next() {
            let scope = self.graph.child_scope(of, path);
            let activation = match (layer, layers.peek()) {
                (Layer::Linear(_), Some(Module { layer: Layer::Activation(next), .. })) => {
                    Some(next.activation.0)
                }
                _ => None,
            };
            x = match (layer, activation) {
                (Layer::Linear(linear), Some(_)) => {
                    layers.next();
                    let x = self.channels_first(scope, x);
                    X { value: self.linear(scope, linear, x, activation), channels: Channels::First }
                }
                _ => self.layer(scope, layer, x),
            };
        }
        x
    }

    /// The mask and the seeds of the next dropout, if it drops any element.
    fn dropped(&mut self, rate: f64) -> Option<(DropoutMask, usize)> {
        let DropoutSites { seeds, next } = self.dropout.as_mut()?;
        let site = *next;
        *next += 1;
        Some((DropoutMask::at_rate(rate, site)?, *seeds))
    }

    /// `x + y`, in the order of dimensions of y.
    fn add(&mut self, scope: ScopeId, x: X, y: X) -> X {
        let x = match y.channels {
            Channels::First => self.channels_first(scope, x),
            Channels::Last => self.channels_last(scope, x),
        };
        X { value: self.node(Op::Add(Add::PLAIN), scope, vec![x, y.value]), ..y }
    }

    /// Self-attention of x num[B,T,C], with the parameters of `nn.MultiheadAttention`.
    fn attention(&mut self, scope: ScopeId, layer: &AttentionLayer, x: usize) -> usize {
        let AttentionLayer { heads, causal, bias, dropout } = *layer;
        let channels = self.features(x);
        let linear = Op::Linear(Linear { bias, activation: None, residual: false, tf32: false });
        // Xavier's deviation, with C inputs and 3C outputs.
        let deviation = Initial::Normal((0.5 / channels as f32).sqrt());
        let weight = self.graph.parameter("in_proj_weight", scope, &[3 * channels, channels], deviation);
        self.graph.values[weight].stacked = StackedRows::new(&[channels; 3]);
        let zeros = Initial::Constant(0.0);
        let in_bias = bias.then(|| self.graph.parameter("in_proj_bias", scope, &[3 * channels], zeros));
        let inputs = [x, weight].into_iter().chain(in_bias).collect();
        let [qkv] = self.graph.node(linear.clone(), scope, inputs, ["qkv"]);
        let dropped = self.dropped(dropout);
        let attending = AttentionConfig {
            causal,
            dropped: dropped.map(|(dropped, _)| dropped),
            ..AttentionConfig::causal(heads)
        };
        let inputs = [qkv].into_iter().chain(dropped.map(|(_, seeds)| seeds)).collect();
        let [y, _lse] =
            self.graph.node(Op::Attention(Attention { attending }), scope, inputs, ["out", "lse"]);
        let scope = self.graph.child_scope(scope, "out_proj");
        let weight = self.graph.parameter("weight", scope, &[channels, channels], Initial::FanIn);
        let bias = bias.then(|| self.graph.parameter("bias", scope, &[channels], zeros));
        self.node(linear, scope, [y, weight].into_iter().chain(bias).collect())
    }

    /// A block of a transformer of x num[B,T,C].
    fn transformer_block(&mut self, scope: ScopeId, block: &TransformerBlock, x: X) -> X {
        block.branches(self.features(x.value)).iter().fold(x, |x, branch| {
            let y = self.list(scope, &branch.added(), x);
            let x = self.add(scope, x, y);
            self.list(scope, &branch.after(), x)
        })
    }

    /// `f(x W^T + bias)` of x num[B,..,K]. Weight and bias have the standard deviation of PyTorch's initialisation.
    fn linear(
        &mut self,
        scope: ScopeId,
        &LinearLayer { out, bias }: &LinearLayer,
        x: usize,
        activation: Option<Activation>,
    ) -> usize {
        let inputs = self.weights(scope, x, &[out, self.features(x)], bias);
        let op = Op::Linear(Linear { bias, activation, residual: false, tf32: false });
        match activation {
            None => self.node(op, scope, inputs),
            Some(activation) => {
                let names = ["output", activation.definition().before];
                let [y, _before] = self.graph.node(op, scope, inputs, names);
                y
            }
        }
    }

    /// A convolution of images x num[B,H,W,C].
    fn conv2d(&mut self, scope: ScopeId, layer: &ConvLayer, x: usize) -> usize {
        let ConvLayer { out, kernel, groups, bias, .. } = *layer;
        let dims = [out, self.features(x) / groups, kernel, kernel];
        let inputs = self.weights(scope, x, &dims, bias);
        let convolution =
            Convolution { window: layer.window(), groups, bias, slice_bytes: u64::MAX, tf32: false };
        self.node(Op::Conv2d(Conv2d(convolution)), scope, inputs)
    }

    /// x, a weight with these sizes, output features first, and a bias.
    fn weights(&mut self, scope: ScopeId, x: usize, dims: &[usize], bias: bool) -> Vec<usize> {
        let mut inputs = vec![x, self.graph.parameter("weight", scope, dims, Initial::FanIn)];
        if bias {
            let fan_in: usize = dims[1..].iter().product();
            let deviation = Initial::Normal((1.0 / (3.0 * fan_in as f32)).sqrt());
            inputs.push(self.graph.parameter("bias", scope, &dims[..1], deviation));
        }
        inputs
    }

    /// Batch norm of x num[B,..,C].
    fn batch_norm(
        &mut self,
        scope: ScopeId,
        &BatchNormLayer { epsilon, momentum }: &BatchNormLayer,
        statistics: Statistics,
        x: usize,
    ) -> usize {
        let [weight, bias] = self.affine(scope, x);
        let channels = [self.features(x)];
        let mean = self.graph.buffer("running_mean", scope, &channels, Initial::Constant(0.0));
        let variance = self.graph.buffer("running_var", scope, &channels, Initial::Constant(1.0));
        let inputs = vec![x, weight, bias, mean, variance];
        let op = |mode| Op::BatchNorm(BatchNorm { epsilon: epsilon as f32, momentum: momentum as f32, mode });
        match statistics {
            Statistics::Batch => {
                let names = ["output", "mean", "rstd", "running_mean", "running_var"];
                let [y, ..] = self.graph.node(op(BatchNormMode::Training), scope, inputs, names);
                y
            }
            Statistics::Running => self.node(op(BatchNormMode::Evaluation), scope, inputs),
        }
    }

    /// The weight and the bias of a norm of x num[..,C].
    fn affine(&mut self, scope: ScopeId, x: usize) -> [usize; 2] {
        let channels = [self.features(x)];
        [("weight", 1.0), ("bias", 0.0)]
            .map(|(name, value)| self.graph.parameter(name, scope, &channels, Initial::Constant(value)))
    }

    /// All elements of a sample in one dimension, in the order of num[B,C,H,W].
    fn flatten(&mut self, scope: ScopeId, x: X) -> usize {
        let dims = self.graph.values[x.value].ty.shape;
        let elements = dims.dims()[1..].iter().product();
        let rows = match x.channels {
            Channels::First if dims.dims().len() == 2 => return x.value,
            Channels::First => 1,
            Channels::Last => elements / dims.last(),
        };
        self.transpose(scope, x.value, rows, &[elements])
    }

    /// The pixels of an image, as a sequence num[B,HW,C].
    fn as_sequence(&mut self, scope: ScopeId, x: X) -> usize {
        let [_, sample @ ..] = self.image(x.value);
        let (rows, pixels, channels) = match x.channels {
            Channels::First => (sample[0], sample[1] * sample[2], sample[0]),
            Channels::Last => (1, sample[0] * sample[1], sample[2]),
        };
        self.transpose(scope, x.value, rows, &[pixels, channels])
    }

    /// x in the declared order of dimensions.
    fn channels_first(&mut self, scope: ScopeId, X { value, channels }: X) -> usize {
        if channels == Channels::First {
            return value;
        }
        let [_, height, width, channels] = self.image(value);
        self.transpose(scope, value, height * width, &[channels, height, width])
    }

    /// Images num[B,H,W,C].
    fn channels_last(&mut self, scope: ScopeId, X { value, channels }: X) -> usize {
        if channels == Channels::Last {
            return value;
        }
        let [_, channels, height, width] = self.image(value);
        self.transpose(scope, value, channels, &[height, width, channels])
    }

    fn transpose(&mut self, scope: ScopeId, x: usize, rows: usize, sample: &[usize]) -> usize {
        let op = Transpose { rows, sample: Shape::new(sample), accumulate: false };
        let [y] = self.graph.node(Op::Transpose(op), scope, vec![x], ["transposed"]);
        y
    }

    fn is_of_images(&self, x: X) -> bool {
        self.graph.values[x.value].ty.shape.dims().len() == 4
    }

    /// The sizes of images.
    fn image(&self, x: usize) -> [usize; 4] {
        <[usize; 4]>::try_from(self.graph.values[x].ty.shape.dims())
            .expect("checked: layers of images get images")
    }

    /// Appends an operation with one output.
    fn node(&mut self, op: Op, scope: ScopeId, inputs: Vec<usize>) -> usize {
        let [y] = self.graph.node(op, scope, inputs, ["output"]);
        y
    }

    /// The size of the last dimension.
    fn features(&self, x: usize) -> usize {
        self.graph.values[x].ty.shape.last()
    }
}

impl Graph {
    /// Divides the patches of convolutions into slices of at most this size.
    pub(super) fn slice_patches(&mut self, bytes: u64) {
        for node in &mut self.nodes {
            if let Op::Conv2d(Conv2d(convolution)) = &mut node.op {
                convolution.slice_bytes = bytes;
            }
        }
    }
}
