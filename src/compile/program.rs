//! One training step as a static list of operations over values.

use std::ops::Range;

use crate::device::{Event, Phase, Placed, Pool, Queue, Role, Work};
use crate::graph::{Initial, Scope, ScopeId};
use crate::ops::{DType, Members, Op, Shape, Slice, TensorType, ValueId};

/// How a value relates to the model's own of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The model's, or the optimizer's.
    Primal,
    /// The loss's derivative by it.
    Gradient,
    /// It, computed again.
    Recomputed,
    /// It, in the dtype of matrix work.
    Cast,
}

/// What a value is shaped like in every run of the same structure: what gives a program the sizes of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// Like nothing that has sizes: the shape is the same in every run.
    Fixed,
    /// The graph's value of this number, which sees a micro-batch.
    Graph(usize),
    /// Some of the rows of that.
    Rows(usize, Slice),
    /// The same for the whole batch: micro-batches one after the other.
    Batch(usize),
    /// The bucket of this number.
    Bucket(usize),
    /// The state of that number of such a bucket.
    State(usize, usize),
    /// What the operation whose scratch memory it is asks for.
    Workspace,
}

/// A value that is part of another: it has the dtype, the role and the pool of its parent, and memory within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub of: ValueId,
    pub part: Part,
}

/// A stretch of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Of a bucket, the tensor of this number.
    Member(usize),
    Rows(Slice),
}

/// A value: written once. What overwrites it is another value in the same storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub name: &'static str,
    pub form: Form,
    pub scope: ScopeId,
    pub ty: TensorType,
    pub like: Like,
    pub role: Role,
    pub pool: Pool,
    /// What it is part of, if it is.
    pub view: Option<View>,
    /// The value that this one takes the place of: its previous version, or one that nothing reads again.
    pub previous: Option<ValueId>,
    /// The value whose memory this one lies in; itself, if it has its own. Follows from the two before.
    pub storage: ValueId,
    /// Where in the storage, in bytes. Follows as well.
    pub offset: u64,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Launch {
        op: Op,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        workspace: Option<ValueId>,
    },
    /// Copies a value between pools. Where `from` holds the whole batch and `to` a micro-batch of it, the slice
    /// of the current micro-batch is copied.
    Copy {
        queue: Queue,
        from: ValueId,
        to: ValueId,
    },
    Record {
        queue: Queue,
        event: Event,
    },
    Wait {
        queue: Queue,
        event: Event,
    },
    Allocate(ValueId),
    Free(ValueId),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    pub action: Action,
    pub scope: ScopeId,
    pub phase: Phase,
    /// Whether it repeats part of the forward pass.
    pub recompute: bool,
    /// The slice of a loss that it belongs to: what does is differentiated as soon as its loss is there.
    pub slice: Option<Slice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SectionKind {
    /// Parameters and state come into being.
    Start,
    /// Forward and backward of the first micro-batch.
    First,
    /// The same of each further one, adding to the gradients.
    Micro,
    /// The optimizer.
    Update,
    /// Forward only, on the evaluation split.
    Evaluation,
}

impl SectionKind {
    pub fn name(self) -> &'static str {
        match self {
            SectionKind::Start => "start",
            SectionKind::First => "first",
            SectionKind::Micro => "micro",
            SectionKind::Update => "update",
            SectionKind::Evaluation => "evaluation",
        }
    }
}

/// A stretch of the step that runs as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    pub kind: SectionKind,
    /// Storages that hold something when it begins.
    pub entry: Vec<ValueId>,
    /// Storages that hold something when it has ended.
    pub exit: Vec<ValueId>,
    pub code: Vec<Instruction>,
    /// Stretches of the code that a device may capture and replay.
    pub segments: Vec<Range<usize>>,
}

/// A trainable tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub value: ValueId,
    pub initial: Initial,
    /// Numbers the random draws of its initial value. Fixed before any pass.
    pub site: u32,
    /// Which bucket it lies in.
    pub bucket: usize,
    /// Its gradient's first version; set when the program is differentiated.
    pub gradient: Option<ValueId>,
}

