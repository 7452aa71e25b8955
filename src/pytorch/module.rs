//! The model as plain PyTorch modules: the forward pass of a graph.
//!
//! A value lives until the statement that last uses it has run, as in `y = f(y)`.

use std::ops::Range;
use std::rc::Rc;

use crate::checkpoint::{Function, checkpoint};
use crate::coverage::{self, NotCovered};
use crate::functions::{self, Heads};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use graph::{Graph, GraphValue, Node, ValueKind};
use ops::{AttentionConfig, Linear, Op, Shape};
use spec::{Attention, BlockPart, Recompute, RunConfig};

/// A value of the graph: one tensor, or the tensors of stacked matrices, such as queries, keys and values.
#[derive(Clone)]
enum Value {
    One(Tensor),
    Parts(Vec<Tensor>),
}

/// The values in use, by index in the graph.
struct Values(Vec<Option<Value>>);

impl Values {
    fn new(graph: &Graph) -> Values {
        Values(graph.values.iter().map(|_| None).collect())
    }

    fn one(&self, value: usize) -> Tensor {
        match &self.0[value] {
            Some(Value::One(tensor)) => tensor.clone(),
            _ => unreachable!("the value has one tensor"),
        }
    }

    fn parts(&self, value: usize) -> Vec<Tensor> {
        match &self.0[value] {
            Some(Value::Parts(parts)) => parts.clone(),
            _ => unreachable!("the value has several tensors"),
        }
    }
}

/// The call of a module: the caller's variable holds the input until it returns.
#[derive(Clone)]
struct Call {
    nodes: Range<usize>,
    input: usize,
    output: usize,
    checkpointed: bool,
    /// A segment of `checkpoint_sequential`, which is a call in training only.
    segment: bool,
    /// The calls in it, if it is not a plain sequence of operations.
    calls: Vec<Call>,
}

/// A module with its parameters and buffers on the device.
pub(crate) struct Module {
    graph: Graph,
    /// By value: the tensors of a parameter, if it is one.
    parameters: Vec<Vec<Tensor>>,
    /// Parameters in the order of the modules: value and part.
    order: Vec<(usize, usize)>,
    /// Cosines and sines [T, D] of rotary positions.
    rotary: Option<[Tensor; 2]>,
    /// Masks bool[T, T] of attention: of the full context, and of the window.
    masks: [Option<Tensor>; 2],
    /// Whether attention is written out.
    is_written_out: bool,
    calls: Rc<Vec<Call>>,
    /// By node: the values that it uses last.
    last_uses: Vec<Vec<usize>>,
    tokens: usize,
    targets: usize,
    /// Slices of rows in which logits and loss are computed, each under a checkpoint.
    loss_chunks: usize,
}

impl Module {
    /// Moves the module of a run to the device, as `model.to("cuda")` does.
    ///
    /// # Errors
    /// The graph has an operation that is not covered.
    pub(crate) fn new(torch: &Torch, config: &RunConfig, graph: Graph) -> Result<Rc<Module>, NotCovered> {
        check_operations(config, &graph)?;
        let dtype = dtype_of(config.strategy.params.dtype());
        let separate = separate_parts(&graph);
        let order = parameter_order(&graph, &separate);
        let mut parameters = vec![Vec::new(); graph.values.len()];
        for &(value, part) in &order {
            let GraphValue { ty, kind, .. } = graph.values[value];
            let tensor = torch.tensor(part_shape(ty.shape, &separate[value], part), dtype);
            let is_trained = matches!(kind, ValueKind::Parameter { trainable: true, .. });
            parameters[value].push(if is_trained { tensor.leaf() } else { tensor });
        }
        let rotary = rotary_shape(&graph).map(|dims| [(); 2].map(|()| torch.empty(&dims, dtype)));
        let masks = [false, true]
            .map(|windowed| mask_shape(&graph, windowed).map(|dims| torch.empty(&dims, DType::Bool)));
        let input = |name: &str| {
            let is_input = |index: &usize| graph.values[*index].name == name;
            graph.inputs().find(is_input).ok_or_else(|| NotCovered(format!("models without {name}")))
        };
        let loss_chunks = config.strategy.loss_chunks;
        let (tokens, targets) = (input("tokens")?, input("targets")?);
        let (calls, last_uses) =
            (Rc::new(calls(config.strategy.recompute, &graph)), last_uses(&graph, &separate));
        Ok(Rc::new(Module {
            graph,
            parameters,
            order,
            rotary,
            masks,
            is_written_out: config.strategy.attention == Attention::Materialized,
            calls,
            last_uses,
            tokens,
            targets,
            loss_chunks,
        }))
    }

