//! `torch.utils.checkpoint(use_reentrant=False)`: saved tensors are dropped in forward and recomputed when backward
//! first needs one of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::{Checkpointed, Function};
use crate::autograd::Node;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{OpKind, Shape};
use spec::KeywordSet;

/// One call of a checkpointed function.
pub(crate) struct Frame {
    function: Function,
    input: Input,
    autocast: Option<DType>,
    saved: RefCell<Vec<Weak<Recomputed>>>,
    values: RefCell<BTreeMap<usize, Tensor>>,
    is_recomputing: Cell<bool>,
    recomputed: Cell<usize>,
    /// The kinds of operations whose results are kept (`create_selective_checkpoint_contexts`).
    keeps: KeywordSet<OpKind>,
    /// The kept results that recomputation has not taken yet, by kind.
    kept: RefCell<Vec<(OpKind, Vec<Tensor>)>>,
}

/// The saved input of a call.
enum Input {
    Held(Tensor),
    /// A copy in host memory, and the node of the input's gradient.
    Offloaded(Shape, DType, Option<(Rc<Node>, usize)>),
}

impl Input {
    /// The input on the device, where it returns to.
    fn unpack(&self, torch: &Torch) -> Tensor {
        match self {
            Input::Held(input) => input.clone(),
            Input::Offloaded(shape, dtype, node) => {
                let input = torch.tensor(*shape, *dtype);
                match node {
                    Some((node, output)) => input.output_of(node, *output),
                    None => input,
                }
            }
        }
    }
}

/// The stand-in of a tensor that is recomputed.
pub(crate) struct Recomputed {
    frame: Rc<Frame>,
    number: usize,
}

impl Frame {
    /// The stand-in of a tensor that forward would save; `None` during recomputation.
    pub(crate) fn pack(self: &Rc<Frame>, torch: &Torch, tensor: &Tensor) -> Option<Rc<Recomputed>> {
        let mut saved = self.saved.borrow_mut();
        if !self.is_recomputing.get() {
            let recomputed = Rc::new(Recomputed { frame: Rc::clone(self), number: saved.len() });
            saved.push(Rc::downgrade(&recomputed));
            return Some(recomputed);
        }
        let number = self.recomputed.get();
        if number < saved.len() {
            self.recomputed.set(number + 1);
            if saved[number].strong_count() > 0 {
                self.values.borrow_mut().insert(number, tensor.detached());
            }
            if number + 1 == saved.len() {
                torch.stopped.set(true);
            }
        }
        None
    }

    pub(crate) fn keeps_results(&self) -> bool {
        !self.keeps.is_empty()
    }

    /// The results of an operation: the kept ones during recomputation.
    fn results(&self, torch: &Torch, kind: OpKind, make: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
        if !self.keeps.contains(kind) || torch.stopped.get() {
            return make();
        }
        if !self.is_recomputing.get() {
            let made = make();
            self.kept.borrow_mut().push((kind, made.iter().map(Tensor::detached).collect()));
            return made;
        }
        let mut kept = self.kept.borrow_mut();
        let next = kept.iter().position(|(known, _)| *known == kind).expect("forward kept the results");
        kept.remove(next).1
    }

    fn recompute(self: &Rc<Frame>, torch: &Torch) {
        self.is_recomputing.set(true);
        let input = self.input.unpack(torch);
        torch.frames.borrow_mut().push(Rc::clone(self));
        let output =
            torch.with_autocast(self.autocast, || torch.with_grad(true, || (self.function)(torch, &input)));
        drop(output);
        torch.frames.borrow_mut().pop();
        torch.stopped.set(false);
    }
}

impl Recomputed {
    pub(crate) fn unpack(&self, torch: &Torch) -> Tensor {
        if !self.frame.is_recomputing.get() {
            self.frame.recompute(torch);
        }
        self.frame.values.borrow_mut().remove(&self.number).expect("a recomputed tensor")
    }
}

/// The results of an operation. Inside a checkpointed call that keeps results of this kind, recomputation takes them from
/// forward.
pub(crate) fn results(torch: &Torch, kind: OpKind, make: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
    let frame = torch.frames.borrow().last().cloned();
    match frame {
        Some(frame) => frame.results(torch, kind, make),
        None => make(),
    }
}

pub(super) fn checkpoint(torch: &Torch, called: Checkpointed, input: &Tensor) -> Tensor {
    let Checkpointed { function, keeps, .. } = called;
    let saved = match torch.saves_on_cpu().is_some() {
        true => Input::Offloaded(input.shape(), input.dtype(), input.node()),
        false => Input::Held(input.clone()),
    };
    let frame = Rc::new(Frame {
        function: Rc::clone(&function),
        input: saved,
        autocast: torch.autocast(),
        saved: RefCell::default(),
        values: RefCell::default(),
        is_recomputing: Cell::new(false),
        recomputed: Cell::new(0),
        keeps,
        kept: RefCell::default(),
    });
    torch.frames.borrow_mut().push(frame);
    let output = function(torch, input);
    torch.frames.borrow_mut().pop();
    output
}
