//! The simulated state of a PyTorch process: grad mode, autocast, checkpointing, and the recorded sequence of memory
//! requests and releases. Tensors have shapes and storages, but no elements.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::autograd::{Gradient, Node};
use crate::card::Card;
use crate::checkpoint::Frame;
use crate::coverage::NotCovered;
use crate::fully_shard::FullyShard;
use crate::rules::Rules;
use crate::sequence::{Event, Part, Purpose, Sequence, Stream};
use crate::tensor::{DType, Storage, Tensor};
use crate::workspace::Threads;
use ops::Shape;
use spec::TorchOptions;

/// A simulated PyTorch process. Each new tensor records a request of the caching allocator, each dropped one a release.
pub(crate) struct Torch {
    pub(crate) card: Card,
    pub(crate) rules: &'static Rules,
    pub(crate) options: TorchOptions,
    pub(crate) threads: Threads,
    /// The most equal products in a row that are recorded.
    pub(crate) most_products: usize,
    sequence: Rc<RefCell<Sequence>>,
    /// Grad mode (`torch.is_grad_enabled()`).
    grad: Cell<bool>,
    /// The dtype of `torch.autocast`, if it is enabled.
    autocast: Cell<Option<DType>>,
    /// Autocast's cache: 16-bit copies of fp32 leaves, by the leaf's id. Sorted, so that the order of release is
    /// deterministic.
    casts: RefCell<BTreeMap<usize, Tensor>>,
    /// `torch.autograd.graph.save_on_cpu`, if it is active: whether its copies are in pinned memory.
    save_on_cpu: Cell<Option<bool>>,
    /// The calls of `torch.utils.checkpoint` in progress, innermost last.
    pub(crate) frames: RefCell<Vec<Rc<Frame>>>,
    /// Whether the current recomputation has all tensors that backward needs. PyTorch then leaves the function by an
    /// exception (early stop); here the function continues and requests nothing.
    pub(crate) stopped: Cell<bool>,
    /// The number of autograd nodes so far.
    nodes: Cell<u64>,
    /// The number of backward passes so far.
    passes: Cell<u64>,
    /// The purpose of new requests.
    purpose: Cell<Purpose>,
    /// bitsandbytes' code of 8-bit numbers, f32[256], made at the first use.
    eight_bit_code: RefCell<Option<Tensor>>,
    /// The hooks of modules that `fully_shard` wrapped, if it wrapped some.
    pub(crate) fully_shard: OnceCell<FullyShard>,
    /// Why the program is not covered, if it turned out while it ran.
    refused: RefCell<Option<NotCovered>>,
}

impl Torch {
    pub(crate) fn new(card: Card, rules: &'static Rules, options: TorchOptions) -> Torch {
        Torch {
            card,
            rules,
            options,
            threads: Threads::default(),
            most_products: usize::MAX,
            sequence: Rc::default(),
            grad: Cell::new(true),
            autocast: Cell::new(None),
            casts: RefCell::default(),
            save_on_cpu: Cell::new(None),
            frames: RefCell::default(),
            stopped: Cell::new(false),
            nodes: Cell::new(0),
            passes: Cell::new(0),
            purpose: Cell::new(Purpose::Parameter),
            eight_bit_code: RefCell::default(),
            fully_shard: OnceCell::new(),
            refused: RefCell::default(),
        }
    }

    /// Takes the recorded sequence. Requests that are still live have no release in it.
    pub(crate) fn take_sequence(&self) -> Sequence {
        self.sequence.take()
    }

    /// Runs a part of the program. Returns the range of events that it recorded.
    pub(crate) fn part(&self, run: impl FnOnce()) -> Part {
        let (events, requests) = self.with_sequence(|sequence| (sequence.events.len(), sequence.requests()));
        run();
        self.with_sequence(|sequence| sequence.part_from(events, requests))
    }

    /// Runs `count` iterations, such as micro-batches. If the second and the third record equal events, so do all others,
    /// except the last one if it differs: copies of the third's events replace them.
    pub(crate) fn iterations(&self, count: usize, last_differs: bool, mut run: impl FnMut(usize)) {
        const SIMULATED: usize = 3;
        let parts: Vec<Part> =
            (0..count.min(SIMULATED)).map(|iteration| self.part(|| run(iteration))).collect();
        let mut next = parts.len();
        if let [_, second, third] = &parts[..]
            && self.with_sequence(|sequence| sequence.is_period(second, third))
        {
            let copied = count - usize::from(last_differs);
            while next < copied {
                self.with_sequence(|sequence| sequence.append_copy(third));
                next += 1;
            }
        }
        (next..count).for_each(run);
    }