    /// The same module for batches of another size.
    pub(crate) fn resized(&self, graph: Graph) -> Rc<Module> {
        Rc::new(Module {
            graph,
            parameters: self.parameters.clone(),
            order: self.order.clone(),
            rotary: self.rotary.clone(),
            masks: self.masks.clone(),
            calls: Rc::clone(&self.calls),
            last_uses: self.last_uses.clone(),
            ..*self
        })
    }

    /// The parameters, in the order of the modules.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.order.iter().map(|&(value, part)| &self.parameters[value][part])
    }

    /// The shapes of a batch's tokens and targets.
    pub(crate) fn batch_shape(&self) -> Shape {
        self.graph.values[self.tokens].ty.shape
    }

    /// `model(tokens, targets)`: the loss. Dropout has an effect in training only.
    pub(crate) fn loss(
        self: &Rc<Module>,
        torch: &Torch,
        tokens: &Tensor,
        targets: &Tensor,
        trains: bool,
    ) -> Tensor {
        let mut values = Values::new(&self.graph);
        values.0[self.tokens] = Some(Value::One(tokens.clone()));
        values.0[self.targets] = Some(Value::One(targets.clone()));
        self.run_calls(torch, &self.calls, &mut values, trains);
        values.one(self.graph.nodes.last().expect("a loss").outputs[0])
    }

    fn run_calls(self: &Rc<Module>, torch: &Torch, calls: &[Call], values: &mut Values, trains: bool) {
        for call in calls {
            if call.segment && !trains {
                self.run_calls(torch, &call.calls, values, trains);
                continue;
            }
            let input = values.0[call.input].clone();
            if call.checkpointed && trains {
                values.0[call.input] = None;
                let Some(Value::One(x)) = &input else { unreachable!("a call has one input") };
                let y = checkpoint(torch, self.recomputed(call), x);
                values.0[call.output] = Some(Value::One(y));
            } else {
                self.run(torch, call, values, trains);
            }
        }
    }

    /// A checkpointed call as a function of its input.
    fn recomputed(self: &Rc<Module>, call: &Call) -> Function {
        let (module, call) = (Rc::clone(self), call.clone());
        Rc::new(move |torch, x| {
            let mut values = Values::new(&module.graph);
            values.0[call.input] = Some(Value::One(x.clone()));
            module.run(torch, &call, &mut values, true);
            values.one(call.output)
        })
    }

    fn run(self: &Rc<Module>, torch: &Torch, call: &Call, values: &mut Values, trains: bool) {
        if !call.calls.is_empty() {
            return self.run_calls(torch, &call.calls, values, trains);
        }
        for index in call.nodes.clone() {
            if self.loss_chunks > 1 && self.is_head(index) {
                let loss =
                    torch.with_purpose(Purpose::Loss, || self.chunked_loss(torch, index, values, trains));
                let last = self.graph.nodes.last().expect("a loss");
                values.0[last.outputs[0]] = Some(Value::One(loss));
                return;
            }
            let purpose = if self.is_loss(index) { Purpose::Loss } else { Purpose::Activation };
            let output = torch.with_purpose(purpose, || self.call(torch, index, values, trains));
            self.release(index, values);
            values.0[self.graph.nodes[index].outputs[0]] = Some(output);
        }
    }

    /// Whether a node computes the logits or the loss.
    fn is_loss(&self, index: usize) -> bool {
        self.is_head(index) || matches!(self.graph.nodes[index].op, Op::CrossEntropy(_))
    }

    /// Whether a node computes the logits.
    fn is_head(&self, index: usize) -> bool {
        matches!(self.graph.nodes.get(index + 1).map(|next| &next.op), Some(Op::CrossEntropy(_)))
    }

    /// The loss as a sum over slices of rows, each of which computes its logits and loss under a checkpoint.
    fn chunked_loss(self: &Rc<Module>, torch: &Torch, head: usize, values: &Values, trains: bool) -> Tensor {
        let node = &self.graph.nodes[head];
        let hidden = values.one(node.inputs[0]);
        let Op::CrossEntropy(loss) = &self.graph.nodes[head + 1].op else { unreachable!("a loss") };
        let (is_capped, targets) = (loss.cap.is_some(), values.one(self.targets));
        let chunks = functions::chunk_rows(torch, &hidden, self.loss_chunks);
        let mut sum: Option<Tensor> = None;
        for chunk in &chunks {
            let (module, targets) = (Rc::clone(self), targets.clone());
            // self.chunk_loss(chunk, targets)
            let function = move |torch: &Torch, x: &Tensor| {
                let (weights, _) = module.weights(&module.graph.nodes[head]);
                let mut logits = functions::linear(torch, x, &weights[0], None);
                if is_capped {
                    logits = functions::soft_cap(torch, &logits);
                }
                functions::cross_entropy(torch, &logits, &targets)
            };
            let part =
                if trains { checkpoint(torch, Rc::new(function), chunk) } else { function(torch, chunk) };
            sum = Some(match &sum {
                None => functions::add_number(torch, &part),
                Some(sum) => functions::add(torch, sum, &part),
            });
        }
        functions::scale(torch, &sum.expect("a slice"))
    }

    /// Drops the values that a node uses last.
    fn release(&self, node: usize, values: &mut Values) {
        for &value in &self.last_uses[node] {
            values.0[value] = None;
        }
    }

    /// The parameter that is an input of a node.
    fn parameter(&self, node: &Node, input: usize) -> &[Tensor] {
        &self.parameters[node.inputs[input]]
    }

    fn call(&self, torch: &Torch, index: usize, values: &mut Values, trains: bool) -> Value {
        let node = &self.graph.nodes[index];
        let tensor = match &node.op {
            Op::Embedding(embedding) => {
                let [table] = self.parameter(node, 1) else { unreachable!("a table is one tensor") };
                let mut x = functions::embedding(torch, table, &values.one(node.inputs[0]));
                if embedding.scale != 1.0 {
                    x = functions::scale(torch, &x);
                }
                if embedding.positions {
                    let [table] = self.parameter(node, 2) else { unreachable!("a table is one tensor") };
                    let positions = {
                        let positions = torch.empty(&table.shape().dims()[..1], DType::I64);
                        functions::embedding(torch, table, &positions)
                    };
                    x = functions::add(torch, &x, &positions);
                }
                x
            }
            Op::LayerNorm(_) => functions::layer_norm(
                torch,
                &values.one(node.inputs[0]),
                &self.parameter(node, 1)[0],
                &self.parameter(node, 2)[0],
            ),
            Op::RmsNorm(norm) => functions::rms_norm(
                torch,
                &values.one(node.inputs[0]),
                &self.parameter(node, 1)[0],
                norm.offset != 0.0,
            ),
            Op::Linear(linear) => return self.linear(torch, index, linear, values),
            Op::QkNorm(norm) => {
                let x = values.one(node.inputs[0]);
                let zero_centered = norm.offset != 0.0;
                let linear = self.writer_of(node.inputs[0]);
                let (heads, _) = self.reader_of(node.inputs[0]).expect("attention");
                let is_written_out = self.is_written_out;
                let part = |part: usize| {
                    let shape = if part == 0 { heads.query_shape() } else { heads.key_shape() };
                    let Some(norm) = (part < 2).then(|| &self.parameter(node, 1 + part)[0]) else {
                        return self.project(torch, linear, part, &x, shape, is_written_out);
                    };
                    // self.q_norm(self.q(x).unflatten(-1, (-1, HEAD))).transpose(1, 2)
                    let normed = {
                        let y = self.project(torch, linear, part, &x, shape, true);
                        functions::rms_norm(torch, &y, norm, zero_centered)
                    };
                    functions::heads(torch, &normed, shape.dims(), false)
                };
                return Value::Parts((0..3).map(part).collect());
            }
            Op::Rotary(_) => {
                let [q, k, v] = parts(values.parts(node.inputs[0]));
                let [cos, sin] = self.rotary.as_ref().expect("a model with rotary positions");
                let q_rotated = functions::rotate(torch, &q, cos, sin);
                let k_rotated = functions::rotate(torch, &k, cos, sin);
                return Value::Parts(vec![q_rotated, k_rotated, v]);
            }
            Op::Attention(attention) => self.attention(torch, node, &attention.attending, values, trains),
            Op::MaterializedAttention(attention) => {
                let AttentionConfig { cap, dropped, .. } = &attention.attending;
                let heads = self.heads(node, &attention.attending);
                let value = values.0[node.inputs[0]].take().expect("an input");
                let (qkv, _argument) = match value {
                    Value::Parts(qkv) => (parts(qkv), None),
                    // `attend(self.qkv(x))` holds its argument until it returns.
                    Value::One(qkv) => (parts(self.split_heads(torch, &qkv, heads)), Some(qkv)),
                };
                let has_dropout = trains && dropped.is_some();
                let is_windowed = is_windowed(&attention.attending, heads.sequence);
                let mask = self.masks[usize::from(is_windowed)].as_ref();
                functions::manual_attention(torch, qkv, mask, heads, cap.is_some(), has_dropout)
            }
            Op::Gated(gated) => {
                // `F.silu(self.gate(x)) * self.up(x)`
                let linear = self.writer_of(node.inputs[0]);
                let x = values.one(node.inputs[0]);
                let (weights, biases) = self.weights(linear);
                let gate = {
                    let gate = functions::linear(torch, &x, &weights[0], biases.first());
                    functions::activation(torch, gate, gated.activation)
                };
                let up = functions::linear(torch, &x, &weights[1], biases.get(1));
                functions::mul(torch, &gate, &up)
            }
            Op::Add(add) => {
                let sum = functions::add(torch, &values.one(node.inputs[0]), &values.one(node.inputs[1]));
                match add.activation {
                    Some(activation) => functions::activation(torch, sum, activation),
                    None => sum,
                }
            }
            Op::Dropout(dropout) => {
                let y = if trains {
                    functions::dropout(torch, &values.one(node.inputs[0]))
                } else {
                    values.one(node.inputs[0])
                };
                if dropout.residual { functions::add(torch, &values.one(node.inputs[2]), &y) } else { y }
            }
            Op::CrossEntropy(loss) => {
                let (logits, targets) = (values.one(node.inputs[0]), values.one(node.inputs[1]));
                if loss.cap.is_some() {
                    let capped = functions::soft_cap(torch, &logits);
                    drop(logits);
                    self.release(index, values);
                    functions::cross_entropy(torch, &capped, &targets)
                } else {
                    functions::cross_entropy(torch, &logits, &targets)
                }
            }
            op => unreachable!("{} was checked", op.name()),
        };
        Value::One(tensor)
    }

    fn linear(&self, torch: &Torch, index: usize, linear: &Linear, values: &mut Values) -> Value {
        let node = &self.graph.nodes[index];
        let x = values.one(node.inputs[0]);
        let (weights, biases) = self.weights(node);
        if weights.len() > 1 {
            let reader =
                self.graph.nodes.iter().find(|reader| reader.inputs.first() == Some(&node.outputs[0]));
            if let Some(Op::Gated(_) | Op::QkNorm(_)) = reader.map(|reader| &reader.op) {
                // The reader computes the products itself, one after the other.
                return Value::One(x);
            }
            let (heads, is_changed) = self.reader_of(node.outputs[0]).expect("attention");
            let is_written_out = self.is_written_out;
            let part = |part: usize| {
                let shape = if part == 0 { heads.query_shape() } else { heads.key_shape() };
                // Rotated queries and keys are contiguous, so their gradient has no view's layout.
                let copies_gradient = match is_written_out {
                    true => part != 1 || is_changed || heads.keys != heads.queries,
                    false => is_changed && part < 2,
                };
                self.project(torch, node, part, &x, shape, copies_gradient)
            };
            return Value::Parts((0..weights.len()).map(part).collect());
        }
        let mut y = functions::linear(torch, &x, &weights[0], biases.first());
        if let Some(activation) = linear.activation {
            // `F.gelu(self.up(self.norm(x)))` releases the inner argument first.
            drop(x);
            self.release(index, values);
            y = functions::activation(torch, y, activation);
        }
        if linear.residual {
            let residual = values.one(*node.inputs.last().expect("a residual"));
            y = functions::add(torch, &residual, &y);
        }
        Value::One(y)
    }

    /// `x.split(H * D, -1)` by head, for attention written out.
    fn split_heads(&self, torch: &Torch, qkv: &Tensor, heads: Heads) -> Vec<Tensor> {
        let parts = functions::split(torch, qkv, 3).into_iter().enumerate();
        let by_head = |(part, x): (usize, Tensor)| {
            let shape = if part == 0 { heads.query_shape() } else { heads.key_shape() };
            // The gradient of the keys has the layout of the view already.
            functions::heads(torch, &x, shape.dims(), part != 1)
        };
        parts.map(by_head).collect()
    }

    /// Queries, keys or values of x, by head: `self.q(x).unflatten(-1, (-1, HEAD)).transpose(1, 2)`.
    fn project(
        &self,
        torch: &Torch,
        linear: &Node,
        part: usize,
        x: &Tensor,
        shape: Shape,
        copies_gradient: bool,
    ) -> Tensor {
        let (weights, biases) = self.weights(linear);
        let y = functions::linear(torch, x, &weights[part], biases.get(part));
        functions::heads(torch, &y, shape.dims(), copies_gradient)
    }

    /// The node that computes a value.
    fn writer_of(&self, value: usize) -> &Node {
        let writer = self.graph.nodes.iter().find(|node| node.outputs.first() == Some(&value));
        writer.expect("activations are computed")
    }

    /// The weights and biases of a linear layer.
    fn weights(&self, node: &Node) -> (&[Tensor], &[Tensor]) {
        let Op::Linear(linear) = &node.op else { unreachable!("a linear layer") };
        (self.parameter(node, 1), if linear.bias { self.parameter(node, 2) } else { &[] })
    }

    /// The sizes of the attention layer that reads a value, directly or through norms and rotation, and whether these
    /// change queries and keys.
    fn reader_of(&self, value: usize) -> Option<(Heads, bool)> {
        let reader = self.graph.nodes.iter().find(|node| node.inputs.first() == Some(&value))?;
        match &reader.op {
            Op::Attention(attention) => Some((self.heads(reader, &attention.attending), false)),
            Op::MaterializedAttention(attention) => Some((self.heads(reader, &attention.attending), false)),
            Op::QkNorm(_) | Op::Rotary(_) => Some((self.reader_of(reader.outputs[0])?.0, true)),
            _ => None,
        }
    }

    fn heads(&self, node: &Node, attending: &AttentionConfig) -> Heads {
        let qkv = &self.graph.values[node.inputs[0]].ty;
        let heads = attending.heads("attention", qkv).expect("a graph's types are consistent");
        Heads {
            batch: heads.batch,
            sequence: heads.sequence,
            queries: heads.queries,
            keys: heads.keys,
            head: heads.head,
        }
    }

    fn attention(
        &self,
        torch: &Torch,
        node: &Node,
        attending: &AttentionConfig,
        values: &Values,
        trains: bool,
    ) -> Tensor {
        let heads = self.heads(node, attending);
        let [q, k, v] = match values.0[node.inputs[0]].clone().expect("an input") {
            Value::Parts(qkv) => parts(qkv),
            Value::One(qkv) => parts(functions::split(torch, &qkv, 3)),
        };
        let has_dropout = trains && attending.dropped.is_some();
        let has_mask = is_windowed(attending, heads.sequence);
        let y = functions::scaled_dot_product_attention(torch, [&q, &k, &v], has_mask, heads, has_dropout);
        let channels = heads.queries * heads.head;
        // `transpose(1, 2).reshape(B, T, C)` of a result that is laid out as [B, T, H, D].
        functions::heads(torch, &y, &[heads.batch, heads.sequence, channels], false)
    }
}

