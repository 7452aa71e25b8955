//! One training step as a static list of operations over values.

use std::collections::HashMap;
use std::ops::Range;

use super::bucket::{Bucket, Parameter};
use super::instruction::{Action, Instruction};
use super::value::{BatchBuffer, Share, Value};
use crate::lengths::LengthPrograms;
use device::{Event, Phase, Placed, Pool, Work};
use graph::{MicroBatch, Pass, Scope, ScopeId};
use ops::{Loss, TensorType, ValueId};
use spec::Allocator;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SectionKind {
    /// Initialises parameters and optimizer states.
    Start,
    /// Forward and backward of the first micro-batch.
    First,
    /// Forward and backward of each further micro-batch; adds to the gradients.
    Micro,
    /// Forward and backward of the last micro-batch, if it has fewer samples than the others.
    Tail,
    /// The optimizer step.
    Update,
    /// Forward only, on the evaluation split.
    Evaluation,
    /// Forward of a batch's last micro-batch, if it has fewer samples than the others.
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
    pub fn is_in_step(self) -> bool {
        use SectionKind::{First, Micro, Tail, Update};
        matches!(self, First | Micro | Tail | Update)
    }

    /// Whether it is part of an evaluation.
    pub fn is_in_evaluation(self) -> bool {
        matches!(self, SectionKind::Evaluation | SectionKind::EvaluationTail)
    }

    /// The micro-batch that it processes, if any.
    pub fn micro_batch(self) -> Option<MicroBatch> {
        match self {
            SectionKind::First | SectionKind::Micro | SectionKind::Evaluation => Some(MicroBatch::Full),
            SectionKind::Tail | SectionKind::EvaluationTail => Some(MicroBatch::Tail),
            SectionKind::Start | SectionKind::Update => None,
        }
    }
}

/// A part of the step that runs as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    pub kind: SectionKind,
    /// How often it runs in succession: in an optimizer step, or in the evaluation of a batch.
    pub repeat_count: usize,
    /// Samples of the batch that each iteration processes.
    pub samples: usize,
    /// FLOPs of its part of the model's passes, without recomputation.
    pub model_flops: u64,
    /// Storages that are live when the section begins.
    pub live_in: Vec<ValueId>,
    /// Storages that are live when the section ends.
    pub live_out: Vec<ValueId>,
    /// Storages of `live_in` that the section itself allocates in its first iteration (lazy initialisation).
    pub lazily_initialised: Vec<ValueId>,
    pub code: Vec<Instruction>,
    /// Ranges of the code that a device can capture and replay as a graph.
    pub capture_ranges: Vec<Range<usize>>,
}

/// Buffers that the host and the program share: batches and step scalars go in, results come out.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBuffers {
    /// The parts of whole batches in host memory, one slot per batch, named after the model's inputs.
    pub batch: Vec<ValueId>,
    /// The same parts on the device, if batches are copied ahead of their steps.
    pub staged: Vec<ValueId>,
    /// The same parts of an evaluation batch in host memory, if evaluation batches have their own size.
    pub evaluation: Vec<ValueId>,
    /// Data that is held as a whole, in host or in device memory: the token row (all tokens of the data set), or the parts
    /// of all samples.
    pub held: Vec<ValueId>,
    /// The optimizer's inputs for a step (such as the learning rate), in pinned memory.
    pub step_scalars: ValueId,
    /// The results that the host reads after a step, in pinned memory.
    pub results: Results,
}

/// The results of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Results {
    /// The loss of a step; that of an evaluation, if it has no accuracy.
    pub loss: ValueId,
    /// Loss and accuracy of an evaluation: f32[2].
    pub evaluated: Option<ValueId>,
    /// The gradient norm before clipping, unscaled.
    pub norm: Option<ValueId>,
    /// The loss scale of the next step.
    pub scale: Option<ValueId>,
    /// `StepCounts` so far.
    pub counts: Option<ValueId>,
}