    /// Repeats a part of the program. If it releases only its own requests, copies its events instead of running it.
    pub(crate) fn repeat(&self, part: &Part, run: impl FnOnce()) {
        let is_closed = self.with_sequence(|sequence| sequence.is_closed(part));
        if is_closed { self.with_sequence(|sequence| sequence.append_copy(part)) } else { run() }
    }

    /// Repeats a part of the program without the requests that outlive it, if it releases only its own requests.
    pub(crate) fn repeat_without_survivors(&self, part: &Part, run: impl FnOnce()) {
        let is_closed = self.with_sequence(|sequence| sequence.is_closed(part));
        if is_closed { self.with_sequence(|sequence| sequence.append_without_survivors(part)) } else { run() }
    }

    fn with_sequence<T>(&self, f: impl FnOnce(&mut Sequence) -> T) -> T {
        f(&mut self.sequence.borrow_mut())
    }

    /// Records an event that is neither a request nor a release.
    pub(crate) fn mark(&self, event: Event) {
        self.sequence.borrow_mut().mark(event);
    }

    /// Takes managed memory (`cudaMallocManaged`).
    pub(crate) fn take_managed(&self, bytes: u64) {
        self.with_sequence(|sequence| sequence.managed += bytes);
    }

    /// Requests memory for a tensor, with the current purpose.
    pub(crate) fn storage(&self, bytes: u64) -> Rc<Storage> {
        self.storage_for(self.purpose.get(), bytes)
    }

    fn storage_for(&self, purpose: Purpose, bytes: u64) -> Rc<Storage> {
        // A tensor without elements makes no request.
        Rc::new(Storage::new(bytes, purpose, &self.sequence, bytes > 0 && !self.stopped.get()))
    }

    /// Calls a function. Its requests have this purpose.
    pub(crate) fn with_purpose<T>(&self, purpose: Purpose, run: impl FnOnce() -> T) -> T {
        let before = self.purpose.replace(purpose);
        let value = run();
        self.purpose.set(before);
        value
    }

    /// Calls a function. Its requests are those of this stream (`with torch.cuda.stream(stream)`).
    pub(crate) fn with_stream<T>(&self, stream: Stream, run: impl FnOnce() -> T) -> T {
        self.mark(Event::Stream(stream));
        let value = run();
        self.mark(Event::Stream(Stream::default()));
        value
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose.get()
    }

    /// Requests a workspace of a kernel and releases it at once.
    pub(crate) fn scratch(&self, bytes: u64) {
        drop(self.storage_for(Purpose::Workspace, bytes));
    }

    pub(crate) fn tensor(&self, shape: Shape, dtype: DType) -> Tensor {
        Tensor::new(self.storage(shape.elements() as u64 * dtype.bytes()), shape, dtype)
    }

    /// A tensor in host memory.
    pub(crate) fn on_host(&self, shape: Shape, dtype: DType) -> Tensor {
        Tensor::new(Rc::new(Storage::new(0, self.purpose(), &self.sequence, false)), shape, dtype)
    }

    pub(crate) fn empty(&self, dims: &[usize], dtype: DType) -> Tensor {
        self.tensor(Shape::new(dims), dtype)
    }

    /// A tensor of bytes. The other type of one byte stands for u8.
    pub(crate) fn bytes(&self, count: usize) -> Tensor {
        self.empty(&[count], DType::Bool)
    }

    pub(crate) fn scalar(&self, dtype: DType) -> Tensor {
        self.empty(&[], dtype)
    }

    /// A tensor of the shape and dtype of another.
    pub(crate) fn like(&self, tensor: &Tensor) -> Tensor {
        self.tensor(tensor.shape(), tensor.dtype())
    }

    pub(crate) fn grad_enabled(&self) -> bool {
        self.grad.get()
    }

    /// Calls a function with grad mode enabled or disabled (`torch.set_grad_enabled`).
    pub(crate) fn with_grad<T>(&self, enabled: bool, run: impl FnOnce() -> T) -> T {
        let before = self.grad.replace(enabled);
        let value = run();
        self.grad.set(before);
        value
    }

    pub(crate) fn autocast(&self) -> Option<DType> {
        self.autocast.get()
    }

    /// Calls a function under autocast, or without it. The outermost call releases the cached copies of weights at its
    /// end.
    pub(crate) fn with_autocast<T>(&self, dtype: Option<DType>, run: impl FnOnce() -> T) -> T {
        let before = self.autocast.replace(dtype);
        let value = run();
        self.autocast.set(before);
        if before.is_none() {
            let casts = std::mem::take(&mut *self.casts.borrow_mut());
            drop(casts);
        }
        value
    }

    /// Calls a function under `torch.autograd.graph.save_on_cpu(pin_memory=pinned)`, if it is given.
    pub(crate) fn with_save_on_cpu<T>(&self, pinned: Option<bool>, run: impl FnOnce() -> T) -> T {
        let before = self.save_on_cpu.replace(pinned.or(self.save_on_cpu.get()));
        let value = run();
        self.save_on_cpu.set(before);
        value
    }