fn parts(parts: Vec<Tensor>) -> [Tensor; 3] {
    parts.try_into().unwrap_or_else(|_| unreachable!("queries, keys and values"))
}

pub(crate) fn dtype_of(dtype: ops::DType) -> DType {
    match dtype {
        ops::DType::F32 => DType::F32,
        ops::DType::BF16 => DType::BF16,
        ops::DType::F16 => DType::F16,
        ops::DType::I32 | ops::DType::U16 | ops::DType::U8 | ops::DType::U4 => DType::I64,
    }
}

pub(crate) fn check_operations(config: &RunConfig, graph: &Graph) -> Result<(), NotCovered> {
    for node in &graph.nodes {
        match &node.op {
            Op::Attention(attention) => {
                coverage::check_attention(config, &attention.attending, &graph.values[node.inputs[0]].ty)?;
            }
            Op::MaterializedAttention(attention) => {
                coverage::check_attention(config, &attention.attending, &graph.values[node.inputs[0]].ty)?;
            }
            Op::Embedding(embedding) if embedding.documents => {
                return Err(NotCovered("packed documents, which need a mask".to_owned()));
            }
            Op::Embedding(_)
            | Op::LayerNorm(_)
            | Op::RmsNorm(_)
            | Op::Linear(_)
            | Op::QkNorm(_)
            | Op::Rotary(_)
            | Op::Gated(_)
            | Op::Add(_)
            | Op::Dropout(_)
            | Op::CrossEntropy(_) => {}
            op => return Err(NotCovered(format!("the operation `{}`", op.name()))),
        }
    }
    Ok(())
}

