//! One training step as a static list of operations over values.

use std::ops::Range;

use crate::device::{Event, Phase, Pool, Queue, Role, Work};
use crate::graph::{Initial, Scope, ScopeId};
use crate::ops::{Op, Segments, TensorType, ValueId};

/// How a value relates to the model's own of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// The same for the whole batch: micro-batches one after the other.
    Batch(usize),
    /// The bucket of this number.
    Bucket(usize),
    /// What the operation whose scratch memory it is asks for.
    Workspace,
}

/// A value: written once. What overwrites it is another value in the same storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub name: &'static str,
    pub kind: Kind,
    pub scope: ScopeId,
    pub ty: TensorType,
    pub like: Like,
    pub role: Role,
    pub pool: Pool,
    /// The value whose memory this one lies in; itself, if it has its own.
    pub storage: ValueId,
    /// Where in the storage, in bytes.
    pub offset: u64,
    /// The value that this one takes the place of: its previous version, or one that nothing reads again.
    pub previous: Option<ValueId>,
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

/// Flat memory that holds all parameters of a layer, and its like for their gradients and moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub scope: ScopeId,
    pub segments: Segments,
    pub parameters: ValueId,
    pub gradients: Option<ValueId>,
    /// First and second moments.
    pub moments: Option<[ValueId; 2]>,
}

/// What crosses between the program and the host: batches and the numbers of a step go in, its loss comes out.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The parts of the whole batch in the host pool, named as the model asks for them.
    pub batch: Vec<ValueId>,
    /// `ops::Control` in the host pool.
    pub control: ValueId,
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
    pub loss_scaling: Option<LossScaling>,
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
        let (kind, storage) = (Kind::Primal, self.next());
        self.add(Value { name, kind, scope, ty, like, role, pool, storage, offset: 0, previous: None })
    }

    /// A value with memory of its own that is made from a description of another: what is not said anew is as it
    /// is there, the shape in runs of other sizes among it.
    pub fn add_like(&mut self, value: Value) -> ValueId {
        let storage = self.next();
        self.add(Value { storage, offset: 0, previous: None, ..value })
    }

    /// A value that lies in another's memory, `offset` bytes in.
    pub fn add_view(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (like, ty): (Like, TensorType),
        of: ValueId,
        offset: u64,
    ) -> ValueId {
        let Value { kind, role, pool, storage, offset: start, .. } = *self.value(of);
        let offset = start + offset;
        self.add(Value { name, kind, scope, ty, like, role, pool, storage, offset, previous: None })
    }

    /// The next version of a value.
    pub fn add_version(&mut self, previous: ValueId) -> ValueId {
        self.add(Value { previous: Some(previous), ..self.value(previous).clone() })
    }

    fn add(&mut self, value: Value) -> ValueId {
        let id = self.next();
        self.values.push(value);
        id
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
        let Value { name, kind, scope, .. } = *self.value(id);
        let path = &self.scope(scope).path;
        match kind {
            Kind::Primal => format!("{path}.{name}"),
            Kind::Gradient => format!("{path}.d_{name}"),
            Kind::Recomputed => format!("{path}.{name}'"),
            Kind::Cast => format!("{path}.{name}:{}", self.ty(id).dtype),
        }
    }

    /// FLOPs of a launch; none for other actions.
    pub fn flops(&self, action: &Action) -> u64 {
        match action {
            Action::Launch { op, inputs, outputs, .. } => op.flops(&self.types(inputs), &self.types(outputs)),
            _ => 0,
        }
    }

    /// What it launches, each operation of the same types once.
    pub fn work(&self) -> Vec<Work> {
        let mut all: Vec<Work> = Vec::new();
        for instruction in self.sections.iter().flat_map(|section| &section.code) {
            let Action::Launch { op, inputs, outputs, workspace } = &instruction.action else { continue };
            let work = Work {
                op: op.clone(),
                inputs: self.types(inputs),
                outputs: self.types(outputs),
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
        Instruction { action, scope, phase, recompute: false }
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

    /// All values whose memory it touches.
    pub fn touches(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.reads().iter().chain(self.writes()).copied().chain(self.workspace())
    }
}