impl Results {
    pub fn iter(&self) -> impl Iterator<Item = ValueId> + use<> {
        let Results { loss, evaluated, norm, scale, counts } = *self;
        [Some(loss), evaluated, norm, scale, counts].into_iter().flatten()
    }
}

/// The loss scale and the counts that adapt it, on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    pub scale: ValueId,
    pub counts: ValueId,
}

/// The input of a loss, and the number of slices that it is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossSlices {
    /// The forward pass and the index of the value in its graph.
    pub pass: Pass,
    pub value: usize,
    pub count: usize,
}

/// A value of the forward pass that is offloaded between forward and backward, if it is large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloadable {
    pub value: ValueId,
    pub is_offloaded: bool,
}

/// The progress of compilation: each stage adds what the next passes rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Each section that processes samples has a forward pass, with open dtypes. Further micro-batches have no
    /// section yet.
    Forward,
    /// Values have their dtypes.
    Typed,
    /// The sections of the step have their backward passes.
    Differentiated,
    /// Every part of the step has a section.
    Sectioned,
    /// Gradients are clipped and applied; results are copied to the host.
    Updated,
    /// Operands are on the device of their launches.
    Transferred,
    /// Queues are ordered by events.
    Ordered,
    /// Values are allocated and freed.
    Deallocated,
    /// Storages have offsets in the arena.
    Placed,
}

/// The types of an operation's operands. Reused across operations to avoid allocations.
#[derive(Debug, Default)]
pub struct OperandTypes {
    pub inputs: Vec<TensorType>,
    pub outputs: Vec<TensorType>,
}

impl OperandTypes {
    #[inline]
    pub fn of(&mut self, values: &[Value], inputs: &[ValueId], outputs: &[ValueId]) -> &OperandTypes {
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
    /// The loss that is live from the first micro-batch to the update; set by differentiation.
    pub loss: Option<ValueId>,
    pub loss_scaling: Option<LossScaling>,
    /// The number of slices of each loss: the code depends on it.
    pub loss_slices: Vec<LossSlices>,
    /// Values that can be offloaded between forward and backward, and whether they are large enough.
    pub offloadable: Vec<Offloadable>,
    /// Samples of an optimizer step, over all ranks.
    pub batch_size: usize,
    /// Number of ranks that train together.
    pub ranks: usize,
    /// This rank's share of what ranks divide among them.
    pub share: Option<Share>,
    /// Samples of an evaluation batch, over all ranks.
    pub evaluation_batch_size: usize,
    /// Samples of an optimizer step on this rank.
    pub samples: usize,
    /// Samples of an evaluation batch on this rank.
    pub evaluation_samples: usize,
    /// Batches that the host buffers hold: the current one, and those that are assembled ahead.
    pub slots: usize,
    pub events: u32,
    /// By transferred copy of a value, or by a parameter's initial value before quantization: the original value.
    pub originals: HashMap<ValueId, ValueId>,
    /// The allocator of its storages.
    pub allocator: Allocator,
    /// Set by the pass "offsets": the offset of each storage in its pool's arena, and each arena's size.
    pub arena_offsets: Vec<Option<u64>>,
    pub arenas: [u64; Pool::ALL.len()],
    /// The programs of shorter micro-batches, if lengths vary; this one is that of the longest.
    pub lengths: Option<LengthPrograms>,
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

    /// By value: whether it is one of `ids`.
    pub fn mask(&self, ids: &[ValueId]) -> Vec<bool> {
        let mut marked = vec![false; self.values.len()];
        ids.iter().for_each(|id| marked[id.index()] = true);
        marked
    }

    /// The number of batches that a buffer holds.
    pub fn batch_slots(&self, buffer: BatchBuffer) -> usize {
        match buffer {
            BatchBuffer::Host => self.slots,
            BatchBuffer::Staged => 2,
            BatchBuffer::Evaluation => 1,
        }
    }

    /// Samples of one batch of a buffer.
    pub fn batch_samples(&self, buffer: BatchBuffer) -> usize {
        match buffer {
            BatchBuffer::Host | BatchBuffer::Staged => self.samples,
            BatchBuffer::Evaluation => self.evaluation_samples,
        }
    }

    /// Samples of all batches of a buffer.
    pub(crate) fn buffer_samples(&self, buffer: BatchBuffer) -> usize {
        self.batch_samples(buffer) * self.batch_slots(buffer)
    }

    /// The original of a transferred copy; otherwise the value itself.
    #[inline]
    pub fn original(&self, id: ValueId) -> ValueId {
        self.originals.get(&id).copied().unwrap_or(id)
    }

    #[inline]
    pub fn storage(&self, id: ValueId) -> ValueId {
        self.values[id.index()].storage
    }

    /// The parent of a view; otherwise the value itself.
    #[inline]
    pub(crate) fn parent_or_self(&self, id: ValueId) -> ValueId {
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

    pub(crate) fn add_scope(&mut self, path: &str) -> ScopeId {
        let id = ScopeId(self.scopes.len() as u32);
        self.scopes.push(Scope { path: path.to_owned(), parent: None, layer: id, block: false });
        id
    }

    pub(crate) fn add_event(&mut self) -> Event {
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

    /// Bytes that a rank sends to the others in an exchange; 0 for other actions.
    pub fn sent_bytes(&self, action: &Action) -> u64 {
        let Action::Exchange { collective, from, to } = *action else { return 0 };
        let whole = self.ty(from).bytes().max(self.ty(to).bytes());
        collective.sent_bytes(whole, self.ranks)
    }

    /// FLOPs of all launches of some code.
    pub(crate) fn flops_of<'a>(&self, code: impl IntoIterator<Item = &'a Instruction>) -> u64 {
        let mut types = OperandTypes::default();
        let mut flops = 0;
        for instruction in code {
            if let Action::Launch { op, inputs, outputs, .. } = &instruction.action {
                let OperandTypes { inputs, outputs } = types.of(&self.values, inputs, outputs);
                flops += op.flops(inputs, outputs);
            }
        }
        flops
    }

    /// The distinct launches of the program: each operation once per combination of operand types and alignments.
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
                home: instruction.device,
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

    /// The sections of one optimizer step, in order. Each runs `repeat_count` times in succession.
    pub fn step(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| section.kind.is_in_step())
    }

    /// The sections of the evaluation of one batch.
    pub fn evaluation(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| section.kind.is_in_evaluation())
    }

