//! A simulation of PyTorch's autograd engine: nodes, saved tensors and the order of backward, as far as they determine
//! memory requests and releases.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;

use crate::checkpoint::{self, Recomputed};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::{Backward, Torch};
use ops::Shape;

/// The gradient of an input, returned by a node's backward function.
pub(crate) enum Gradient {
    /// The input needs no gradient.
    None,
    Ready(Tensor),
    /// A gradient that `validate_outputs` sums to the shape of its input.
    SumTo(Tensor, Shape),
    /// A gradient that is computed after the other gradients of its node, such as the sum over rows for a bias.
    Later(Box<dyn FnOnce(&Torch) -> Tensor>),
}

impl From<Tensor> for Gradient {
    fn from(tensor: Tensor) -> Gradient {
        Gradient::Ready(tensor)
    }
}

impl From<Option<Tensor>> for Gradient {
    fn from(tensor: Option<Tensor>) -> Gradient {
        tensor.map_or(Gradient::None, Gradient::Ready)
    }
}

type NodeHook = Box<dyn Fn(&Torch)>;

type BackwardFn = Box<dyn Fn(&Torch, &Backward<'_>) -> Vec<Gradient>>;

/// A tensor saved for backward, or its placeholder under activation checkpointing.
enum Saved {
    Kept(Tensor),
    Recomputed(Rc<Recomputed>),
    /// A copy in host memory, `torch.autograd.graph.save_on_cpu`.
    OnHost(Shape, DType),
    /// A checkpointed function, which holds its tensors, and its input.
    Call(checkpoint::Function, Tensor),
}

/// How the elements of a saved tensor lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strides {
    Contiguous,
    /// Without gaps, in another order of the dimensions.
    Permuted,
    /// With gaps or repeated elements, as in a slice or an expanded tensor.
    Sparse,
}

impl Strides {
    pub(crate) fn permuted_if(condition: bool) -> Strides {
        if condition { Strides::Permuted } else { Strides::Contiguous }
    }

    /// Whether a copy to host memory makes a contiguous copy first. Copies in pageable memory have the same order of
    /// dimensions.
    fn is_copied(self, pinned: bool) -> bool {
        match self {
            Strides::Contiguous => false,
            Strides::Permuted => pinned,
            Strides::Sparse => true,
        }
    }
}

/// One operation of the autograd graph.
pub(crate) struct Node {
    /// The sequence number. Of the nodes that are ready, the one with the highest runs first. `AccumulateGrad` nodes
    /// have the highest possible number.
    order: u64,
    /// By input: the node that produced it, and the number of the output there. `None` if the input needs no gradient.
    edges: Vec<Option<(Rc<Node>, usize)>>,
    /// The dtypes of the inputs.
    dtypes: Vec<DType>,
    saved: RefCell<Vec<Saved>>,
    /// The number of outputs.
    outputs: usize,
    function: Function,
    /// The purpose of its gradients.
    purpose: Purpose,
    /// The backward pass that counts the missing gradients: its number.
    pass: Cell<u64>,
    /// Hooks of its outputs (`Tensor.register_hook`), which run before it.
    hooks: RefCell<Vec<NodeHook>>,
    /// During backward: the number of gradients that the node has not received yet.
    missing: Cell<usize>,
    /// During backward: the sum of the received gradients, by output.
    gradients: RefCell<Vec<Option<Tensor>>>,
}

enum Function {
    /// `AccumulateGrad` of a leaf.
    Accumulate(Tensor),
    Backward(BackwardFn),
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.order)
    }
}

impl Node {
    pub(crate) fn new(torch: &Torch, inputs: &[&Tensor], outputs: usize, backward: BackwardFn) -> Node {
        Node {
            order: torch.next_node(),
            edges: inputs.iter().map(|input| input.node()).collect(),
            dtypes: inputs.iter().map(|input| input.dtype()).collect(),
            saved: RefCell::default(),
            outputs,
            function: Function::Backward(backward),
            purpose: torch.purpose(),
            pass: Cell::new(0),
            hooks: RefCell::default(),
            missing: Cell::new(0),
            gradients: RefCell::default(),
        }
    }

    /// The `AccumulateGrad` node of a leaf.
    pub(crate) fn accumulate(leaf: Tensor) -> Node {
        Node {
            order: u64::MAX,
            edges: Vec::new(),
            dtypes: Vec::new(),
            saved: RefCell::default(),
            outputs: 1,
            function: Function::Accumulate(leaf),
            purpose: Purpose::Gradient,
            pass: Cell::new(0),
            hooks: RefCell::default(),
            missing: Cell::new(0),
            gradients: RefCell::default(),
        }
    }

