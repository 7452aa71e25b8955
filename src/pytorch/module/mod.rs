//! The model as plain PyTorch modules: the forward pass of a graph.
//!
//! A value lives until the statement that last uses it has run, as in `y = f(y)`.

mod calls;
mod operations;
mod structure;

use std::rc::Rc;

use self::calls::{Call, calls};
pub(crate) use self::structure::attending;
use self::structure::{last_uses, mask_shape, parameter_order, part_shape, rotations, separate_parts};
use crate::checkpoint::{Checkpointed, Function, checkpoint};
use crate::coverage::{self, NotCovered};
use crate::functions;
use crate::network::{Inputs, Network, PartType};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use graph::{Graph, GraphValue, ValueKind, forward_pass};
use ops::{Frequencies, Op, OpKind};
use spec::{ActivationOffload, Attention, KeywordSet, PartRole, Recompute, RunConfig};

/// A value of the graph: one tensor, or the tensors of stacked matrices, such as queries, keys and values.
#[derive(Clone)]
enum Value {
    One(Tensor),
    Parts(Vec<Tensor>),
}

/// The calls under `save_on_cpu`: whether its copies are in pinned memory. `None`: not under it.
#[derive(Clone, Copy)]
pub(crate) struct Offloads {
    pub(crate) forward: Option<bool>,
    /// Checkpointed blocks, whose inputs alone are saved.
    pub(crate) blocks: Option<bool>,
}

impl Offloads {
    pub(crate) fn of(config: &RunConfig) -> Offloads {
        let offload = config.strategy.offload;
        let pinned = (offload.activations != ActivationOffload::Nothing).then_some(offload.pinned);
        match coverage::saves_forward_on_cpu(config) {
            true => Offloads { forward: pinned, blocks: None },
            false => Offloads { forward: None, blocks: pinned },
        }
    }
}

/// The values in use.
struct Values {
    /// By index in the graph.
    by_index: Vec<Option<Value>>,
    /// The logits, if the model returns them.
    logits: Option<Tensor>,
    /// The mask of the batch bool[B, 1, T, T], if samples have several documents.
    mask: Option<Tensor>,
    /// The cosines and sines [T, D] that a block is called with, if they are copies of the tables in another dtype.
    rotations: Vec<[Tensor; 2]>,
}

impl Values {
    fn new(graph: &Graph) -> Values {
        Values {
            by_index: graph.values.iter().map(|_| None).collect(),
            logits: None,
            mask: None,
            rotations: Vec::new(),
        }
    }

    fn one(&self, value: usize) -> Tensor {
        match &self.by_index[value] {
            Some(Value::One(tensor)) => tensor.clone(),
            _ => unreachable!("the value has one tensor"),
        }
    }

    fn parts(&self, value: usize) -> Vec<Tensor> {
        match &self.by_index[value] {
            Some(Value::Parts(parts)) => parts.clone(),
            _ => unreachable!("the value has several tensors"),
        }
    }
}

/// A module with its parameters and buffers on the device.
pub(crate) struct Module {
    graph: Graph,
    /// By value: the tensors of a parameter, if it is one.
    parameters: Vec<Vec<Tensor>>,
    /// Parameters in the order of the modules: value and part.
    order: Vec<(usize, usize)>,
    /// Cosines and sines [T, D] of each kind of rotation.
    rotations: Vec<(Frequencies, [Tensor; 2])>,
    /// Masks bool[T, T] of attention: of the full context, and of the window.
    masks: [Option<Tensor>; 2],
    /// Of parameters in forward.
    dtype: DType,
    /// Whether attention is written out, here or in PyTorch.
    is_written_out: bool,
    calls: Rc<Vec<Call>>,
    /// By node: the values that it uses last.
    last_uses: Vec<Vec<usize>>,
    tokens: usize,
    targets: usize,
    /// Slices of rows in which logits and loss are computed, each under a checkpoint.
    loss_chunks: usize,
    /// The kinds of operations whose results checkpointed blocks keep.
    keeps: KeywordSet<OpKind>,
    /// Whether parameters are on the device only while their module runs: `module.to(device)` before, `module.to("cpu")`
    /// after it.
    offloads_parameters: bool,
    /// What is under `save_on_cpu`: the calls of blocks, or the whole forward pass.
    offloads: Offloads,
    /// Whether it returns the logits beside the loss.
    returns_logits: bool,
}