    /// Micro-batches of an optimizer step.
    pub fn micro_batches(&self) -> usize {
        self.step().filter(|section| section.samples > 0).map(|section| section.repeat_count).sum()
    }

    /// FLOPs of a step's forward and backward passes, without recomputation; the mean of the run's steps.
    pub fn model_flops(&self) -> u64 {
        self.step_sections().mean(|of| of.section.model_flops)
    }

    /// FLOPs of a step's recomputation; the mean of the run's steps.
    pub fn recompute_flops(&self) -> u64 {
        self.step_sections().mean(|of| {
            of.program.flops_of(of.section.code.iter().filter(|instruction| instruction.recompute))
        })
    }

    /// FLOPs of a step, the optimizer's included; the mean of the run's steps.
    pub fn hardware_flops(&self) -> u64 {
        let is_repeated = |of: &&Instruction| !of.is_once() && of.phase != Phase::Start;
        self.step_sections().mean(|of| of.program.flops_of(of.section.code.iter().filter(is_repeated)))
    }
}

impl Section {
    /// Whether the loss is a sum over the samples, not a mean.
    pub fn sums_losses(&self) -> bool {
        self.code.iter().any(|instruction| match &instruction.action {
            Action::Launch { op, .. } => op.as_loss().is_some_and(Loss::is_sum),
            _ => false,
        })
    }

    /// The weight of an iteration's samples in the loss of a batch: their share of the batch.
    pub fn share(&self, batch_size: usize) -> f32 {
        (self.samples as f64 / batch_size as f64) as f32
    }
}
