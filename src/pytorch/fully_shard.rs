//! `fully_shard` (FSDP2) on the first of several ranks, which wraps each block and then the model.
//!
//! Every parameter has a shard on each rank. Hooks of the modules gather the parameters of a module before its forward pass and
//! before its backward pass, and release them afterwards; after backward, its gradients are reduced and scattered. The buffers
//! of gathered parameters and of scattered gradients are requests of other streams, whose free blocks are not shared.

use std::cell::{Cell, RefCell};

use crate::network::Network;
use crate::sequence::{Purpose, Stream};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// Bytes that a thread block of the kernels copies.
const BLOCK_BYTES: u64 = 2048;

/// Threads of such a block.
const BLOCK_THREADS: usize = 128;

/// The wrapped modules of a model, and what they share.
pub(crate) struct FullyShard {
    ranks: usize,
    /// The dtype of shards and of their gradients.
    dtype: DType,
    /// The blocks, then the model with the remaining parameters.
    modules: Vec<ShardedModule>,
    /// The shards of all parameters, in the order of the model's.
    shards: Vec<Tensor>,
    /// Whether parameters of blocks stay gathered after forward (`reshard_after_forward=False`).
    keeps_gathered: bool,
    /// Whether the gradients of the next backward pass are reduced (`set_requires_gradient_sync`).
    reduces: Cell<bool>,
    /// The buffer of the parameters gathered last in forward, until the next ones are copied out.
    retained: RefCell<Option<Tensor>>,
    /// The input of the last reduction, until the next one.
    reduced: RefCell<Option<Tensor>>,
    /// The modules in the order of their forward passes since the last backward pass.
    forward_order: RefCell<Vec<usize>>,
    /// Whether the backward pass has come to a module, so that its end finishes what is left.
    is_in_backward: Cell<bool>,
}

/// A wrapped module: a group of parameters that are gathered and reduced together.
struct ShardedModule {
    parameters: Vec<ShardedParameter>,
    state: Cell<State>,
    /// Whether forward calls of the module are recomputations: from its pre-backward hook to the end of backward.
    recomputes: Cell<bool>,
    is_gathered: Cell<bool>,
    /// The gathered parameters before they are copied out.
    buffer: RefCell<Option<Tensor>>,
    /// Its positions in the order of forward passes.
    positions: RefCell<Vec<usize>>,
}

/// `TrainingState`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Forward,
    PreBackward,
    PostBackward,
}

struct ShardedParameter {
    /// The whole parameter, whose storage has memory only while it is gathered: the shards of all ranks.
    whole: Tensor,
    /// This rank's rows. The first rank's have no padding.
    shard: Tensor,
}

impl FullyShard {
    /// Wraps a model that this number of ranks train: divides its parameters into shards of a dtype.
    pub(crate) fn new(
        torch: &Torch,
        network: &dyn Network,
        ranks: usize,
        dtype: DType,
        keeps_gathered: bool,
    ) -> FullyShard {
        let parameters = network.parameters();
        let blocks = network.blocks();
        let is_in_block =
            |parameter: &Tensor| blocks.iter().flatten().any(|other| other.id() == parameter.id());
        let rest: Vec<Tensor> =
            parameters.iter().filter(|parameter| !is_in_block(parameter)).cloned().collect();
        let modules: Vec<ShardedModule> = blocks
            .iter()
            .chain([&rest])
            .map(|parameters| ShardedModule::new(torch, parameters, ranks, dtype))
            .collect();
        let shards = parameters.iter().map(|parameter| {
            let mut all = modules.iter().flat_map(|module| &module.parameters);
            let sharded = all.find(|sharded| sharded.whole.id() == parameter.id());
            sharded.expect("each parameter is in a module").shard.clone()
        });
        FullyShard {
            ranks,
            dtype,
            shards: shards.collect(),
            modules,
            keeps_gathered,
            reduces: Cell::new(true),
            retained: RefCell::default(),
            reduced: RefCell::default(),
            forward_order: RefCell::default(),
            is_in_backward: Cell::new(false),
        }
    }

