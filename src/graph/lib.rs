//! A model's forward pass: typed operations over named values, nothing about how it is trained.

mod adapters;
mod attention;
mod layers;
mod micro_batches;
mod transformer;
mod values;

pub use adapters::{Adaptable, adaptable, targeted};
pub use layers::{Named, named};
pub use micro_batches::{Graphs, MicroBatch, Pass};
pub use values::goes_by;

use data::{Documents, Needed, Part};
use ops::{Op, Shape, Sizes, Stacked, Storage, TensorType};
use spec::Model;

/// Names a scope of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u32);

impl ScopeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A place in the model, such as `blocks.3.attention`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub path: String,
    /// What it is a part of.
    pub parent: Option<ScopeId>,
    /// The layer it belongs to, such as `blocks.3`: the scope that is released or bucketed whole.
    pub layer: ScopeId,
    /// Whether the layer is one of the model's repeated blocks.
    pub block: bool,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    Constant(f32),
    /// Normal with mean 0 and this deviation.
    Normal(f32),
    /// The same with the deviation of numbers that are uniform within one over the root of a row's length, either way.
    FanIn,
}

/// What a value of the graph is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueKind {
    Activation,
    /// Trained unless it is frozen: those of one operation are so together. What is trained is stored plainly.
    Parameter {
        initial: Initial,
        trainable: bool,
        storage: Storage,
    },
    /// A part of a batch.
    Input,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GraphValue {
    pub name: &'static str,
    pub scope: ScopeId,
    pub ty: TensorType,
    pub kind: ValueKind,
    /// The matrices that lie in a parameter.
    pub stacked: Stacked,
}

/// One operation; operands are indices into the graph's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    pub scope: ScopeId,
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
}

/// A forward pass, in the order of execution, with at least one node that computes a loss. Several add up; each has a
/// scope of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub scopes: Vec<Scope>,
    pub values: Vec<GraphValue>,
    pub nodes: Vec<Node>,
}

/// The forward pass of a model on a micro-batch of this many samples that are made of documents so.
pub fn build_on(model: &Model, documents: Documents, micro_batch: usize) -> Graph {
    match model {
        Model::Transformer(model) => transformer::build(model, documents, micro_batch),
    }
}

/// The same on samples of which all tokens are one text.
pub fn build(model: &Model, micro_batch: usize) -> Graph {
    build_on(model, Documents::Joined, micro_batch)
}

/// All parameters of a model, and what they are made of in files of others.
pub fn needed(model: &Model) -> Vec<Needed> {
    let graph = build(model, 1);
    let needed = |(name, shape): (String, Shape)| {
        let rows = shape.dims()[0];
        let elsewhere = match model {
            Model::Transformer(model) => transformer::stored(model, &name, rows),
        };
        Needed { name, shape, elsewhere }
    };
    graph.named_parameters().map(needed).collect()
}

impl Graph {
    /// All parameters, by name.
    fn named_parameters(&self) -> impl Iterator<Item = (String, Shape)> {
        let parameters = self.values.iter().filter(|value| matches!(value.kind, ValueKind::Parameter { .. }));
        parameters.map(|value| (self.full_name(value), value.ty.shape))
    }

    /// `blocks.0.mlp.up.weight`
    pub fn full_name(&self, value: &GraphValue) -> String {
        format!("{}.{}", self.scopes[value.scope.index()].path, value.name)
    }

    fn new() -> Graph {
        Graph { scopes: Vec::new(), values: Vec::new(), nodes: Vec::new() }
    }

    /// A scope that is a layer of its own.
    fn layer(&mut self, path: String, block: bool) -> ScopeId {
        let id = ScopeId(self.scopes.len() as u32);
        self.scopes.push(Scope { path, parent: None, layer: id, block });
        id
    }

    /// A part of another scope.
    fn part(&mut self, of: ScopeId, name: &str) -> ScopeId {
        let parent = &self.scopes[of.index()];
        let scope = Scope {
            path: format!("{}.{name}", parent.path),
            parent: Some(of),
            layer: parent.layer,
            block: parent.block,
        };
        self.scopes.push(scope);
        ScopeId(self.scopes.len() as u32 - 1)
    }

    fn value(&mut self, name: &'static str, scope: ScopeId, ty: TensorType, kind: ValueKind) -> usize {
        self.values.push(GraphValue { name, scope, ty, kind, stacked: Stacked::default() });
        self.values.len() - 1
    }

    /// A part of the batch, of as many samples as the forward pass sees.
    fn input(&mut self, scope: ScopeId, part: &Part, micro_batch: usize) -> usize {
        self.value(part.name, scope, part.of_samples(micro_batch), ValueKind::Input)
    }

    fn parameter(&mut self, name: &'static str, scope: ScopeId, dims: &[usize], initial: Initial) -> usize {
        let kind = ValueKind::Parameter { initial, trainable: true, storage: Storage::Plain };
        self.value(name, scope, TensorType::f32(dims), kind)
    }