impl Module {
    /// Moves the module of a run to the device, as `model.to("cuda")` does.
    ///
    /// # Errors
    /// The graph has an operation that is not covered.
    pub(crate) fn new(torch: &Torch, config: &RunConfig, graph: Graph) -> Result<Rc<Module>, NotCovered> {
        coverage::check_operations(config, &graph)?;
        let stored = dtype_of(config.strategy.params.dtype());
        let dtype = coverage::gathered_dtype(config).unwrap_or(stored);
        let separate = separate_parts(&graph);
        let order = parameter_order(&graph, &separate);
        let offloads_parameters = config.strategy.offload.parameters;
        let mut parameters = vec![Vec::new(); graph.values.len()];
        for &(value, part) in &order {
            let GraphValue { ty, kind, .. } = graph.values[value];
            let shape = part_shape(ty.shape, &separate[value], part);
            let tensor =
                if offloads_parameters { torch.on_host(shape, stored) } else { torch.tensor(shape, stored) };
            let tensor = tensor.with_dtype(dtype);
            let is_trained = matches!(kind, ValueKind::Parameter { trainable: true, .. });
            parameters[value].push(if is_trained { tensor.leaf() } else { tensor });
        }
        let tables = |dims: [usize; 2]| [(); 2].map(|()| torch.empty(&dims, stored));
        let rotations = rotations(&graph).into_iter();
        let rotations = rotations.map(|(frequencies, dims)| (frequencies.clone(), tables(dims))).collect();
        let masks = [false, true]
            .map(|windowed| mask_shape(&graph, windowed).map(|dims| torch.empty(&dims, DType::Bool)));
        let input = |role: PartRole, name: &str| {
            let is_input = |index: &usize| graph.values[*index].input_role() == Some(role);
            graph.inputs().find(is_input).ok_or_else(|| NotCovered(format!("models without {name}")))
        };
        let groups = config.model.transformer().is_some_and(|model| model.kv_heads != model.heads);
        let is_fp32 = dtype_of(config.strategy.precision.dtype()) == DType::F32;
        let is_unfused = is_fp32 && groups && !torch.rules.efficient_groups;
        let loss_chunks = config.strategy.loss_chunks;
        let (tokens, targets) = (input(PartRole::Input, "tokens")?, input(PartRole::Target, "targets")?);
        let (calls, last_uses) =
            (Rc::new(calls(config.strategy.recompute, &graph)), last_uses(&graph, &separate));
        Ok(Rc::new(Module {
            graph,
            parameters,
            order,
            rotations,
            masks,
            dtype,
            is_written_out: config.strategy.attention == Attention::Materialized || is_unfused,
            calls,
            last_uses,
            tokens,
            targets,
            loss_chunks,
            keeps: match config.strategy.recompute {
                Recompute::Save(kinds) => kinds,
                _ => [].into_iter().collect(),
            },
            offloads_parameters,
            offloads: Offloads::of(config),
            returns_logits: coverage::returns_logits(config),
        }))
    }

    fn run_calls(self: &Rc<Module>, torch: &Torch, calls: &[Call], values: &mut Values, trains: bool) {
        // The caller's variable holds the input of `checkpoint_sequential` until it returns.
        let mut sequential_input = None;
        for call in calls {
            if call.segment && !trains {
                self.run_calls(torch, &call.calls, values, trains);
                continue;
            }
            let input = values.by_index[call.input].clone();
            sequential_input =
                input.clone().filter(|_| call.segment).map(|first| sequential_input.unwrap_or(first));
            if call.checkpointed && trains {
                values.by_index[call.input] = None;
                let Some(Value::One(x)) = &input else { unreachable!("a call has one input") };
                // Only attention takes the mask: as an argument or, in segments, in a closure.
                let mask = values.mask.clone().filter(|_| self.attends(call));
                let closure = mask.clone().filter(|_| call.segment).into_iter().collect();
                let function = self.recomputed(call, mask);
                let called = Checkpointed { function, closure, keeps: self.keeps };
                let y = torch.with_save_on_cpu(self.offloads.blocks, || checkpoint(torch, called, x));
                values.by_index[call.output] = Some(Value::One(y));
            } else {
                let nodes = call.nodes.clone().filter(|_| call.block.is_some());
                let _moved =
                    self.moved(torch, nodes.flat_map(|index| self.graph.nodes[index].inputs.clone()));
                self.run(torch, call, values, trains);
            }
        }
    }

