//! A model's forward pass: typed operations over named values, independent of training.

mod adapters;
mod attention;
mod layers;
mod micro_batches;
mod sequential;
mod transformer;
mod values;

pub use adapters::{AdaptableLinear, TargetMatches, adaptable, is_factor, stacked_layer, targeted};
pub use layers::{LayerMatches, named};
pub use micro_batches::{Graphs, MicroBatch, Pass, forward_pass};
pub use values::goes_by;

use data::{CheckpointTensor, Part, PartRole, RequiredParameter, Sample, TensorNaming};
use ops::{Op, OpKind, Shape, Sizes, StackedRows, Storage, TensorType};
use spec::Model;

/// Identifies a scope of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u32);

impl ScopeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A scope of the model, such as `blocks.3.attention`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub path: String,
    /// The enclosing scope.
    pub parent: Option<ScopeId>,
    /// The layer that contains it, such as `blocks.3`: the unit of deallocation and of buckets.
    pub layer: ScopeId,
    /// Whether the layer is a unit of recomputation: a block of a transformer, a module of a list.
    pub block: bool,
}

/// Initialisation of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Normal with the standard deviation of a uniform distribution on +-1/sqrt(row length).
    FanIn,
}

/// The kind of a graph value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueKind {
    Activation,
    /// Trained unless frozen. Parameters of one operation are frozen together. Trainable parameters are stored as
    /// `Storage::Plain`.
    Parameter {
        initial: Initial,
        trainable: bool,
        storage: Storage,
    },
    /// Not trained, but updated by an operation of the forward pass in training, such as running statistics. f32.
    Buffer {
        initial: Initial,
    },
    /// A part of the batch.
    Input(PartRole),
}

#[derive(Clone, Debug, PartialEq)]
pub struct GraphValue {
    pub name: &'static str,
    pub scope: ScopeId,
    pub ty: TensorType,
    pub kind: ValueKind,
    /// The matrices stacked in a parameter.
    pub stacked: StackedRows,
}

impl GraphValue {
    /// The role of a part of the batch.
    pub fn input_role(&self) -> Option<PartRole> {
        match self.kind {
            ValueKind::Input(role) => Some(role),
            _ => None,
        }
    }
}

/// One operation; operands are indices into the graph's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    pub scope: ScopeId,
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
}

/// A forward pass in execution order, with at least one loss node. Several losses are summed; each has its own scope.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub scopes: Vec<Scope>,
    pub values: Vec<GraphValue>,
    pub nodes: Vec<Node>,
}

/// The forward pass of a model on a micro-batch of `micro_batch` samples with these parts: those that the model
/// requests, and others that data sets add.
pub(crate) fn build_on(model: &Model, sample: &Sample, micro_batch: usize) -> Graph {
    match model {
        Model::Transformer(model) => transformer::build(model, sample, micro_batch),
        Model::Sequential(model) => sequential::build(model, sample, micro_batch),
    }
}

/// The forward pass on samples with the parts that the model requests.
pub fn build(model: &Model, micro_batch: usize) -> Graph {
    build_on(model, &model.sample(), micro_batch)
}

/// All parameters of a model, with the checkpoint tensors of other libraries that contain them.
pub fn needed(model: &Model) -> Vec<RequiredParameter> {
    let graph = build(model, 1);
    let needed = |(name, shape): (String, Shape)| {
        let elsewhere = checkpoint_tensors(model, &name, shape.dims()[0]);
        RequiredParameter { name, shape, elsewhere }
    };
    graph.named_parameters().map(needed).collect()
}

/// The tensors of other libraries' checkpoints that contain a parameter with this number of rows, by naming scheme.
fn checkpoint_tensors(model: &Model, name: &str, rows: usize) -> Vec<(TensorNaming, Vec<CheckpointTensor>)> {
    match model {
        Model::Transformer(model) => transformer::checkpoint_tensors(model, name, rows),
        Model::Sequential(_) => Vec::new(),
    }
}

impl Graph {
    /// All parameters and buffers with their full names.
    fn named_parameters(&self) -> impl Iterator<Item = (String, Shape)> {
        let parameters = self
            .values
            .iter()
            .filter(|value| matches!(value.kind, ValueKind::Parameter { .. } | ValueKind::Buffer { .. }));
        parameters.map(|value| (self.full_name(value), value.ty.shape))
    }

    /// `blocks.0.mlp.up.weight`
    pub fn full_name(&self, value: &GraphValue) -> String {
        format!("{}.{}", self.scopes[value.scope.index()].path, value.name)
    }

    fn new() -> Graph {
        Graph { scopes: Vec::new(), values: Vec::new(), nodes: Vec::new() }
    }