/// By value: the rows of the matrices that a stacked parameter is split into, if PyTorch's modules keep them apart.
/// Queries, keys and values are one matrix, as in GPT-2, if attention reads them unchanged; gate and up never are.
fn separate_parts(graph: &Graph) -> Vec<Vec<usize>> {
    let mut separate = vec![Vec::new(); graph.values.len()];
    for node in &graph.nodes {
        let Op::Linear(linear) = &node.op else { continue };
        let reader = graph.nodes.iter().find(|reader| reader.inputs.first() == Some(&node.outputs[0]));
        let is_fused = match reader.map(|reader| &reader.op) {
            Some(Op::Attention(attention)) => attention.attending.heads == attention.attending.kv_heads,
            Some(Op::MaterializedAttention(attention)) => {
                attention.attending.heads == attention.attending.kv_heads
            }
            Some(Op::QkNorm(_) | Op::Rotary(_) | Op::Gated(_)) => false,
            _ => true,
        };
        if is_fused {
            continue;
        }
        let weight = &graph.values[node.inputs[1]];
        let member = ops::Member { stacked: weight.stacked, ..ops::Member::new(weight.ty.shape, false, 0) };
        let rows: Vec<usize> = member.matrices().map(|rows| rows.len()).collect();
        separate[node.inputs[1]].clone_from(&rows);
        if linear.bias {
            separate[node.inputs[2]] = rows;
        }
    }
    separate
}