/// Flat memory that holds all parameters of a layer, and its like for their gradients and what the optimizer keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub scope: ScopeId,
    pub members: Members,
    pub parameters: ValueId,
    pub gradients: Option<ValueId>,
    pub states: Vec<BucketState>,
}

/// What an optimizer keeps of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketState {
    pub value: ValueId,
    /// What it has of each of the bucket's members.
    pub members: Members,
}

/// What crosses between the program and the host: batches and the numbers of a step go in, its loss comes out.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The parts of the whole batch in the host pool, named as the model asks for them.
    pub batch: Vec<ValueId>,
    /// What the optimizer's update takes as the step's numbers, in the host pool.
    pub numbers: ValueId,
    /// Loss and gradient norm in the host pool.
    pub loss: ValueId,
    pub norm: Option<ValueId>,
}

/// The loss scale and what it is adapted by, on the device, and where the host reads them after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    pub scale: ValueId,
    pub counts: ValueId,
    pub host_scale: ValueId,
    pub host_counts: ValueId,
}

/// What a loss is computed from, and in how many slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliced {
    /// The graph's value.
    pub value: usize,
    pub count: usize,
}

/// How far compilation has come: each pass adds what the next ones rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A forward pass in `first`, another in `evaluation`.
    Forward,
    /// `first` has its backward pass.
    Differentiated,
    /// There is a section for each part of the step.
    Sectioned,
    /// Gradients are clipped and applied, results brought to the host.
    Updated,
    /// Queues are ordered by events.
    Ordered,
    /// Values are allocated and freed.
    Released,
    /// Storages have places in the arena.
    Placed,
}

/// A compiled training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub stage: Stage,
    pub scopes: Vec<Scope>,
    pub values: Vec<Value>,
    pub sections: Vec<Section>,
    pub parameters: Vec<Parameter>,
    pub buckets: Vec<Bucket>,
    pub exchange: Exchange,
    /// The loss, as it is carried from the first micro-batch to the update; set when the program is differentiated.
    pub loss: Option<ValueId>,
    pub loss_scaling: Option<LossScaling>,
    /// In how many slices losses are computed: what depends on sizes of the code itself.
    pub slices: Vec<Sliced>,
    /// Micro-batches per optimizer step.
    pub micro_batches: usize,
    /// FLOPs of the model's forward and backward pass over one micro-batch, nothing recomputed.
    pub model_flops: u64,
    pub events: u32,
    /// Set by placement: where in its pool's arena each storage lies, and each arena's size.
    pub places: Vec<Option<u64>>,
    pub arenas: [u64; Pool::ALL.len()],
}

impl Program {
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    pub fn ty(&self, id: ValueId) -> TensorType {
        self.values[id.index()].ty
    }

    pub fn types(&self, ids: &[ValueId]) -> Vec<TensorType> {
        ids.iter().map(|&id| self.ty(id)).collect()
    }

    /// By value: whether it is one of these.
    pub fn marked(&self, ids: &[ValueId]) -> Vec<bool> {
        let mut marked = vec![false; self.values.len()];
        ids.iter().for_each(|id| marked[id.index()] = true);
        marked
    }

    pub fn storage(&self, id: ValueId) -> ValueId {
        self.values[id.index()].storage
    }

    /// What a value is part of, or else itself.
    pub fn whole(&self, id: ValueId) -> ValueId {
        self.value(id).view.map_or(id, |view| view.of)
    }

    pub fn scope(&self, id: ScopeId) -> &Scope {
        &self.scopes[id.index()]
    }

    pub fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    pub fn section_mut(&mut self, kind: SectionKind) -> Option<&mut Section> {
        self.sections.iter_mut().find(|section| section.kind == kind)
    }

    /// A value with memory of its own.
    pub fn add_value(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (like, ty): (Like, TensorType),
        role: Role,
        pool: Pool,
    ) -> ValueId {
        let (form, storage) = (Form::Primal, self.next());
        let (view, previous, offset) = (None, None, 0);
        self.add(Value { name, form, scope, ty, like, role, pool, view, previous, storage, offset })
    }