    /// Adds a layer: a top-level scope.
    fn layer(&mut self, path: String, block: bool) -> ScopeId {
        let id = ScopeId(self.scopes.len() as u32);
        self.scopes.push(Scope { path, parent: None, layer: id, block });
        id
    }

    /// Adds a scope inside another.
    fn child_scope(&mut self, of: ScopeId, name: &str) -> ScopeId {
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
        self.values.push(GraphValue { name, scope, ty, kind, stacked: StackedRows::default() });
        self.values.len() - 1
    }

    /// Adds an input with the samples of one micro-batch.
    fn input(&mut self, scope: ScopeId, part: &Part, micro_batch: usize) -> usize {
        self.value(part.name, scope, part.of_samples(micro_batch), ValueKind::Input(part.role))
    }

    fn parameter(&mut self, name: &'static str, scope: ScopeId, dims: &[usize], initial: Initial) -> usize {
        let kind = ValueKind::Parameter { initial, trainable: true, storage: Storage::Plain };
        self.value(name, scope, TensorType::f32(dims), kind)
    }

    fn buffer(&mut self, name: &'static str, scope: ScopeId, dims: &[usize], initial: Initial) -> usize {
        self.value(name, scope, TensorType::f32(dims), ValueKind::Buffer { initial })
    }

    /// Appends an operation with named outputs. Panics if the model's shapes are inconsistent.
    fn node<const N: usize>(
        &mut self,
        op: Op,
        scope: ScopeId,
        inputs: Vec<usize>,
        names: [&'static str; N],
    ) -> [usize; N] {
        let types: Vec<TensorType> = inputs.iter().map(|&input| self.values[input].ty).collect();
        let types = op.outputs(&types).unwrap_or_else(|error| panic!("invalid model: {error}"));
        assert_eq!(types.len(), N, "{} has {} outputs", op.name(), types.len());
        let outputs = std::array::from_fn(|i| self.value(names[i], scope, types[i], ValueKind::Activation));
        self.nodes.push(Node { op, scope, inputs, outputs: outputs.to_vec() });
        outputs
    }

    /// Freezes the parameters of these layers, whichever operations read them.
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

    /// Freezes all parameters.
    pub(crate) fn freeze_all(&mut self) {
        for value in &mut self.values {
            if let ValueKind::Parameter { trainable, .. } = &mut value.kind {
                *trainable = false;
            }
        }
    }

    /// Whether the two differ only in sizes.
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

    /// The operation of another graph's node, resized to this graph.
    fn resized(&self, node: &Node) -> Op {
        let mut op = node.op.clone();
        op.resize(&Sizes {
            inputs: &self.types(&node.inputs),
            outputs: &self.types(&node.outputs),
            buckets: &[],
        });
        op
    }

    /// For each value, the value whose next version it is.
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

    /// The value indices of the batch inputs.
    pub fn inputs(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.values.len()).filter(|&index| self.values[index].input_role().is_some())
    }

    /// For each value, whether an operation gathers its rows by index, as from an embedding table.
    pub fn looked_up(&self) -> Vec<bool> {
        let mut looked_up = vec![false; self.values.len()];
        for node in &self.nodes {
            for (index, &input) in node.inputs.iter().enumerate() {
                looked_up[input] |= node.op.looks_up(index);
            }
        }
        looked_up
    }

    /// For each value, whether it is a hidden weight matrix: a factor of matmuls, not an embedding table and not the weight
    /// of the output layer, which computes the input of a loss.
    pub fn hidden_matrices(&self) -> Vec<bool> {
        let is_matrix = |value: &GraphValue| {
            matches!(value.kind, ValueKind::Parameter { .. }) && value.ty.shape.dims().len() == 2
        };
        let mut hidden = vec![false; self.values.len()];
        for node in self.nodes.iter().filter(|node| node.op.kind() == Some(OpKind::Linear)) {
            node.inputs.iter().for_each(|&input| hidden[input] = is_matrix(&self.values[input]));
        }
        for (hidden, looked_up) in hidden.iter_mut().zip(self.looked_up()) {
            *hidden &= !looked_up;
        }
        // Inputs of a loss, and values that lead to one through operations without a weight matrix.
        let mut feeds_loss = vec![false; self.values.len()];
        for node in self.nodes.iter().rev() {
            if node.op.as_loss().is_some() || node.outputs.iter().any(|&output| feeds_loss[output]) {
                let has_matrix = node.inputs.iter().any(|&input| is_matrix(&self.values[input]));
                for &input in &node.inputs {
                    feeds_loss[input] = !has_matrix;
                    hidden[input] = false;
                }
            }
        }
        hidden
    }

    /// The number of parameter elements.
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
