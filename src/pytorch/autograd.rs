//! PyTorch's autograd engine: nodes, saved tensors, and the order of backward.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::rc::Rc;

use crate::checkpoint::Recomputed;
use crate::tensor::{DType, Tensor};
use crate::torch::{Backward, Torch};
use ops::Shape;

/// The gradient of an input.
pub(crate) enum Gradient {
    /// The input needs none.
    None,
    Ready(Tensor),
    /// A gradient that `validate_outputs` sums to the shape of its input.
    SumTo(Tensor, Shape),
    /// A gradient made after the others, such as the sum over rows for a bias.
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

/// A saved tensor, or its stand-in under checkpointing.
enum Saved {
    Kept(Tensor),
    Recomputed(Rc<Recomputed>),
}

/// One operation of the autograd graph.
pub(crate) struct Node {
    /// Nodes run by descending number; gradient accumulation runs first.
    order: u64,
    edges: Vec<Option<(Rc<Node>, usize)>>,
    dtypes: Vec<DType>,
    saved: RefCell<Vec<Saved>>,
    outputs: usize,
    function: Function,
}

enum Function {
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
        }
    }

    pub(crate) fn accumulate(leaf: Tensor) -> Node {
        Node {
            order: u64::MAX,
            edges: Vec::new(),
            dtypes: Vec::new(),
            saved: RefCell::default(),
            outputs: 1,
            function: Function::Accumulate(leaf),
        }
    }

    /// Keeps a tensor for backward.
    pub(crate) fn save(&self, torch: &Torch, tensor: &Tensor) {
        let frame = torch.frames.borrow().last().cloned();
        let saved = match frame {
            None => Saved::Kept(tensor.clone()),
            Some(frame) => match frame.pack(torch, tensor) {
                Some(recomputed) => Saved::Recomputed(recomputed),
                None => Saved::Kept(tensor.clone()),
            },
        };
        self.saved.borrow_mut().push(saved);
    }

    fn unpack(&self, torch: &Torch) -> Vec<Tensor> {
        let unpack = |saved: &Saved| match saved {
            Saved::Kept(tensor) => tensor.clone(),
            Saved::Recomputed(recomputed) => recomputed.unpack(torch),
        };
        self.saved.borrow().iter().map(unpack).collect()
    }
}

/// Called with a leaf when its gradient is complete.
pub(crate) type AccumulateHook<'a> = &'a dyn Fn(&Torch, &Tensor);

/// `root.backward()`
pub(crate) fn backward(torch: &Torch, root: &Tensor, hook: Option<AccumulateHook<'_>>) {
    // ones_like(root), which the caller holds until backward returns.
    let ones = torch.like(root);
    torch.with_grad(false, || run(torch, root, &ones, hook));
}

fn run(torch: &Torch, root: &Tensor, gradient: &Tensor, hook: Option<AccumulateHook<'_>>) {
    let Some((root, _)) = root.node() else { return };
    let mut missing = dependencies(&root);
    let mut waiting: HashMap<*const Node, Vec<Option<Tensor>>> = HashMap::new();
    let mut ready = BinaryHeap::new();
    let mut ready_nodes = HashMap::new();
    ready.push((root.order, Reverse(0)));
    ready_nodes.insert(0, (root, vec![Some(gradient.clone())]));
    let mut turn = 0;
    while let Some((_, Reverse(next))) = ready.pop() {
        let (node, mut gradients) = ready_nodes.remove(&next).expect("a ready node");
        let function = match &node.function {
            Function::Accumulate(leaf) => {
                accumulate(torch, leaf, &mut gradients);
                if let Some(hook) = hook {
                    hook(torch, leaf);
                }
                continue;
            }
            Function::Backward(function) => function,
        };
        let saved = node.unpack(torch);
        let needs: Vec<bool> = node.edges.iter().map(Option::is_some).collect();
        let arguments =
            Backward { saved: &saved, gradients: &gradients, needs: &needs, dtypes: &node.dtypes };
        let made = function(torch, &arguments);
        drop(saved);
        let mut validated = Vec::with_capacity(made.len());
        for ((gradient, edge), &dtype) in made.into_iter().zip(&node.edges).zip(&node.dtypes) {
            validated.push(edge.as_ref().and_then(|_| validate(torch, gradient, dtype)));
        }
        drop(gradients);
        node.saved.borrow_mut().clear();
        for (gradient, edge) in validated.into_iter().zip(&node.edges) {
            let (Some(gradient), Some((target, output))) = (gradient, edge) else { continue };
            let key = Rc::as_ptr(target);
            let buffer = waiting.entry(key).or_insert_with(|| vec![None; target.outputs]);
            buffer[*output] = Some(match buffer[*output].take() {
                None => gradient,
                Some(sum) => add_gradients(torch, sum, gradient),
            });
            let missing = missing.get_mut(&key).expect("a dependency");
            *missing -= 1;
            if *missing == 0 {
                turn += 1;
                ready.push((target.order, Reverse(turn)));
                let buffer = waiting.remove(&key).expect("a buffer");
                ready_nodes.insert(turn, (Rc::clone(target), buffer));
            }
        }
    }
}

/// The number of gradients that each node waits for.
fn dependencies(root: &Rc<Node>) -> HashMap<*const Node, usize> {
    let mut missing = HashMap::new();
    let mut stack = vec![Rc::clone(root)];
    let mut seen = std::collections::HashSet::from([Rc::as_ptr(root)]);
    while let Some(node) = stack.pop() {
        for (target, _) in node.edges.iter().flatten() {
            *missing.entry(Rc::as_ptr(target)).or_insert(0) += 1;
            if seen.insert(Rc::as_ptr(target)) {
                stack.push(Rc::clone(target));
            }
        }
    }
    missing
}

/// A leaf takes over its first gradient, and adds later ones in place.
fn accumulate(_torch: &Torch, leaf: &Tensor, gradients: &mut [Option<Tensor>]) {
    let gradient = gradients[0].take();
    if !leaf.has_grad() {
        leaf.set_grad(gradient);
    }
}

/// Sums a gradient to the shape of its input and casts it to its dtype (`validate_outputs`).
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