    /// The shards of the parameters, which the optimizer updates.
    pub(crate) fn shards(&self) -> &[Tensor] {
        &self.shards
    }

    /// Whether the ranks reduce the gradients of the next backward pass.
    pub(crate) fn set_reduces(&self, reduces: bool) {
        self.reduces.set(reduces);
    }

    /// The module of all parameters that are in no block.
    fn root(&self) -> usize {
        self.modules.len() - 1
    }

    /// `forward` of the model, whose inputs need no gradient.
    pub(crate) fn forward(
        &self,
        torch: &Torch,
        forward: impl FnOnce() -> (Tensor, Option<Tensor>),
    ) -> (Tensor, Option<Tensor>) {
        let root = self.root();
        self.gather_for_forward(torch, root);
        let (loss, logits) = forward();
        self.finish_forward(torch, root, &loss);
        self.retained.take();
        (loss, logits)
    }

    /// `block(x)`
    pub(crate) fn forward_of_block(
        &self,
        torch: &Torch,
        block: usize,
        x: &Tensor,
        forward: impl FnOnce(Tensor) -> Tensor,
    ) -> Tensor {
        let module = &self.modules[block];
        if module.recomputes.get() {
            if !module.is_gathered.get() {
                self.gather(torch, block);
                self.copy_out(torch, block);
            }
            return forward(x.clone());
        }
        self.gather_for_forward(torch, block);
        let y = forward(after_gradient(torch, block, x));
        self.finish_forward(torch, block, &y);
        y
    }

    /// The hook before a module's forward pass.
    fn gather_for_forward(&self, torch: &Torch, module: usize) {
        self.modules[module].state.set(State::Forward);
        self.gather(torch, module);
        self.copy_out(torch, module);
    }

    /// The hook after it: has backward gather the module's parameters when the gradient of the output is complete.
    fn finish_forward(&self, torch: &Torch, number: usize, output: &Tensor) {
        let module = &self.modules[number];
        if !self.keeps_gathered && number != self.root() {
            module.release();
        }
        let mut order = self.forward_order.borrow_mut();
        module.positions.borrow_mut().push(order.len());
        order.push(number);
        module.state.set(State::Idle);
        if torch.grad_enabled()
            && let Some((node, _)) = output.node()
        {
            node.register_hook(move |torch| {
                let sharded = torch.fully_shard.get().expect("its hooks run");
                sharded.gather_for_backward(torch, number);
            });
        }
    }

    /// The hook before a module's backward pass. It prefetches the module before it in the order of forward passes.
    fn gather_for_backward(&self, torch: &Torch, number: usize) {
        let module = &self.modules[number];
        module.recomputes.set(true);
        self.is_in_backward.set(true);
        if module.state.replace(State::PreBackward) == State::PreBackward {
            return;
        }
        self.gather(torch, number);
        self.copy_out(torch, number);
        for ShardedParameter { whole, .. } in &module.parameters {
            // A gradient that others will be added to is cast first. The kernels that add or reduce cast the others.
            let is_cast = !self.reduces.get() && !whole.has_grad();
            whole.set_grad_dtype(is_cast.then_some(self.dtype));
        }
        let position = module.positions.borrow_mut().pop();
        if let Some(before) = position.and_then(|position| position.checked_sub(1)) {
            let target = self.forward_order.borrow()[before];
            self.gather(torch, target);
        }
    }

    /// Gathers a module's parameters in a buffer (`unshard`).
    fn gather(&self, torch: &Torch, module: usize) {
        let ShardedModule { parameters, is_gathered, buffer, .. } = &self.modules[module];
        if is_gathered.get() || buffer.borrow().is_some() {
            return;
        }
        let elements: usize = parameters.iter().map(|parameter| parameter.shard.elements()).sum();
        let dtype = parameters[0].whole.dtype();
        let gathered = torch.with_purpose(Purpose::Communication, || {
            torch.with_stream(Stream::AllGather, || {
                let _cast = (dtype != self.dtype).then(|| torch.empty(&[elements], dtype));
                torch.empty(&[self.ranks * elements], dtype)
            })
        });
        buffer.replace(Some(gathered));
    }