    /// A value with memory of its own that is made from a description of another: what is not said anew is as it
    /// is there, the shape in runs of other sizes among it.
    pub fn add_like(&mut self, value: Value) -> ValueId {
        self.add(Value { view: None, previous: None, ..value })
    }

    /// A part of another value, which says what is not said here.
    pub fn add_view(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (like, shape): (Like, Shape),
        view: View,
    ) -> ValueId {
        let parent = self.value(view.of).clone();
        let ty = TensorType { shape, ..parent.ty };
        self.add(Value { name, scope, ty, like, view: Some(view), previous: None, ..parent })
    }

    /// The same part of another value as this one is of its parent.
    pub fn add_view_like(&mut self, view: ValueId, part: Part, of: ValueId) -> ValueId {
        let Value { name, scope, ty, like, .. } = *self.value(view);
        self.add_view(name, scope, (like, ty.shape), View { of, part })
    }

    /// Some of the rows of a value.
    pub fn add_rows(&mut self, of: ValueId, rows: Slice) -> ValueId {
        let Value { name, scope, ty, like, .. } = *self.value(of);
        self.add_view(
            name,
            scope,
            (like.rows(rows), ty.shape.of_rows(rows)),
            View { of, part: Part::Rows(rows) },
        )
    }

    /// A value like some of the rows of another, with memory of its own.
    pub fn add_slice(&mut self, of: ValueId, rows: Slice) -> ValueId {
        let value = self.value(of).clone();
        let ty = TensorType { shape: value.ty.shape.of_rows(rows), ..value.ty };
        self.add_like(Value { ty, like: value.like.rows(rows), ..value })
    }

    /// Lets a value take the place of another from now on.
    pub fn set_previous(&mut self, id: ValueId, previous: Option<ValueId>) {
        if let Some(previous) = previous {
            let Value { storage, offset, .. } = *self.value(previous);
            let value = &mut self.values[id.index()];
            (value.previous, value.storage, value.offset) = (Some(previous), storage, offset);
        }
    }

    /// The next version of a value.
    pub fn add_version(&mut self, previous: ValueId) -> ValueId {
        self.add(Value { previous: Some(previous), ..self.value(previous).clone() })
    }

    fn add(&mut self, value: Value) -> ValueId {
        let id = self.next();
        let (storage, offset) = match value {
            Value { previous: Some(previous), .. } => (self.storage(previous), self.value(previous).offset),
            Value { view: Some(view), .. } => (self.storage(view.of), self.view_offset(view)),
            _ => (id, 0),
        };
        self.values.push(Value { storage, offset, ..value });
        id
    }

    /// Gives a value another dtype. Its parts take it on when they are read (`follow_parent`).
    pub fn set_dtype(&mut self, id: ValueId, dtype: DType) {
        self.values[id.index()].ty.dtype = dtype;
    }

    /// Gives a view the dtype that its parent has by now, and the place.
    pub fn follow_parent(&mut self, id: ValueId) {
        let Some(view) = self.value(id).view else { return };
        self.follow_parent(view.of);
        let (dtype, offset) = (self.ty(view.of).dtype, self.view_offset(view));
        let value = &mut self.values[id.index()];
        (value.ty.dtype, value.offset) = (dtype, offset);
    }

    /// Where in the storage of its parent a view lies, in bytes.
    pub(super) fn view_offset(&self, View { of, part }: View) -> u64 {
        let parent = self.value(of);
        let elements = match (part, parent.like) {
            (Part::Member(member), Like::Bucket(bucket)) => self.buckets[bucket].members[member].offset,
            (Part::Member(_), _) => unreachable!("buckets alone have members"),
            (Part::Rows(slice), _) => slice.range(parent.ty.shape.rows()).start * parent.ty.shape.last(),
        };
        parent.offset + elements as u64 * parent.ty.dtype.bytes()
    }

    fn next(&self) -> ValueId {
        ValueId(self.values.len() as u32)
    }

    pub fn add_scope(&mut self, path: &str) -> ScopeId {
        let id = ScopeId(self.scopes.len() as u32);
        self.scopes.push(Scope { path: path.to_owned(), layer: id, block: false });
        id
    }

