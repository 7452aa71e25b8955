//! One training step as a static list of operations over values.

use std::collections::HashMap;
use std::ops::Range;

use super::instruction::{Action, Instruction};
use super::value::{Batches, Value};
use device::{Event, Placed, Pool, Work};
use graph::{Initial, MicroBatch, Pass, Scope, ScopeId};
use ops::{Members, Storage, TensorType, UpdateFormat, ValueId};
use spec::Allocator;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SectionKind {
    /// Parameters and state come into being.
    Start,
    /// Forward and backward of the first micro-batch.
    First,
    /// The same of each further one, adding to the gradients.
    Micro,
    /// The same of the last one, where it has fewer samples than the others.
    Tail,
    /// The optimizer.
    Update,
    /// Forward only, on the evaluation split.
    Evaluation,
    /// The same of a batch's last micro-batch, where it has fewer samples than the others.
    EvaluationTail,
}

impl SectionKind {
    pub fn name(self) -> &'static str {
        match self {
            SectionKind::Start => "start",
            SectionKind::First => "first",
            SectionKind::Micro => "micro",
            SectionKind::Tail => "tail",
            SectionKind::Update => "update",
            SectionKind::Evaluation => "evaluation",
            SectionKind::EvaluationTail => "evaluation-tail",
        }
    }

    /// Whether it is part of an optimizer step.
    pub fn is_of_step(self) -> bool {
        use SectionKind::{First, Micro, Tail, Update};
        matches!(self, First | Micro | Tail | Update)
    }

    /// Whether it is part of an evaluation.
    pub fn is_of_evaluation(self) -> bool {
        matches!(self, SectionKind::Evaluation | SectionKind::EvaluationTail)
    }

    /// Which micro-batch it sees, if it sees any.
    pub fn micro_batch(self) -> Option<MicroBatch> {
        match self {
            SectionKind::First | SectionKind::Micro | SectionKind::Evaluation => Some(MicroBatch::Full),
            SectionKind::Tail | SectionKind::EvaluationTail => Some(MicroBatch::Tail),
            SectionKind::Start | SectionKind::Update => None,
        }
    }
}

/// A stretch of the step that runs as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    pub kind: SectionKind,
    /// How often in a row it is gone through: in an optimizer step, or in the evaluation of a batch.
    pub times: usize,
    /// Samples of the batch that it sees each time.
    pub samples: usize,
    /// FLOPs of its part of the model's passes, nothing computed again.
    pub model_flops: u64,
    /// Storages that hold something when it begins.
    pub entry: Vec<ValueId>,
    /// Storages that hold something when it has ended.
    pub exit: Vec<ValueId>,
    /// Those of them that begin with the section's first time: they hold nothing before it, though `entry` has them.
    pub made: Vec<ValueId>,
    pub code: Vec<Instruction>,
    /// Stretches of the code that a device may capture and replay.
    pub segments: Vec<Range<usize>>,
}

/// A tensor that a model learns, or has learnt.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub value: ValueId,
    pub initial: Initial,
    /// Numbers the random draws of its initial value. Fixed before any pass.
    pub site: u32,
    /// Which bucket it lies in.
    pub bucket: usize,
    /// Whether it is a table whose rows are looked up by their numbers.
    pub looked_up: bool,
    /// What its codes are multiplied by, where it is stored in codes.
    pub scales: Vec<ValueId>,
    /// Its gradient's first version; set when the program is differentiated, if it is trained.
    pub gradient: Option<ValueId>,
}

/// Flat memory that holds the parameters of a layer that are of one dtype and updated alike, or not at all, and its like for
/// their gradients and what the optimizer keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub scope: ScopeId,
    /// Whether its parameters are trained. Frozen ones have no gradients, no states and no update.
    pub trainable: bool,
    /// How they are stored, where they are not trained.
    pub storage: Storage,
    /// How the optimizer stores what it keeps of them.
    pub format: UpdateFormat,
    /// Which of the optimizer's groups its parameters are of, if they are trained.
    pub update: usize,
    pub members: Members,
    pub parameters: ValueId,
    /// Of parameters that are stored in codes.
    pub scales: Vec<BucketState>,
    pub gradients: Option<ValueId>,
    pub states: Vec<BucketState>,
}

impl Bucket {
    /// All that its parameters lie in.
    pub fn stored(&self) -> impl Iterator<Item = ValueId> + '_ {
        std::iter::once(self.parameters).chain(self.scales.iter().map(|scales| scales.value))
    }

    /// How many numbers its parameters have.
    pub fn numbers(&self) -> u64 {
        self.members.iter().map(|member| member.elements() as u64).sum()
    }
}