    /// Appends an operation and names its outputs. Panics if the model is wrong about its own shapes.
    fn node<const N: usize>(
        &mut self,
        op: Op,
        scope: ScopeId,
        inputs: Vec<usize>,
        names: [&'static str; N],
    ) -> [usize; N] {
        let types: Vec<TensorType> = inputs.iter().map(|&input| self.values[input].ty).collect();
        let types = op.outputs(&types).unwrap_or_else(|error| panic!("the model is wrong: {error}"));
        assert_eq!(types.len(), N, "{} has {} outputs", op.name(), types.len());
        let outputs = std::array::from_fn(|i| self.value(names[i], scope, types[i], ValueKind::Activation));
        self.nodes.push(Node { op, scope, inputs, outputs: outputs.to_vec() });
        outputs
    }

    /// With these layers frozen: their parameters are not trained, whatever reads them.
    pub fn freeze(&mut self, layers: &[String]) {
        if layers.is_empty() {
            return;
        }
        let frozen = named(&self.scopes, layers.iter().map(String::as_str)).by_scope;
        for value in &mut self.values {
            if let ValueKind::Parameter { trainable, .. } = &mut value.kind {
                *trainable &= frozen[value.scope.index()].is_none();
            }
        }
    }

    /// With no parameter trained.
    pub fn freeze_all(&mut self) {
        for value in &mut self.values {
            if let ValueKind::Parameter { trainable, .. } = &mut value.kind {
                *trainable = false;
            }
        }
    }

    /// Whether the two are the same at all sizes, if one is given those of the other.
    pub fn same_structure(&self, other: &Graph) -> bool {
        let same_value = |(a, b): (&GraphValue, &GraphValue)| {
            (a.name, a.scope, a.kind, a.ty.dtype) == (b.name, b.scope, b.kind, b.ty.dtype)
                && a.ty.shape.dims().len() == b.ty.shape.dims().len()
        };
        let same_node = |(a, b): (&Node, &Node)| {
            (a.scope, &a.inputs, &a.outputs) == (b.scope, &b.inputs, &b.outputs)
                && (a.op == b.op || other.resized(a) == b.op)
        };
        self.scopes == other.scopes
            && self.values.len() == other.values.len()
            && self.nodes.len() == other.nodes.len()
            && self.values.iter().zip(&other.values).all(same_value)
            && self.nodes.iter().zip(&other.nodes).all(same_node)
    }

    /// The operation of another graph's node at the sizes of this graph.
    fn resized(&self, node: &Node) -> Op {
        let mut op = node.op.clone();
        op.resize(&Sizes {
            inputs: &self.types(&node.inputs),
            outputs: &self.types(&node.outputs),
            buckets: &[],
        });
        op
    }

    /// By value: which one it updates, if it does.
    pub fn previous_versions(&self) -> Vec<Option<usize>> {
        let mut previous = vec![None; self.values.len()];
        for node in &self.nodes {
            for &(output, input) in node.op.updates() {
                previous[node.outputs[output]] = Some(node.inputs[input]);
            }
        }
        previous
    }

    fn types(&self, operands: &[usize]) -> Vec<TensorType> {
        operands.iter().map(|&operand| self.values[operand].ty).collect()
    }

    /// The parts of the batch, by their indices among the values.
    pub fn inputs(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.values.len()).filter(|&index| self.values[index].kind == ValueKind::Input)
    }

    /// By value: whether an operation looks its rows up by their numbers.
    pub fn looked_up(&self) -> Vec<bool> {
        let mut looked_up = vec![false; self.values.len()];
        for node in &self.nodes {
            for (index, &input) in node.inputs.iter().enumerate() {
                looked_up[input] |= node.op.looks_up(index);
            }
        }
        looked_up
    }

    /// By value: whether it is a matrix between layers: no table whose rows are looked up, nor what makes the numbers that a
    /// loss is computed of.
    pub fn hidden_matrices(&self) -> Vec<bool> {
        let looked_up = self.looked_up();
        let is_matrix = |value: &GraphValue| {
            matches!(value.kind, ValueKind::Parameter { .. }) && value.ty.shape.dims().len() == 2
        };
        let mut hidden: Vec<bool> = self
            .values
            .iter()
            .zip(looked_up)
            .map(|(value, looked_up)| is_matrix(value) && !looked_up)
            .collect();
        // Of a loss, or made into what a loss is of by what has no matrix.
        let mut judged = vec![false; self.values.len()];
        for node in self.nodes.iter().rev() {
            if node.op.as_loss().is_some() || node.outputs.iter().any(|&output| judged[output]) {
                let is_last = node.inputs.iter().any(|&input| is_matrix(&self.values[input]));
                for &input in &node.inputs {
                    judged[input] = !is_last;
                    hidden[input] = false;
                }
            }
        }
        hidden
    }

    /// Numbers in parameters.
    pub fn parameters(&self) -> u64 {
        let parameters = self.values.iter().filter(|value| matches!(value.kind, ValueKind::Parameter { .. }));
        parameters.map(|value| value.ty.elements() as u64).sum()
    }

    /// FLOPs of one forward pass.
    pub fn flops(&self) -> u64 {
        let flops = |node: &Node| node.op.flops(&self.types(&node.inputs), &self.types(&node.outputs));
        self.nodes.iter().map(flops).sum()
    }
}