/// The shape of one of a parameter's tensors.
fn part_shape(whole: Shape, rows: &[usize], part: usize) -> Shape {
    rows.get(part).map_or(whole, |&rows| whole.with_first(rows))
}

/// Parameters in the order of the modules: by first use; of separate matrices, each with its bias.
fn parameter_order(graph: &Graph, separate: &[Vec<usize>]) -> Vec<(usize, usize)> {
    let mut order: Vec<(usize, usize)> = Vec::new();
    let mut known = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let is_new = |value: &usize| {
            matches!(graph.values[*value].kind, ValueKind::Parameter { .. }) && !known[*value]
        };
        let values: Vec<usize> = node.inputs.iter().copied().filter(is_new).collect();
        let parts = values.iter().map(|&value| separate[value].len().max(1)).max().unwrap_or(0);
        order.extend((0..parts).flat_map(|part| values.iter().map(move |&value| (value, part))));
        values.iter().for_each(|&value| known[value] = true);
    }
    order
}

/// Whether a layer attends to less than the causal context.
fn is_windowed(attending: &AttentionConfig, sequence: usize) -> bool {
    attending.window.is_some_and(|window| window < sequence)
}

/// [T, T] of the mask of layers with or without a window, if one of them needs it.
fn mask_shape(graph: &Graph, windowed: bool) -> Option<[usize; 2]> {
    graph.nodes.iter().find_map(|node| {
        let (attending, is_written_out) = match &node.op {
            Op::MaterializedAttention(attention) => (&attention.attending, true),
            Op::Attention(attention) => (&attention.attending, false),
            _ => return None,
        };
        let sequence = graph.values[node.inputs[0]].ty.shape.dims()[1];
        let needs = match is_windowed(attending, sequence) {
            true => windowed,
            false => !windowed && is_written_out && attending.causal,
        };
        needs.then_some([sequence; 2])
    })
}