/// What goes with a bucket: what an optimizer keeps of it, or the scales of its codes.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketState {
    pub value: ValueId,
    /// What it has of each of the bucket's members.
    pub members: Members,
}

/// What crosses between the program and the host: batches and the numbers of a step go in, its results come out.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBuffers {
    /// The parts of whole batches in memory of the host, one batch after the other, named as the model asks for them.
    pub batch: Vec<ValueId>,
    /// The same on the device, where batches come there ahead of their steps.
    pub staged: Vec<ValueId>,
    /// All tokens of the data, in a row, where they are held as a whole: in the host's memory, or in the device's.
    pub row: Option<ValueId>,
    /// What the optimizer's update takes as the step's numbers, in pinned memory.
    pub numbers: ValueId,
    /// What the host reads after a step, there as well.
    pub results: Results,
}

/// What a step tells the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Results {
    /// Of an evaluation as well.
    pub loss: ValueId,
    /// Of the gradients before clipping, without their scale.
    pub norm: Option<ValueId>,
    /// What the gradients of the next step are scaled by.
    pub scale: Option<ValueId>,
    /// What became of the steps so far: `StepCounts`.
    pub counts: Option<ValueId>,
}

impl Results {
    pub fn iter(&self) -> impl Iterator<Item = ValueId> + use<> {
        let Results { loss, norm, scale, counts } = *self;
        [Some(loss), norm, scale, counts].into_iter().flatten()
    }
}

/// The loss scale and what it is adapted by, on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    pub scale: ValueId,
    pub counts: ValueId,
}

/// What a loss is computed from, and in how many slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliced {
    /// The graph's value, as this forward pass has it.
    pub pass: Pass,
    pub value: usize,
    pub count: usize,
}

/// A value of the forward pass that leaves the device until backward needs it, if it is large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spillable {
    pub value: ValueId,
    pub is_spilled: bool,
}

/// How far compilation has come: each pass adds what the next ones rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A forward pass in each section that sees samples, whose dtypes are open; there is none for further micro-batches yet.
    Forward,
    /// Values have their dtypes.
    Typed,
    /// Those of the step have their backward passes.
    Differentiated,
    /// There is a section for each part of the step.
    Sectioned,
    /// Gradients are clipped and applied, results brought to the host.
    Updated,
    /// What is computed with has been brought to the device.
    Brought,
    /// Queues are ordered by events.
    Ordered,
    /// Values are allocated and freed.
    Released,
    /// Storages have places in the arena.
    Placed,
}

/// The types of an operation's operands, in memory that serves one operation after the other.
#[derive(Debug, Default)]
pub struct Types {
    pub inputs: Vec<TensorType>,
    pub outputs: Vec<TensorType>,
}

impl Types {
    #[inline]
    pub fn of(&mut self, values: &[Value], inputs: &[ValueId], outputs: &[ValueId]) -> &Types {
        for (types, ids) in [(&mut self.inputs, inputs), (&mut self.outputs, outputs)] {
            types.clear();
            types.extend(ids.iter().map(|id| values[id.index()].ty));
        }
        self
    }
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
    pub host_buffers: HostBuffers,
    /// The loss, as it is carried from the first micro-batch to the update; set when the program is differentiated.
    pub loss: Option<ValueId>,
    pub loss_scaling: Option<LossScaling>,
    /// In how many slices losses are computed: what depends on sizes of the code itself.
    pub slices: Vec<Sliced>,
    /// What may leave the device between the passes, and whether it is large enough to.
    pub spillable: Vec<Spillable>,
    /// Samples of an optimizer step, those of all ranks.
    pub batch_size: usize,
    /// Those of them that this rank sees.
    pub samples: usize,
    /// Batches that the host buffers has room for: the one that is trained on, and those that are assembled ahead of it.
    pub slots: usize,
    pub events: u32,
    /// By what stands in one pool for a value of another, or for a parameter before that is stored: that value.
    pub stand_ins: HashMap<ValueId, ValueId>,
    /// Where the memory of its storages comes from.
    pub allocator: Allocator,
    /// Set by placement: where in its pool's arena each storage lies, and each arena's size.
    pub places: Vec<Option<u64>>,
    pub arenas: [u64; Pool::ALL.len()],
}

impl Program {
    #[inline]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    #[inline]
    pub fn ty(&self, id: ValueId) -> TensorType {
        self.values[id.index()].ty
    }

    pub fn types(&self, ids: &[ValueId]) -> Vec<TensorType> {
        ids.iter().map(|&id| self.ty(id)).collect()
    }

    /// The buckets that are trained.
    pub fn trained(&self) -> impl Iterator<Item = usize> + use<> {
        let trained = |(index, bucket): (usize, &Bucket)| bucket.trainable.then_some(index);
        self.buckets.iter().enumerate().filter_map(trained).collect::<Vec<_>>().into_iter()
    }