    /// Has backward call a function before the node.
    pub(crate) fn register_hook(&self, hook: impl Fn(&Torch) + 'static) {
        self.hooks.borrow_mut().push(Box::new(hook));
    }

    /// Saves a contiguous tensor for backward.
    pub(crate) fn save(&self, torch: &Torch, tensor: &Tensor) {
        self.save_with(torch, tensor, Strides::Contiguous);
    }

    /// Saves a tensor for backward. Within a checkpointed call, saves a placeholder.
    pub(crate) fn save_with(&self, torch: &Torch, tensor: &Tensor, strides: Strides) {
        let frame = torch.frames.borrow().last().cloned();
        let saved = match (frame, torch.saves_on_cpu()) {
            (None, None) => Saved::Kept(tensor.clone()),
            (None, Some(pinned)) => {
                if strides.is_copied(pinned) {
                    torch.scratch(tensor.elements() as u64 * tensor.dtype().bytes());
                }
                Saved::OnHost(tensor.shape(), tensor.dtype())
            }
            (Some(frame), _) => match frame.pack(torch, tensor) {
                Some(recomputed) => Saved::Recomputed(recomputed),
                None => Saved::Kept(tensor.clone()),
            },
        };
        self.saved.borrow_mut().push(saved);
    }

    /// Saves a checkpointed call for backward.
    pub(crate) fn save_call(&self, function: checkpoint::Function, input: &Tensor) {
        self.saved.borrow_mut().push(Saved::Call(function, input.clone()));
    }

    /// The checkpointed call that the node saved.
    pub(crate) fn saved_call(&self) -> (checkpoint::Function, Tensor) {
        match &self.saved.borrow()[..] {
            [Saved::Call(function, input)] => (Rc::clone(function), input.clone()),
            _ => unreachable!("the node of a checkpointed call"),
        }
    }

    /// The saved tensors (`ctx.saved_tensors`). Recomputes those of which the node has placeholders, or copies them from
    /// host memory.
    fn unpack(&self, torch: &Torch) -> Vec<Tensor> {
        let unpack = |saved: &Saved| match saved {
            Saved::Kept(tensor) => Some(tensor.clone()),
            Saved::Recomputed(recomputed) => Some(recomputed.unpack(torch)),
            Saved::OnHost(shape, dtype) => {
                Some(torch.with_purpose(self.purpose, || torch.tensor(*shape, *dtype)))
            }
            Saved::Call(..) => None,
        };
        self.saved.borrow().iter().filter_map(unpack).collect()
    }
}

/// `root.backward(retain_graph=retains)`
pub(crate) fn backward(torch: &Torch, root: &Tensor, retains: bool) {
    // ones_like(root), which the caller holds until backward returns.
    let ones = torch.like(root);
    torch.in_backward_thread(|| run(torch, root, &ones, retains));
}