/// [T, D] of the cosines and sines.
fn rotary_shape(graph: &Graph) -> Option<[usize; 2]> {
    graph.nodes.iter().find_map(|node| match &node.op {
        Op::Rotary(rotary) => Some([graph.values[node.inputs[0]].ty.shape.dims()[1], rotary.head]),
        _ => None,
    })
}

/// By node: the activations that it reads last.
fn last_uses(graph: &Graph, separate: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut last = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for &input in &node.inputs {
            last[input] = Some(index);
        }
    }
    // `attend(norm(x))` computes separate queries, keys and values, and holds its argument until it returns.
    for (index, node) in graph.nodes.iter().enumerate() {
        if matches!(node.op, Op::Linear(_)) && !separate[node.inputs[1]].is_empty() {
            let is_attention =
                |node: &Node| matches!(node.op, Op::Attention(_) | Op::MaterializedAttention(_));
            let is_same = |other: &Node| other.scope == node.scope;
            let attention = (index..graph.nodes.len())
                .take_while(|&other| is_same(&graph.nodes[other]))
                .find(|&other| is_attention(&graph.nodes[other]));
            if let Some(attention) = attention {
                let last = &mut last[node.inputs[0]];
                *last = (*last).max(Some(attention));
            }
        }
    }
    let mut uses = vec![Vec::new(); graph.nodes.len()];
    for (value, node) in last.into_iter().enumerate() {
        if let Some(node) = node.filter(|_| !matches!(graph.values[value].kind, ValueKind::Parameter { .. }))
        {
            uses[node].push(value);
        }
    }
    uses
}

