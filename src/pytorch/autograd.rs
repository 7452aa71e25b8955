//! A simulation of PyTorch's autograd engine: nodes, saved tensors and the order of backward, as far as they determine
//! memory requests and releases.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;

use crate::checkpoint::Recomputed;
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

type BackwardFn = Box<dyn Fn(&Torch, &Backward<'_>) -> Vec<Gradient>>;

/// A tensor saved for backward, or its placeholder under activation checkpointing.
enum Saved {
    Kept { _tensor: Tensor },
    Recomputed(Rc<Recomputed>),
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
            missing: Cell::new(0),
            gradients: RefCell::default(),
        }
    }

    /// Saves a tensor for backward. Within a checkpointed call, saves a placeholder.
    pub(crate) fn save(&self, torch: &Torch, tensor: &Tensor) {
        let frame = torch.frames.borrow().last().cloned();
        let saved = match frame {
            None => Saved::Kept { _tensor: tensor.clone() },
            Some(frame) => match frame.pack(torch, tensor) {
                Some(recomputed) => Saved::Recomputed(recomputed),
                None => Saved::Kept { _tensor: tensor.clone() },
            },
        };
        self.saved.borrow_mut().push(saved);
    }

    /// The saved tensors whose placeholders the node has. Recomputes them.
    fn unpack(&self, torch: &Torch) -> Vec<Tensor> {
        let unpack = |saved: &Saved| match saved {
            Saved::Kept { .. } => None,
            Saved::Recomputed(recomputed) => Some(recomputed.unpack(torch)),
        };
        self.saved.borrow().iter().filter_map(unpack).collect()
    }
}

/// Called with a leaf when its gradient is complete.
pub(crate) type AccumulateHook<'a> = &'a dyn Fn(&Torch, &Tensor);

/// `root.backward(retain_graph=retains)`
pub(crate) fn backward(torch: &Torch, root: &Tensor, retains: bool, hook: Option<AccumulateHook<'_>>) {
    // ones_like(root), which the caller holds until backward returns.
    let ones = torch.like(root);
    torch.in_backward_thread(|| torch.with_grad(false, || run(torch, root, &ones, retains, hook)));
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

/// Runs all nodes below the root, like PyTorch's `Engine::execute`.
fn run(torch: &Torch, root: &Tensor, gradient: &Tensor, retains: bool, hook: Option<AccumulateHook<'_>>) {
    let Some((root, _)) = root.node() else { return };
    count_dependencies(&root);
    root.gradients.replace(vec![Some(gradient.clone())]);
    let mut ready = BinaryHeap::from([Ready { node: root, turn: 0 }]);
    let mut turn = 0;
    while let Some(Ready { node, .. }) = ready.pop() {
        let mut gradients = node.gradients.take();
        let function = match &node.function {
            Function::Accumulate(leaf) => {
                accumulate(leaf, &mut gradients);
                if let Some(hook) = hook {
                    hook(torch, leaf);
                }
                continue;
            }
            Function::Backward(function) => function,
        };
        let recomputed = node.unpack(torch);
        let arguments = Backward { gradients: &gradients, edges: &node.edges, dtypes: &node.dtypes };
        let made = torch.with_purpose(node.purpose, || function(torch, &arguments));
        drop(recomputed);
        let mut validated = Vec::with_capacity(made.len());
        for ((gradient, edge), &dtype) in made.into_iter().zip(&node.edges).zip(&node.dtypes) {
            validated.push(edge.as_ref().and_then(|_| validate(torch, gradient, dtype)));
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

/// Counts the gradients that each node below the root waits for.
fn count_dependencies(root: &Rc<Node>) {
    let mut stack = vec![root];
    while let Some(node) = stack.pop() {
        for (target, _) in node.edges.iter().flatten() {
            if target.missing.get() == 0 {
                stack.push(target);
            }
            target.missing.set(target.missing.get() + 1);
        }
    }
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
    let result = if sum.is_unshared() { sum } else { torch.like(&sum) };
    drop(gradient);
    result
}