    /// Copies gathered parameters out of their buffer (`wait_for_unshard`).
    fn copy_out(&self, torch: &Torch, number: usize) {
        let module = &self.modules[number];
        let Some(buffer) = module.buffer.take() else { return };
        let is_forward = module.state.get() == State::Forward;
        if is_forward {
            self.retained.take();
        }
        torch.with_purpose(Purpose::Parameter, || {
            for parameter in &module.parameters {
                parameter.whole.allocate_storage(torch, self.ranks as u64 * parameter.gathered_bytes());
            }
        });
        let shards: Vec<u64> = module.parameters.iter().map(ShardedParameter::gathered_bytes).collect();
        torch.scratch(copy_out_table(torch, &shards, self.ranks));
        module.is_gathered.set(true);
        if is_forward {
            self.retained.replace(Some(buffer));
        }
    }

    /// The hook after a module's backward pass.
    fn reduce(&self, torch: &Torch, module: usize) {
        let module = &self.modules[module];
        module.state.set(State::PostBackward);
        if !self.reduces.get() {
            module.release();
            return;
        }
        let gradients = module.parameters.iter().filter_map(|parameter| {
            let gradient = parameter.whole.grad()?;
            parameter.whole.set_grad(None);
            Some((parameter, gradient))
        });
        let (parameters, gradients): (Vec<&ShardedParameter>, Vec<Tensor>) = gradients.unzip();
        module.release();
        self.reduced.take();
        if gradients.is_empty() {
            return;
        }
        let dtype = self.dtype;
        let elements: usize = parameters.iter().map(|parameter| parameter.shard.elements()).sum();
        let input =
            torch.with_purpose(Purpose::Communication, || torch.empty(&[self.ranks * elements], dtype));
        let bytes = |parameter: &&ShardedParameter| parameter.shard.elements() as u64 * dtype.bytes();
        let shards: Vec<u64> = parameters.iter().map(bytes).collect();
        torch.scratch(copy_in_table(&shards));
        drop(gradients);
        let output = torch.with_purpose(Purpose::Gradient, || {
            torch.with_stream(Stream::ReduceScatter, || torch.empty(&[elements], dtype))
        });
        for ShardedParameter { shard, .. } in parameters {
            if !shard.has_grad() {
                shard.set_grad(Some(output.view(shard.shape())));
            }
        }
        self.reduced.replace(Some(input));
    }

    /// The end of a backward pass: what the hooks have not done, because the inputs of a module need no gradient.
    pub(crate) fn end_backward(&self, torch: &Torch) {
        if !self.is_in_backward.replace(false) {
            return;
        }
        // The model is the first of its modules.
        let root = self.root();
        for number in std::iter::once(root).chain(0..root) {
            let module = &self.modules[number];
            if module.state.get() != State::PostBackward {
                self.reduce(torch, number);
            }
            module.state.set(State::Idle);
            module.recomputes.set(false);
        }
        for module in &self.modules {
            module.buffer.take();
            module.positions.borrow_mut().clear();
        }
        self.retained.take();
        self.forward_order.borrow_mut().clear();
        self.reduced.take();
    }
}

impl ShardedModule {
    /// Divides the parameters of a module. Then their whole storages are released.
    fn new(torch: &Torch, parameters: &[Tensor], ranks: usize, dtype: DType) -> ShardedModule {
        let shard = |whole: &Tensor| {
            let rows = whole.shape().dims()[0].div_ceil(ranks);
            let shard = torch.tensor(whole.shape().with_first(rows), dtype);
            let shard = if whole.requires_grad() { shard.leaf() } else { shard };
            ShardedParameter { whole: whole.clone(), shard }
        };
        let parameters: Vec<ShardedParameter> = parameters.iter().map(shard).collect();
        parameters.iter().for_each(|parameter| parameter.whole.free_storage());
        ShardedModule {
            parameters,
            state: Cell::default(),
            recomputes: Cell::new(false),
            is_gathered: Cell::new(false),
            buffer: RefCell::default(),
            positions: RefCell::default(),
        }
    }

