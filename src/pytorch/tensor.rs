//! Tensors without numbers: shapes, types and counted references to storages.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use crate::autograd::Node;
use crate::sequence::{Purpose, Sequence};
use crate::torch::Torch;
use ops::Shape;

/// Element types of PyTorch's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    F64,
    F32,
    BF16,
    F16,
    I64,
    Bool,
}

impl DType {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::Bool => 1,
        }
    }

    pub(crate) fn is_half(self) -> bool {
        matches!(self, DType::BF16 | DType::F16)
    }
}

/// The memory of one request, released when the last reference to it is dropped.
#[derive(Debug)]
pub(crate) struct Storage {
    /// `None` for storages of no bytes, and those that a stopped recomputation does not reach.
    request: Cell<Option<u32>>,
    sequence: Rc<RefCell<Sequence>>,
}

impl Storage {
    pub(crate) fn new(
        bytes: u64,
        purpose: Purpose,
        sequence: &Rc<RefCell<Sequence>>,
        has_request: bool,
    ) -> Storage {
        let request = has_request.then(|| sequence.borrow_mut().request(bytes, purpose));
        Storage { request: Cell::new(request), sequence: Rc::clone(sequence) }
    }

    fn release(&self) {
        if let Some(request) = self.request.take() {
            self.sequence.borrow_mut().release(request);
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.release();
    }
}

/// A reference to a tensor, as a Python variable holds it.
#[derive(Clone, Debug)]
pub(crate) struct Tensor(Rc<TensorData>);

#[derive(Debug)]
struct TensorData {
    storage: Rc<Storage>,
    shape: Shape,
    dtype: DType,
    /// Views hold their base, so their storage has a second holder.
    is_view: bool,
    /// Whether one number in memory is every element (`Tensor.expand`).
    repeats: bool,
    requires_grad: bool,
    /// The node that computed it, and the number of its output. `None` for leaves.
    node: Option<(Rc<Node>, usize)>,
    grad: RefCell<Option<Tensor>>,
    /// The dtype that a leaf's gradients are cast to (`Tensor.grad_dtype`), if it is another one.
    grad_dtype: Cell<Option<DType>>,
    /// The node that accumulates a leaf's gradient, as long as a graph refers to it.
    accumulate: RefCell<Weak<Node>>,
    hook: RefCell<Option<Hook>>,
}

type HookFunction = dyn Fn(&Torch, &Tensor);

/// Called with a leaf when its gradient is complete (`register_post_accumulate_grad_hook`).
pub(crate) struct Hook(pub(crate) Rc<HookFunction>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl Tensor {
    fn of(data: TensorData) -> Tensor {
        Tensor(Rc::new(data))
    }

    pub(crate) fn new(storage: Rc<Storage>, shape: Shape, dtype: DType) -> Tensor {
        Tensor::of(TensorData {
            storage,
            shape,
            dtype,
            is_view: false,
            repeats: false,
            requires_grad: false,
            node: None,
            grad: RefCell::new(None),
            grad_dtype: Cell::new(None),
            accumulate: RefCell::new(Weak::new()),
            hook: RefCell::new(None),
        })
    }

    /// A leaf that requires gradients, on the same storage.
    pub(crate) fn leaf(&self) -> Tensor {
        Tensor::of(TensorData { requires_grad: true, ..self.detached_data() })
    }

    /// The output of a node, on the same storage.
    pub(crate) fn output_of(mut self, node: &Rc<Node>, output: usize) -> Tensor {
        let node = Some((Rc::clone(node), output));
        if let Some(data) = Rc::get_mut(&mut self.0) {
            (data.requires_grad, data.node) = (true, node);
            return self;
        }
        Tensor::of(TensorData { requires_grad: true, node, is_view: self.0.is_view, ..self.detached_data() })
    }

    /// The same storage, outside the autograd graph.
    pub(crate) fn detached(&self) -> Tensor {
        Tensor::of(self.detached_data())
    }

    /// The same storage in another shape.
    pub(crate) fn view(&self, shape: Shape) -> Tensor {
        Tensor::of(TensorData { shape, is_view: true, ..self.detached_data() })
    }

    /// The same storage with elements of another dtype.
    pub(crate) fn with_dtype(&self, dtype: DType) -> Tensor {
        Tensor::of(TensorData { dtype, ..self.detached_data() })
    }

    /// One number as every element of a shape.
    pub(crate) fn repeated(&self, shape: Shape) -> Tensor {
        Tensor::of(TensorData { shape, is_view: true, repeats: true, ..self.detached_data() })
    }

    pub(crate) fn repeats(&self) -> bool {
        self.0.repeats
    }

    /// The same tensor, with a base that holds its storage too.
    pub(crate) fn into_view(self) -> Tensor {
        Tensor::of(TensorData { is_view: true, ..self.detached_data() })
    }

    fn detached_data(&self) -> TensorData {
        TensorData {
            storage: Rc::clone(&self.0.storage),
            shape: self.0.shape,
            dtype: self.0.dtype,
            is_view: false,
            repeats: self.0.repeats,
            requires_grad: false,
            node: None,
            grad: RefCell::new(None),
            grad_dtype: Cell::new(None),
            accumulate: RefCell::new(Weak::new()),
            hook: RefCell::new(None),
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.0.shape
    }

    pub(crate) fn elements(&self) -> usize {
        self.0.shape.elements()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.0.dtype
    }

    pub(crate) fn requires_grad(&self) -> bool {
        self.0.requires_grad
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.0.node.is_none()
    }

    /// Identifies the tensor as long as it lives.
    pub(crate) fn id(&self) -> usize {
        Rc::as_ptr(&self.0) as usize
    }

    pub(crate) fn node(&self) -> Option<(Rc<Node>, usize)> {
        match &self.0.node {
            Some(node) => Some(node.clone()),
            None if self.0.requires_grad => Some((self.accumulate_node(), 0)),
            None => None,
        }
    }

    fn accumulate_node(&self) -> Rc<Node> {
        let mut known = self.0.accumulate.borrow_mut();
        known.upgrade().unwrap_or_else(|| {
            let node = Rc::new(Node::accumulate(self.clone()));
            *known = Rc::downgrade(&node);
            node
        })
    }

    pub(crate) fn grad(&self) -> Option<Tensor> {
        self.0.grad.borrow().clone()
    }

    pub(crate) fn grad_dtype(&self) -> DType {
        self.0.grad_dtype.get().unwrap_or(self.0.dtype)
    }

    pub(crate) fn set_grad_dtype(&self, dtype: Option<DType>) {
        self.0.grad_dtype.set(dtype);
    }

    pub(crate) fn has_grad(&self) -> bool {
        self.0.grad.borrow().is_some()
    }

    /// States what the tensor's memory is for.
    pub(crate) fn set_purpose(&self, purpose: Purpose) {
        let Storage { request, sequence } = &*self.0.storage;
        if let Some(request) = request.get() {
            sequence.borrow_mut().set_purpose(request, purpose);
        }
    }

    /// `tensor.untyped_storage().resize_(0)`: releases the memory of all tensors on the storage.
    pub(crate) fn free_storage(&self) {
        self.0.storage.release();
    }

    /// `tensor.untyped_storage().resize_(bytes)` of a storage without memory.
    pub(crate) fn allocate_storage(&self, torch: &Torch, bytes: u64) {
        let Storage { request, sequence } = &*self.0.storage;
        let next = (bytes > 0).then(|| sequence.borrow_mut().request(bytes, torch.purpose()));
        let before = request.replace(next);
        debug_assert!(before.is_none(), "the storage has memory");
    }

    pub(crate) fn set_grad(&self, grad: Option<Tensor>) {
        let before = self.0.grad.replace(grad);
        drop(before);
    }

    pub(crate) fn set_hook(&self, hook: Hook) {
        self.0.hook.replace(Some(hook));
    }

    pub(crate) fn call_hook(&self, torch: &Torch) {
        if let Some(Hook(hook)) = &*self.0.hook.borrow() {
            hook(torch, self);
        }
    }

    /// Whether this is the only reference to the tensor and to its storage, so that a sum may overwrite it.
    pub(crate) fn is_unshared(&self) -> bool {
        !self.0.is_view && Rc::strong_count(&self.0) == 1 && Rc::strong_count(&self.0.storage) == 1
    }
}