/// The calls of a model: layers, with their blocks and parts of blocks checkpointed as the strategy has it.
fn calls(recompute: Recompute, graph: &Graph) -> Vec<Call> {
    let layer = |index: usize| graph.scopes[graph.nodes[index].scope.index()].layer;
    let layers = split_by(0..graph.nodes.len(), layer);
    let is_block = |nodes: &Range<usize>| graph.scopes[layer(nodes.start).index()].block;
    let first = layers.iter().position(is_block).unwrap_or(layers.len());
    let end = layers.iter().rposition(is_block).map_or(first, |last| last + 1);
    let plain = |nodes: &Range<usize>| Call::new(graph, nodes.clone(), false, Vec::new());
    let blocks = checkpointed_blocks(recompute, graph, &layers[first..end]);
    layers[..first].iter().map(plain).chain(blocks).chain(layers[end..].iter().map(plain)).collect()
}

fn checkpointed_blocks(recompute: Recompute, graph: &Graph, blocks: &[Range<usize>]) -> Vec<Call> {
    let block = |(index, nodes): (usize, &Range<usize>)| {
        let checkpointed = match recompute {
            Recompute::Block => true,
            Recompute::Every(every) => index.is_multiple_of(every),
            _ => false,
        };
        let parts = parts_of_block(recompute, graph, nodes.clone());
        Call::new(graph, nodes.clone(), checkpointed, parts)
    };
    let mut calls: Vec<Call> = blocks.iter().enumerate().map(block).collect();
    if let Recompute::Segments(segments) = recompute {
        // `checkpoint_sequential`: the last segment takes the rest and is not checkpointed.
        let length = blocks.len() / segments;
        let rest = calls.split_off(length * (segments - 1));
        let segment = |blocks: &[Call]| {
            let nodes = blocks[0].nodes.start..blocks[blocks.len() - 1].nodes.end;
            Call { segment: true, ..Call::new(graph, nodes, true, blocks.to_vec()) }
        };
        calls = calls.chunks(length).map(segment).collect();
        let nodes = rest[0].nodes.start..rest[rest.len() - 1].nodes.end;
        calls.push(Call { segment: true, ..Call::new(graph, nodes, false, rest) });
    }
    calls
}

/// Attention and feed-forward layer of a block.
fn parts_of_block(recompute: Recompute, graph: &Graph, nodes: Range<usize>) -> Vec<Call> {
    let path = |index: usize| graph.scopes[graph.nodes[index].scope.index()].path.as_str();
    let part = |nodes: Range<usize>| {
        let part =
            if path(nodes.start).ends_with("attention") { BlockPart::Attention } else { BlockPart::Mlp };
        let checkpointed = matches!(recompute, Recompute::Parts(parts) if parts.contains(part));
        Call::new(graph, nodes, checkpointed, Vec::new())
    };
    split_by(nodes, path).into_iter().map(part).collect()
}

/// Splits a range where a key changes.
fn split_by<K: PartialEq>(range: Range<usize>, key: impl Fn(usize) -> K) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for index in range {
        match ranges.last_mut().filter(|last| key(last.start) == key(index)) {
            Some(last) => last.end = index + 1,
            None => ranges.push(index..index + 1),
        }
    }
    ranges
}

impl Call {
    fn new(graph: &Graph, nodes: Range<usize>, checkpointed: bool, calls: Vec<Call>) -> Call {
        let input = graph.nodes[nodes.start].inputs[0];
        let output = graph.nodes[nodes.end - 1].outputs[0];
        Call { nodes, input, output, checkpointed, segment: false, calls }
    }
}