    /// The parameters among these values that `module.to(device)` moves to the device, in the order of the modules.
    fn moved(&self, torch: &Torch, values: impl Iterator<Item = usize>) -> Vec<Tensor> {
        if !self.offloads_parameters {
            return Vec::new();
        }
        let values: Vec<usize> = values.collect();
        let order = self.order.iter().filter(|(value, _)| values.contains(value));
        torch.with_purpose(Purpose::Parameter, || {
            order.map(|&(value, part)| torch.like(&self.parameters[value][part])).collect()
        })
    }

    fn attends(&self, call: &Call) -> bool {
        self.graph.nodes[call.nodes.clone()].iter().any(|node| attending(&node.op).is_some())
    }

    /// A checkpointed call as a function of its input.
    fn recomputed(self: &Rc<Module>, call: &Call, mask: Option<Tensor>) -> Function {
        let (module, call) = (Rc::clone(self), call.clone());
        Rc::new(move |torch, x| {
            let mut values = Values::new(&module.graph);
            values.mask = mask.clone();
            values.by_index[call.input] = Some(Value::One(x.clone()));
            module.run(torch, &call, &mut values, true);
            values.one(call.output)
        })
    }

    /// Runs a call, with the hooks of a wrapped block.
    fn run(self: &Rc<Module>, torch: &Torch, call: &Call, values: &mut Values, trains: bool) {
        let (Some(block), Some(sharded)) = (call.block, torch.fully_shard.get()) else {
            return self.run_operations(torch, call, values, trains);
        };
        values.rotations = self.cast_rotations(torch);
        let x = values.one(call.input);
        let y = sharded.forward_of_block(torch, block, &x, |x| {
            values.by_index[call.input] = Some(Value::One(x));
            self.run_operations(torch, call, values, trains);
            values.one(call.output)
        });
        values.by_index[call.output] = Some(Value::One(y));
        values.rotations.clear();
    }

    /// The tables of a block's rotations in the dtype of gathered parameters (`cast_forward_inputs`).
    fn cast_rotations(&self, torch: &Torch) -> Vec<[Tensor; 2]> {
        let tokens = self.batch_shape().dims()[1];
        let cast = |table: &Tensor| torch.tensor(table.shape().with_first(tokens), self.dtype);
        let tables = self.rotations.iter().map(|(_, tables)| tables);
        let differ = tables.filter(|[table, _]| table.dtype() != self.dtype);
        differ.map(|tables| tables.each_ref().map(cast)).collect()
    }

    fn run_operations(self: &Rc<Module>, torch: &Torch, call: &Call, values: &mut Values, trains: bool) {
        if !call.calls.is_empty() {
            return self.run_calls(torch, &call.calls, values, trains);
        }
        for index in call.nodes.clone() {
            if self.loss_chunks > 1 && self.is_head(index) {
                let loss =
                    torch.with_purpose(Purpose::Loss, || self.chunked_loss(torch, index, values, trains));
                let last = self.graph.nodes.last().expect("a loss");
                values.by_index[last.outputs[0]] = Some(Value::One(loss));
                return;
            }
            let purpose = if self.is_loss(index) { Purpose::Loss } else { Purpose::Activation };
            let output = torch.with_purpose(purpose, || {
                let _moved = self.moved_alone(torch, index);
                self.call(torch, index, values, trains)
            });
            self.release(index, values);
            values.by_index[self.graph.nodes[index].outputs[0]] = Some(output);
        }
    }