    pub fn add_event(&mut self) -> Event {
        self.events += 1;
        Event(self.events - 1)
    }

    /// `blocks.3.attention.qkv`, `blocks.3.attention.d_qkv` for its gradient, `blocks.3.attention.qkv'` when it
    /// is computed again, `blocks.3.attention.qkv.weight:bf16` when it is cast.
    pub fn full_name(&self, id: ValueId) -> String {
        let Value { name, form, scope, .. } = *self.value(id);
        let path = &self.scope(scope).path;
        match form {
            Form::Primal => format!("{path}.{name}"),
            Form::Gradient => format!("{path}.d_{name}"),
            Form::Recomputed => format!("{path}.{name}'"),
            Form::Cast => format!("{path}.{name}:{}", self.ty(id).dtype),
        }
    }

    /// FLOPs of a launch; none for other actions.
    pub fn flops(&self, action: &Action) -> u64 {
        match action {
            Action::Launch { op, inputs, outputs, .. } => op.flops(&self.types(inputs), &self.types(outputs)),
            _ => 0,
        }
    }

    /// What it launches, each operation once on operands of the same types and alignment.
    pub fn work(&self) -> Vec<Work> {
        let place = |&id: &ValueId| Placed::new(self.ty(id), self.value(id).offset);
        let placed = |ids: &[ValueId]| ids.iter().map(place).collect::<Vec<_>>();
        let mut all: Vec<Work> = Vec::new();
        for instruction in self.sections.iter().flat_map(|section| &section.code) {
            let Action::Launch { op, inputs, outputs, workspace } = &instruction.action else { continue };
            let work = Work {
                op: op.clone(),
                inputs: placed(inputs),
                outputs: placed(outputs),
                workspace: workspace.map_or(0, |id| self.ty(id).bytes()),
            };
            if !all.contains(&work) {
                all.push(work);
            }
        }
        all
    }

    /// The sections of one optimizer step, in order.
    pub fn step(&self) -> impl Iterator<Item = SectionKind> + use<> {
        let further = self.micro_batches - 1;
        std::iter::once(SectionKind::First)
            .chain(std::iter::repeat_n(SectionKind::Micro, further))
            .chain(std::iter::once(SectionKind::Update))
    }
}

impl Instruction {
    pub fn new(action: Action, scope: ScopeId, phase: Phase) -> Instruction {
        Instruction { action, scope, phase, recompute: false, slice: None }
    }
}

impl Like {
    /// Like some rows of what is like this: the graph's values have rows.
    fn rows(self, slice: Slice) -> Like {
        match self {
            Like::Graph(index) => Like::Rows(index, slice),
            _ => unreachable!("only what the graph computes is sliced"),
        }
    }
}

impl Action {
    /// The values it reads, the previous versions of what it updates among them.
    pub fn reads(&self) -> &[ValueId] {
        match self {
            Action::Launch { inputs, .. } => inputs,
            Action::Copy { from, .. } => std::slice::from_ref(from),
            _ => &[],
        }
    }

    pub fn writes(&self) -> &[ValueId] {
        match self {
            Action::Launch { outputs, .. } => outputs,
            Action::Copy { to, .. } => std::slice::from_ref(to),
            _ => &[],
        }
    }

    pub fn workspace(&self) -> Option<ValueId> {
        match self {
            Action::Launch { workspace, .. } => *workspace,
            _ => None,
        }
    }

    /// The queue it runs on. Allocation follows the order of the compute queue.
    pub fn queue(&self) -> Queue {
        match self {
            Action::Copy { queue, .. } | Action::Record { queue, .. } | Action::Wait { queue, .. } => *queue,
            _ => Queue::Compute,
        }
    }

    pub fn is_cast(&self) -> bool {
        matches!(self, Action::Launch { op, .. } if op.is_cast())
    }

    pub fn is_loss(&self) -> bool {
        matches!(self, Action::Launch { op, .. } if op.as_loss().is_some())
    }

    /// All values whose memory it touches.
    pub fn touches(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.reads().iter().chain(self.writes()).copied().chain(self.workspace())
    }
}