    /// Releases the gathered parameters (`reshard`).
    fn release(&self) {
        if self.is_gathered.replace(false) {
            self.parameters.iter().for_each(|parameter| parameter.whole.free_storage());
        }
    }
}

impl ShardedParameter {
    /// Bytes of each rank's rows once gathered.
    fn gathered_bytes(&self) -> u64 {
        self.shard.elements() as u64 * self.whole.dtype().bytes()
    }
}

/// The input of a block, whose gradient is complete after the block's backward pass: then its gradients are reduced.
fn after_gradient(torch: &Torch, block: usize, x: &Tensor) -> Tensor {
    let node = torch.node(&[x], &[], move |torch, backward| {
        torch.fully_shard.get().expect("its hooks run").reduce(torch, block);
        vec![backward.gradient().clone().into()]
    });
    match node {
        Some(node) => x.view(x.shape()).output_of(&node, 0),
        None => x.clone(),
    }
}

/// Bytes of the table of `split_with_sizes_copy`: the address, size and offset of each output, and the first output of each
/// thread block. `shards`: bytes.
fn copy_out_table(torch: &Torch, shards: &[u64], ranks: usize) -> u64 {
    let blocks = |bytes: u64| shards.iter().map(|shard| shard.div_ceil(bytes)).sum::<u64>();
    // Thread blocks copy more than once if there are more than the card runs at a time twice.
    let most = (torch.card.multiprocessors * torch.card.threads / BLOCK_THREADS * 2) as u64;
    let ranks = ranks as u64;
    let iterations = (blocks(BLOCK_BYTES) * ranks).div_ceil(most);
    let by_rank = iterations.isqrt() + u64::from(iterations.isqrt().pow(2) < iterations);
    let by_bytes = iterations.div_ceil(by_rank.min(ranks));
    let outputs = shards.len() as u64;
    8 * (3 * outputs + blocks(BLOCK_BYTES * by_bytes) + outputs + 1)
}

/// Bytes of the table of `chunk_cat`. `shards`: bytes.
fn copy_in_table(shards: &[u64]) -> u64 {
    let blocks: u64 = shards.iter().map(|shard| shard.div_ceil(BLOCK_BYTES)).sum();
    8 * (6 * shards.len() as u64 + 2 + blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::Card;
    use crate::rules;
    use spec::{TorchOptions, TorchVersion};

    /// A thread block copies 2048 bytes of a shard from one rank, until there are more than 3456 thread blocks.
    #[test]
    fn tables_have_entries_for_tensors_and_thread_blocks() {
        let card = Card::named("NVIDIA A100-SXM4-80GB").expect("a known card");
        let torch = Torch::new(card, rules::of(TorchVersion::default()), TorchOptions::default());
        assert_eq!(copy_out_table(&torch, &[2048, 1, 2049], 2), 8 * (3 * 3 + 4 + 3 + 1));
        assert_eq!(copy_in_table(&[2048, 1, 2049]), 8 * (6 * 3 + 2 + 4));
        // Once each, for two ranks.
        assert_eq!(copy_out_table(&torch, &[2048 * 1728], 2), 8 * (3 + 1728 + 1 + 1));
        // Two iterations: a thread block copies from both ranks.
        assert_eq!(copy_out_table(&torch, &[2048 * 1729], 2), 8 * (3 + 1729 + 1 + 1));
        // Five: from two ranks, three times 2048 bytes.
        assert_eq!(copy_out_table(&torch, &[2048 * 7000], 2), 8 * (3 + 2334 + 1 + 1));
    }
}