/// A node whose gradients are complete.
struct Ready {
    node: Rc<Node>,
    /// The position in which the node became ready: nodes with equal `order` run in this order.
    turn: usize,
}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> Ordering {
        self.node.order.cmp(&other.node.order).then(other.turn.cmp(&self.turn))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ready {}

/// Runs all nodes below the root without grad mode, like PyTorch's `Engine::execute`.
pub(crate) fn run(torch: &Torch, root: &Tensor, gradient: &Tensor, retains: bool) {
    let Some((root, _)) = root.node() else { return };
    let interrupted = count_dependencies(&root, torch.next_pass());
    torch.with_grad(false, || run_nodes(torch, root, gradient, retains));
    if let Some(sharded) = torch.fully_shard.get() {
        sharded.end_backward(torch);
    }
    interrupted.into_iter().for_each(Interrupted::resume);
}

fn run_nodes(torch: &Torch, root: Rc<Node>, gradient: &Tensor, retains: bool) {
    root.gradients.replace(vec![Some(gradient.clone())]);
    let mut ready = BinaryHeap::from([Ready { node: root, turn: 0 }]);
    let mut turn = 0;
    while let Some(Ready { node, .. }) = ready.pop() {
        let mut gradients = node.gradients.take();
        let function = match &node.function {
            Function::Accumulate(leaf) => {
                let held = torch.rules.hooks_hold_gradients.then(|| gradients[0].clone());
                accumulate(leaf, &mut gradients);
                leaf.call_hook(torch);
                drop(held);
                continue;
            }
            Function::Backward(function) => function,
        };
        node.hooks.borrow().iter().for_each(|hook| hook(torch));
        let saved = node.unpack(torch);
        let arguments = Backward {
            gradients: &gradients,
            edges: &node.edges,
            dtypes: &node.dtypes,
            saved: &saved,
            node: &node,
        };
        let made = torch.with_purpose(node.purpose, || function(torch, &arguments));
        drop(saved);
        let mut validated = Vec::with_capacity(made.len());
        for ((gradient, edge), &dtype) in made.into_iter().zip(&node.edges).zip(&node.dtypes) {
            validated.push(edge.as_ref().and_then(|(target, _)| {
                let dtype = match &target.function {
                    Function::Accumulate(leaf) => leaf.grad_dtype(),
                    Function::Backward(_) => dtype,
                };
                validate(torch, gradient, dtype)
            }));
        }
        drop(gradients);
        if !retains {
            node.saved.borrow_mut().clear();
        }
        for (gradient, edge) in validated.into_iter().zip(&node.edges) {
            let (Some(gradient), Some((target, output))) = (gradient, edge) else { continue };
            target.receive(torch, *output, gradient);
            if target.missing.get() == 0 {
                turn += 1;
                ready.push(Ready { node: Rc::clone(target), turn });
            }
        }
    }
}

impl Node {
    /// Adds a gradient of one of the outputs.
    fn receive(&self, torch: &Torch, output: usize, gradient: Tensor) {
        let mut gradients = self.gradients.borrow_mut();
        gradients.resize(self.outputs, None);
        gradients[output] = Some(match gradients[output].take() {
            None => gradient,
            Some(sum) => add_gradients(torch, sum, gradient),
        });
        self.missing.set(self.missing.get() - 1);
    }
}

/// The state of a node of a backward pass, while a pass within that one uses the node: an `AccumulateGrad` node of a leaf
/// that both graphs share.
struct Interrupted {
    node: Rc<Node>,
    pass: u64,
    missing: usize,
    gradients: Vec<Option<Tensor>>,
}

impl Interrupted {
    fn resume(self) {
        self.node.pass.set(self.pass);
        self.node.missing.set(self.missing);
        self.node.gradients.replace(self.gradients);
    }
}

/// Counts the gradients that each node below the root waits for. Returns the nodes that an outer pass waits for.
fn count_dependencies(root: &Rc<Node>, pass: u64) -> Vec<Interrupted> {
    let mut stack = vec![root];
    let mut interrupted = Vec::new();
    while let Some(node) = stack.pop() {
        for (target, _) in node.edges.iter().flatten() {
            let before = target.pass.replace(pass);
            if before != pass {
                let missing = target.missing.take();
                if missing > 0 {
                    let (node, gradients) = (Rc::clone(target), target.gradients.take());
                    interrupted.push(Interrupted { node, pass: before, missing, gradients });
                }
                stack.push(target);
            }
            target.missing.set(target.missing.get() + 1);
        }
    }
    interrupted
}

/// `AccumulateGrad`: a leaf takes over its first gradient. Later gradients are added in place and request no memory.
fn accumulate(leaf: &Tensor, gradients: &mut [Option<Tensor>]) {
    let gradient = gradients[0].take();
    if !leaf.has_grad() {
        if let Some(gradient) = &gradient {
            gradient.set_purpose(Purpose::Gradient);
        }
        leaf.set_grad(gradient);
    }
}

/// Sums a gradient to the shape of its input and casts it to the input's dtype (`validate_outputs`).
fn validate(torch: &Torch, gradient: Gradient, dtype: DType) -> Option<Tensor> {
    let gradient = match gradient {
        Gradient::None => return None,
        Gradient::Ready(gradient) => gradient,
        Gradient::SumTo(gradient, shape) => crate::functions::sum_to(torch, gradient, shape),
        Gradient::Later(make) => make(torch),
    };
    if gradient.dtype() == dtype {
        return Some(gradient);
    }
    Some(torch.tensor(gradient.shape(), dtype))
}

/// The sum of two gradients: in place if nothing else refers to the first.
fn add_gradients(torch: &Torch, sum: Tensor, gradient: Tensor) -> Tensor {
    if sum.is_unshared() {
        drop(gradient);
        return sum;
    }
    let result = torch.like(&sum);
    drop(sum);
    drop(gradient);
    result
}