    /// The parameters of a node outside blocks, which is a module of its own. Those of two tables move one after the other.
    fn moved_alone(&self, torch: &Torch, index: usize) -> Vec<Tensor> {
        let node = &self.graph.nodes[index];
        let scopes = &self.graph.scopes;
        let is_in_block = scopes[scopes[node.scope.index()].layer.index()].block;
        let moves = !is_in_block && !matches!(node.op, Op::Embedding(_));
        self.moved(torch, node.inputs.iter().copied().filter(|_| moves))
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
                let moved = module.moved_alone(torch, head);
                let mut logits = functions::linear(torch, x, &weights[0], None);
                drop(moved);
                if is_capped {
                    logits = functions::soft_cap(torch, &logits);
                }
                functions::cross_entropy(torch, &logits, &targets)
            };
            let part = if trains {
                checkpoint(torch, Checkpointed::of(Rc::new(function)), chunk)
            } else {
                function(torch, chunk)
            };
            sum = Some(match &sum {
                None => functions::add_number(torch, &part),
                Some(sum) => functions::add(torch, sum, &part),
            });
        }
        functions::scale(torch, &sum.expect("a slice"))
    }
}

impl Network for Module {
    fn resized(&self, config: &RunConfig, samples: usize) -> Rc<dyn Network> {
        Rc::new(Module {
            graph: forward_pass(config, samples),
            parameters: self.parameters.clone(),
            order: self.order.clone(),
            rotations: self.rotations.clone(),
            masks: self.masks.clone(),
            calls: Rc::clone(&self.calls),
            last_uses: self.last_uses.clone(),
            ..*self
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.order.iter().map(|&(value, part)| self.parameters[value][part].clone()).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        let rotations = self.rotations.iter().flat_map(|(_, tables)| tables);
        rotations.chain(self.masks.iter().flatten()).cloned().collect()
    }

    fn embeddings(&self) -> Vec<Tensor> {
        let nodes = self.graph.nodes.iter().filter(|node| matches!(node.op, Op::Embedding(_)));
        nodes.flat_map(|node| &node.inputs).flat_map(|&input| self.parameters[input].clone()).collect()
    }

    fn blocks(&self) -> Vec<Vec<Tensor>> {
        let parameters = |call: &Call| {
            let nodes = &self.graph.nodes[call.nodes.clone()];
            let is_input = |value| nodes.iter().any(|node| node.inputs.contains(value));
            let own = self.order.iter().filter(|(value, _)| is_input(value));
            own.map(|&(value, part)| self.parameters[value][part].clone()).collect()
        };
        let blocks = self.calls.iter().filter(|call| call.block.is_some());
        blocks.map(parameters).collect()
    }

    fn block_matrices(&self) -> Vec<Tensor> {
        let hidden = self.graph.hidden_matrices();
        self.order
            .iter()
            .filter(|(value, _)| hidden[*value])
            .map(|&(value, part)| self.parameters[value][part].clone())
            .collect()
    }

    fn batch(&self) -> (PartType, Option<PartType>) {
        let part = |value: usize| {
            let ty = self.graph.values[value].ty;
            (ty.shape, dtype_of(ty.dtype))
        };
        (part(self.tokens), Some(part(self.targets)))
    }

    fn loss(self: Rc<Module>, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>) {
        let (targets, Inputs { tokens, third, .. }) = (inputs.expect_targets(), inputs);
        let mut values = Values::new(&self.graph);
        values.mask = third.map(|starts| {
            // `(starts[:, None, :, None] == starts[:, None, None, :]) & self.mask`
            let [samples, tokens] = [starts.shape().dims()[0], starts.shape().last()];
            let _same_document = torch.empty(&[samples, 1, tokens, tokens], DType::Bool);
            torch.empty(&[samples, 1, tokens, tokens], DType::Bool)
        });
        values.by_index[self.tokens] = Some(Value::One(tokens.clone()));
        values.by_index[self.targets] = Some(Value::One(targets.clone()));
        torch.with_save_on_cpu(self.offloads.forward, || {
            self.run_calls(torch, &self.calls, &mut values, trains);
        });
        (values.one(self.graph.nodes.last().expect("a loss").outputs[0]), values.logits)
    }
}

pub(crate) fn dtype_of(dtype: ops::DType) -> DType {
    match dtype {
        ops::DType::F32 => DType::F32,
        ops::DType::BF16 => DType::BF16,
        ops::DType::F16 => DType::F16,
        ops::DType::I32 | ops::DType::U16 | ops::DType::U8 | ops::DType::U4 => DType::I64,
    }
}