    /// Whether tensors that are saved now go to host memory, and to pinned memory. A checkpointed call saves none.
    pub(crate) fn saves_on_cpu(&self) -> Option<bool> {
        self.save_on_cpu.get().filter(|_| self.frames.borrow().is_empty())
    }

    pub(crate) fn cached_cast(&self, tensor: &Tensor) -> Option<Tensor> {
        self.casts.borrow().get(&tensor.id()).cloned()
    }

    pub(crate) fn cache_cast(&self, tensor: &Tensor, cast: &Tensor) {
        self.casts.borrow_mut().insert(tensor.id(), cast.clone());
    }

    /// Makes bitsandbytes' code of 8-bit numbers unless it exists.
    pub(crate) fn eight_bit_code(&self) {
        self.eight_bit_code.borrow_mut().get_or_insert_with(|| self.empty(&[256], DType::F32));
    }

    /// States that the program is not covered.
    pub(crate) fn refuse(&self, reason: NotCovered) {
        self.refused.borrow_mut().get_or_insert(reason);
    }

    /// Why the program is not covered, if it is not.
    pub(crate) fn take_refusal(&self) -> Option<NotCovered> {
        self.refused.take()
    }

    /// The sequence number of a new node.
    pub(crate) fn next_node(&self) -> u64 {
        self.nodes.set(self.nodes.get() + 1);
        self.nodes.get()
    }

    /// Whether the current checkpointed call keeps the results of some operations.
    pub(crate) fn keeps_results(&self) -> bool {
        self.frames.borrow().last().is_some_and(|frame| frame.keeps_results())
    }

    /// The number of a new backward pass.
    pub(crate) fn next_pass(&self) -> u64 {
        self.passes.set(self.passes.get() + 1);
        self.passes.get()
    }

    /// Whether the gradient of one of these inputs is needed.
    pub(crate) fn needs_grad(&self, inputs: &[&Tensor]) -> bool {
        self.grad_enabled() && inputs.iter().any(|input| input.requires_grad())
    }

    /// The output of an operation: a view of `storage`, or a new tensor. If a gradient is needed, the output has an
    /// autograd node, which saves the `saved` tensors for backward before the output is requested.
    pub(crate) fn output(
        &self,
        (shape, dtype): (Shape, DType),
        storage: Option<&Tensor>,
        inputs: &[&Tensor],
        saved: &[&Tensor],
        backward: impl Fn(&Torch, &Backward<'_>) -> Vec<Gradient> + 'static,
    ) -> Tensor {
        let node = self.node(inputs, saved, backward);
        let output = match storage {
            Some(base) => base.view(shape),
            None => self.tensor(shape, dtype),
        };
        match node {
            Some(node) => output.output_of(&node, 0),
            None => output,
        }
    }

    /// A node for an operation with these inputs, if a gradient is needed.
    pub(crate) fn node(
        &self,
        inputs: &[&Tensor],
        saved: &[&Tensor],
        backward: impl Fn(&Torch, &Backward<'_>) -> Vec<Gradient> + 'static,
    ) -> Option<Rc<Node>> {
        let node = self.node_with_outputs(1, inputs, backward)?;
        saved.iter().for_each(|tensor| node.save(self, tensor));
        Some(node)
    }

    /// A node with several outputs.
    pub(crate) fn node_with_outputs(
        &self,
        outputs: usize,
        inputs: &[&Tensor],
        backward: impl Fn(&Torch, &Backward<'_>) -> Vec<Gradient> + 'static,
    ) -> Option<Rc<Node>> {
        self.needs_grad(inputs).then(|| Rc::new(Node::new(self, inputs, outputs, Box::new(backward))))
    }
}

/// The arguments of a node's backward function.
pub(crate) struct Backward<'a> {
    /// Gradients of the outputs.
    pub(crate) gradients: &'a [Option<Tensor>],
    /// By input: the node that takes its gradient, if it is needed.
    pub(crate) edges: &'a [Option<(Rc<Node>, usize)>],
    /// The dtypes of the inputs.
    pub(crate) dtypes: &'a [DType],
    /// The saved tensors.
    pub(crate) saved: &'a [Tensor],
    pub(crate) node: &'a Node,
}

impl Backward<'_> {
    /// Whether the gradient of an input is needed.
    pub(crate) fn needs(&self, input: usize) -> bool {
        self.edges[input].is_some()
    }

    /// The gradient of the first output.
    pub(crate) fn gradient(&self) -> &Tensor {
        self.gradients[0].as_ref().expect("a node runs when it has a gradient")
    }
}
