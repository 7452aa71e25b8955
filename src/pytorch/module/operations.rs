//! The operations of a graph as calls of PyTorch's functions.

use super::structure::{attending, is_windowed};
use super::{Module, Value, Values};
use crate::functions::{self, Heads, Layout};
use crate::network::Network;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use graph::Node;
use ops::{AttentionConfig, Frequencies, Linear, Op, Shape};

impl Module {
    /// Drops the values that a node uses last.
    pub(super) fn release(&self, node: usize, values: &mut Values) {
        for &value in &self.last_uses[node] {
            values.by_index[value] = None;
        }
    }

    /// The parameter that is an input of a node.
    fn parameter(&self, node: &Node, input: usize) -> &[Tensor] {
        &self.parameters[node.inputs[input]]
    }

    pub(super) fn call(&self, torch: &Torch, index: usize, values: &mut Values, trains: bool) -> Value {
        let node = &self.graph.nodes[index];
        let tensor = match &node.op {
            Op::Embedding(embedding) => {
                let [table] = self.parameter(node, 1) else { unreachable!("a table is one tensor") };
                let mut x = {
                    let _moved = self.moved(torch, [node.inputs[1]].into_iter());
                    functions::embedding(torch, table, &values.one(node.inputs[0]))
                };
                if embedding.scale != 1.0 {
                    x = functions::scale(torch, &x);
                }
                if embedding.positions {
                    let [table] = self.parameter(node, 2) else { unreachable!("a table is one tensor") };
                    let positions = {
                        let mut positions = torch.empty(&self.batch_shape().dims()[1..], DType::I64);
                        if embedding.documents {
                            // `torch.arange(CONTEXT) - starts`
                            positions = torch.tensor(self.batch_shape(), DType::I64);
                        }
                        let _moved = self.moved(torch, [node.inputs[2]].into_iter());
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
                let reader = self.reader_of(node.outputs[0]).expect("attention");
                let heads = reader.heads;
                // Of all heads together.
                let is_joint = norm.heads.queries != heads.queries || norm.heads.keys != heads.keys;
                let part = |part: usize| {
                    let shape = if part == 0 { heads.query_shape() } else { heads.key_shape() };
                    let layout = self.layout(torch, part, &reader);
                    let Some(norm) = (part < 2).then(|| &self.parameter(node, 1 + part)[0]) else {
                        return self.project(torch, linear, part, &x, shape, layout);
                    };
                    if is_joint {
                        // self.q_norm(self.q(x)).unflatten(-1, (-1, HEAD)).transpose(1, 2)
                        let normed = {
                            let (weights, biases) = self.weights(linear);
                            let y = functions::linear(torch, &x, &weights[part], biases.get(part));
                            functions::rms_norm(torch, &y, norm, zero_centered)
                        };
                        return functions::heads(torch, &normed, shape.dims(), layout);
                    }
                    // self.q_norm(self.q(x).unflatten(-1, (-1, HEAD))).transpose(1, 2)
                    let normed = {
                        let y = self.project(torch, linear, part, &x, shape, layout);
                        functions::rms_norm(torch, &y, norm, zero_centered)
                    };
                    functions::heads(torch, &normed, shape.dims(), Layout::Tokens)
                };
                return Value::Parts((0..3).map(part).collect());
            }
            Op::Rotary(rotary) => {
                let [q, k, v] = parts(values.parts(node.inputs[0]));
                let tokens = self.batch_shape().dims()[1];
                let is_own = |(frequencies, _): &&(Frequencies, _)| *frequencies == rotary.frequencies;
                let index = self.rotations.iter().position(|rotation| is_own(&rotation));
                let index = index.expect("tables of each rotation");
                let [cos, sin] =
                    values.rotations.get(index).unwrap_or(&self.rotations[index].1).each_ref().map(
                        // `self.cos[: tokens.shape[1]]`
                        |table| table.view(table.shape().with_first(tokens)),
                    );
                let q_rotated = functions::rotate(torch, &q, &cos, &sin);
                let k_rotated = functions::rotate(torch, &k, &cos, &sin);
                return Value::Parts(vec![q_rotated, k_rotated, v]);
            }
            Op::Attention(attention) => self.attention(torch, node, &attention.attending, values, trains),
            Op::MaterializedAttention(attention) => {
                let AttentionConfig { cap, dropped, .. } = &attention.attending;
                let heads = self.heads(node, &attention.attending);
                let value = values.by_index[node.inputs[0]].take().expect("an input");
                let (qkv, _argument) = match value {
                    Value::Parts(qkv) => (parts(qkv), None),
                    // `attend(self.qkv(x))` holds its argument until it returns.
                    Value::One(qkv) => (parts(self.split_heads(torch, &qkv, heads, true)), Some(qkv)),
                };
                let has_dropout = trains && dropped.is_some();
                let is_windowed = is_windowed(&attention.attending, heads.sequence);
                let mask = values.mask.as_ref().or(self.masks[usize::from(is_windowed)].as_ref());
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
            Op::Scale(_) => functions::scale(torch, &values.one(node.inputs[0])),
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
                    values.logits = Some(capped.clone()).filter(|_| self.returns_logits);
                    functions::cross_entropy(torch, &capped, &targets)
                } else {
                    values.logits = Some(logits.clone()).filter(|_| self.returns_logits);
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
            let reader = self.reader_of(node.outputs[0]).expect("attention");
            let part = |part: usize| {
                let shape = reader.heads.part_shape(part);
                self.project(torch, node, part, &x, shape, self.layout(torch, part, &reader))
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

    /// `x.split(H * D, -1)` by head.
    fn split_heads(&self, torch: &Torch, qkv: &Tensor, heads: Heads, is_masked: bool) -> Vec<Tensor> {
        let parts = functions::split(torch, qkv, 3).into_iter().enumerate();
        let by_head = |(part, x): (usize, Tensor)| {
            let shape = if part == 0 { heads.query_shape() } else { heads.key_shape() };
            let layout = match self.is_written_out {
                // The gradient of the keys has the layout of the view already.
                true if part == 1 => Layout::Tokens,
                true => Layout::Heads,
                false => self.layout(torch, part, &Reader { heads, rotates: false, is_masked }),
            };
            functions::heads(torch, &x, shape.dims(), layout)
        };
        parts.map(by_head).collect()
    }

    /// The layout of the gradient of queries, keys or values.
    fn layout(&self, torch: &Torch, part: usize, &Reader { heads, rotates, is_masked }: &Reader) -> Layout {
        match (part, self.is_written_out) {
            // Rotated queries and keys are contiguous.
            (0 | 1, _) if rotates => Layout::Heads,
            // The gradient of `k.transpose(-2, -1)`, unless that of repeated heads is summed.
            (1, true) if heads.keys == heads.queries => Layout::Channels,
            (_, true) => Layout::Heads,
            (_, false) if !is_masked && self.has_flash_of_copies(torch) => Layout::Heads,
            (_, false) => Layout::Tokens,
        }
    }

    /// Whether attention without a mask is FlashAttention, whose gradients lie as its arguments do: those that return
    /// from pinned memory are contiguous.
    fn has_flash_of_copies(&self, torch: &Torch) -> bool {
        let dtype = torch.autocast().unwrap_or(self.dtype);
        torch.saves_on_cpu() == Some(true) && functions::is_flash(torch, dtype)
    }

    /// Queries, keys or values of x, by head: `self.q(x).unflatten(-1, (-1, HEAD)).transpose(1, 2)`.
    fn project(
        &self,
        torch: &Torch,
        linear: &Node,
        part: usize,
        x: &Tensor,
        shape: Shape,
        gradient: Layout,
    ) -> Tensor {
        let (weights, biases) = self.weights(linear);
        let y = functions::linear(torch, x, &weights[part], biases.get(part));
        functions::heads(torch, &y, shape.dims(), gradient)
    }

    /// The node that computes a value.
    fn writer_of(&self, value: usize) -> &Node {
        let writer = self.graph.nodes.iter().find(|node| node.outputs.first() == Some(&value));
        writer.expect("activations are computed")
    }

    /// The weights and biases of a linear layer.
    pub(super) fn weights(&self, node: &Node) -> (&[Tensor], &[Tensor]) {
        let Op::Linear(linear) = &node.op else { unreachable!("a linear layer") };
        (self.parameter(node, 1), if linear.bias { self.parameter(node, 2) } else { &[] })
    }

    /// The attention layer that reads a value, directly or through norms and rotation.
    fn reader_of(&self, value: usize) -> Option<Reader> {
        let reader = self.graph.nodes.iter().find(|node| node.inputs.first() == Some(&value))?;
        if let Some(attending) = attending(&reader.op) {
            let heads = self.heads(reader, attending);
            return Some(Reader { heads, rotates: false, is_masked: is_masked(attending, heads.sequence) });
        }
        match &reader.op {
            Op::QkNorm(_) | Op::Rotary(_) => {
                Some(Reader { rotates: true, ..self.reader_of(reader.outputs[0])? })
            }
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
            by_head: false,
            is_sliced: self.writer_is_one_matrix(node.inputs[0]),
        }
    }

    /// Whether one matrix computes queries, keys and values.
    fn writer_is_one_matrix(&self, value: usize) -> bool {
        let writer = self.writer_of(value);
        matches!(writer.op, Op::Linear(_)) && self.parameter(writer, 1).len() == 1
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
        let [q, k, v] = match values.by_index[node.inputs[0]].clone().expect("an input") {
            Value::Parts(qkv) => parts(qkv),
            Value::One(qkv) => {
                let is_masked = is_masked(attending, heads.sequence);
                parts(self.split_heads(torch, &qkv, heads, is_masked))
            }
        };
        let has_dropout = trains && attending.dropped.is_some();
        let windowed = is_windowed(attending, heads.sequence);
        let mask = values.mask.as_ref().or(self.masks[1].as_ref().filter(|_| windowed));
        let mask = mask.map(Tensor::shape);
        let y = functions::scaled_dot_product_attention(
            torch,
            [&q, &k, &v],
            mask,
            heads,
            attending.causal,
            has_dropout,
        );
        let channels = heads.queries * heads.head;
        // `transpose(1, 2).reshape(B, T, C)` of a result that is laid out as [B, T, H, D].
        functions::heads(torch, &y, &[heads.batch, heads.sequence, channels], Layout::Tokens)
    }
}

/// The attention layer that reads a value.
struct Reader {
    heads: Heads,
    /// Whether norms or rotation change queries and keys before.
    rotates: bool,
    is_masked: bool,
}

/// Whether attention has a mask as a tensor.
fn is_masked(attending: &AttentionConfig, sequence: usize) -> bool {
    attending.documents || is_windowed(attending, sequence)
}

fn parts(parts: Vec<Tensor>) -> [Tensor; 3] {
    parts.try_into().unwrap_or_else(|_| unreachable!("queries, keys and values"))
}
