//! Layers in a list. B micro-batch, N rows of a sample, K and M input and output features of a linear layer.
//!
//! Each module is a layer of its own: the unit of recomputation and of buckets. Within a module,
//! a linear layer computes the activation after it.

use super::{Graph, Initial, ScopeId};
use data::{Documents, Part};
use ops::{
    Activate, Activation, Add, CrossEntropy, DType, Dropout, DropoutMask, ElementwiseLoss, LayerNorm, Linear,
    LossFunction, LossTerms, Op, RmsNorm,
};
use spec::{Layer, LayerActivation, LinearLayer, Module, NormLayer, OutputLoss, Sequential};

/// The forward pass over `micro_batch` = B samples. `fuses`: whether linear layers within a module compute the activations
/// after them.
pub(super) fn build(model: &Sequential, documents: Documents, micro_batch: usize, fuses: bool) -> Graph {
    let mut graph = Graph::new();
    let [input, targets] = model.parts();
    let mut builder = Builder { graph: &mut graph, dropout: None, fuses };
    let mut output = None;
    for Module { path, layer } in model.modules() {
        let scope = builder.graph.layer(path, true);
        let x = output.unwrap_or_else(|| {
            let mut part = |part: &Part| builder.graph.input(scope, part, micro_batch);
            let x = part(&input);
            builder.dropout =
                model.has_dropout().then(|| DropoutSites { seeds: part(&Part::seeds()), next: 0 });
            x
        });
        output = Some(builder.layer(scope, layer, x));
    }
    let output = output.expect("a list has at least one layer");
    let scope = graph.layer("loss".to_owned(), false);
    let targets = graph.input(scope, &targets, micro_batch);
    let weights = documents.parts(0).first().map(|part| graph.input(scope, part, micro_batch));
    let terms = LossTerms { weighted: weights.is_some(), ..LossTerms::PLAIN };
    let elementwise = |function| Op::ElementwiseLoss(ElementwiseLoss { terms, function });
    let op = match model.loss {
        OutputLoss::CrossEntropy => Op::CrossEntropy(CrossEntropy { terms, cap: None }),
        OutputLoss::SquaredError => elementwise(LossFunction::SquaredError),
        OutputLoss::BinaryCrossEntropy => elementwise(LossFunction::BinaryCrossEntropy),
    };
    graph.node(op, scope, [output, targets].into_iter().chain(weights).collect(), ["loss"]);
    graph
}

/// The random sites of dropout, numbered in the order of layers.
struct DropoutSites {
    /// i32[B,2]
    seeds: usize,
    next: u32,
}

/// Builds layers.
struct Builder<'g> {
    graph: &'g mut Graph,
    dropout: Option<DropoutSites>,
    fuses: bool,
}

impl Builder<'_> {
    /// The output of a layer for input x num[B,..,K]. Its operations and parameters are in this scope.
    fn layer(&mut self, scope: ScopeId, layer: &Layer, x: usize) -> usize {
        match layer {
            Layer::Activation(LayerActivation(activation)) => {
                self.node(Op::Activate(Activate { activation: *activation }), scope, vec![x])
            }
            Layer::Linear(layer) => self.linear(scope, layer, x, None),
            Layer::LayerNorm(NormLayer { epsilon }) => {
                let channels = [self.features(x)];
                let weight = self.graph.parameter("weight", scope, &channels, Initial::Constant(1.0));
                let bias = self.graph.parameter("bias", scope, &channels, Initial::Constant(0.0));
                let op = LayerNorm { epsilon: *epsilon as f32, stream: false, output: DType::F32 };
                let names = ["output", "mean", "rstd"];
                let [y, ..] = self.graph.node(Op::LayerNorm(op), scope, vec![x, weight, bias], names);
                y
            }
            Layer::RmsNorm(NormLayer { epsilon }) => {
                let channels = [self.features(x)];
                let weight = self.graph.parameter("weight", scope, &channels, Initial::Constant(1.0));
                let op = RmsNorm { epsilon: *epsilon as f32, offset: 0.0, stream: false, output: DType::F32 };
                let [y, _] = self.graph.node(Op::RmsNorm(op), scope, vec![x, weight], ["output", "rrms"]);
                y
            }
            Layer::Dropout(rate) => {
                let Some(DropoutSites { seeds, next }) = &mut self.dropout else { return x };
                let (seeds, site) = (*seeds, *next);
                *next += 1;
                let Some(dropped) = DropoutMask::at_rate(*rate, site) else { return x };
                let op = Dropout { dropped, residual: false, stream: false, to: None };
                self.node(Op::Dropout(op), scope, vec![x, seeds])
            }
            Layer::Block(_) => {
                let [layers, _] = layer.inner();
                self.list(scope, &layers, x)
            }
            Layer::Residual(_) => {
                let [layers, projection] = layer.inner();
                let y = self.list(scope, &layers, x);
                let x = self.list(scope, &projection, x);
                self.node(Op::Add(Add::PLAIN), scope, vec![x, y])
            }
            Layer::Repeat(_) | Layer::Group(_) => unreachable!("the list was expanded into modules"),
        }
    }

    /// Layers within a module.
    fn list(&mut self, of: ScopeId, layers: &[Module], mut x: usize) -> usize {
        let mut layers = layers.iter().peekable();
        while let Some(Module { path, layer }) = layers.next() {
            let scope = self.graph.child_scope(of, path);
            let activation = match (layer, layers.peek()) {
                (Layer::Linear(_), Some(Module { layer: Layer::Activation(next), .. })) if self.fuses => {
                    Some(next.0)
                }
                _ => None,
            };
            x = match (layer, activation) {
                (Layer::Linear(linear), Some(_)) => {
                    layers.next();
                    self.linear(scope, linear, x, activation)
                }
                _ => self.layer(scope, layer, x),
            };
        }
        x
    }

    /// `f(x W^T + bias)`. Weight and bias have the standard deviation of PyTorch's initialisation.
    fn linear(
        &mut self,
        scope: ScopeId,
        &LinearLayer { out, bias }: &LinearLayer,
        x: usize,
        activation: Option<Activation>,
    ) -> usize {
        let features = self.features(x);
        let mut inputs = vec![x, self.graph.parameter("weight", scope, &[out, features], Initial::FanIn)];
        if bias {
            let deviation = Initial::Normal((1.0 / (3.0 * features as f32)).sqrt());
            inputs.push(self.graph.parameter("bias", scope, &[out], deviation));
        }
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

    /// Appends an operation with one output.
    fn node(&mut self, op: Op, scope: ScopeId, inputs: Vec<usize>) -> usize {
        let [y] = self.graph.node(op, scope, inputs, ["output"]);
        y
    }

    /// K.
    fn features(&self, x: usize) -> usize {
        self.graph.values[x].ty.shape.last()
    }
}