    /// Whether anything is.
    pub fn trains(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.trainable)
    }

    /// How many numbers there are in the parameters of buckets that are like this.
    pub fn numbers_of(&self, like: impl Fn(&Bucket) -> bool) -> u64 {
        self.buckets.iter().filter(|bucket| like(bucket)).map(Bucket::numbers).sum()
    }

    /// By value: whether it is one of these.
    pub fn marked(&self, ids: &[ValueId]) -> Vec<bool> {
        let mut marked = vec![false; self.values.len()];
        ids.iter().for_each(|id| marked[id.index()] = true);
        marked
    }

    /// How many batches lie there.
    pub fn batches(&self, batches: Batches) -> usize {
        match batches {
            Batches::HostBuffers => self.slots,
            Batches::Staged => 2,
        }
    }

    /// What a value is in the pool that it lives in for good.
    #[inline]
    pub fn stands_for(&self, id: ValueId) -> ValueId {
        self.stand_ins.get(&id).copied().unwrap_or(id)
    }

    #[inline]
    pub fn storage(&self, id: ValueId) -> ValueId {
        self.values[id.index()].storage
    }

    /// What a value is part of, or else itself.
    #[inline]
    pub fn whole(&self, id: ValueId) -> ValueId {
        self.value(id).view.map_or(id, |view| view.of)
    }

    #[inline]
    pub fn scope(&self, id: ScopeId) -> &Scope {
        &self.scopes[id.index()]
    }

    pub fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    pub fn section_mut(&mut self, kind: SectionKind) -> Option<&mut Section> {
        self.sections.iter_mut().find(|section| section.kind == kind)
    }

    pub fn add_scope(&mut self, path: &str) -> ScopeId {
        let id = ScopeId(self.scopes.len() as u32);
        self.scopes.push(Scope { path: path.to_owned(), parent: None, layer: id, block: false });
        id
    }

    pub fn add_event(&mut self) -> Event {
        self.events += 1;
        Event(self.events - 1)
    }

    /// FLOPs of a launch; none for other actions.
    #[inline]
    pub fn flops(&self, action: &Action) -> u64 {
        match action {
            Action::Launch { op, inputs, outputs, .. } => op.flops(&self.types(inputs), &self.types(outputs)),
            _ => 0,
        }
    }

    /// FLOPs of all launches of some code.
    pub fn flops_of<'a>(&self, code: impl IntoIterator<Item = &'a Instruction>) -> u64 {
        let mut types = Types::default();
        let mut flops = 0;
        for instruction in code {
            if let Action::Launch { op, inputs, outputs, .. } = &instruction.action {
                let Types { inputs, outputs } = types.of(&self.values, inputs, outputs);
                flops += op.flops(inputs, outputs);
            }
        }
        flops
    }

    /// What it has devices do, each operation once on operands of the same types and alignment.
    pub fn work(&self) -> Vec<Work> {
        let place = |&id: &ValueId| Placed::new(self.ty(id), self.value(id).offset);
        let placed = |ids: &[ValueId]| ids.iter().map(place).collect::<Vec<_>>();
        let mut all: Vec<Work> = Vec::new();
        for instruction in self.sections.iter().flat_map(|section| &section.code) {
            let Action::Launch { op, inputs, outputs, workspace } = &instruction.action else { continue };
            if op.stored_site().is_some() {
                continue;
            }
            let work = Work {
                home: instruction.home,
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

    /// The sections of one optimizer step, in order. Each is gone through its `times` in a row.
    pub fn step(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| section.kind.is_of_step())
    }

    /// The same of the evaluation of a batch.
    pub fn evaluation(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| section.kind.is_of_evaluation())
    }

    /// Micro-batches of an optimizer step.
    pub fn micro_batches(&self) -> usize {
        self.step().filter(|section| section.samples > 0).map(|section| section.times).sum()
    }

    /// FLOPs of a step's forward and backward passes, nothing computed again.
    pub fn model_flops(&self) -> u64 {
        self.step().map(|section| section.times as u64 * section.model_flops).sum()
    }

    /// FLOPs of what a step computes again.
    pub fn recompute_flops(&self) -> u64 {
        let again = |section: &Section| {
            self.flops_of(section.code.iter().filter(|instruction| instruction.recompute))
        };
        self.step().map(|section| section.times as u64 * again(section)).sum()
    }
}

impl Section {
    /// What the samples that it sees each time count for in the loss of a batch.
    pub fn share(&self, batch_size: usize) -> f32 {
        (self.samples as f64 / batch_size as f64) as f32
    }
}
