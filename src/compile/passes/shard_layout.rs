//! The part of the model that this rank has: with `shard = "parameters"`, a share of each parameter bucket.

use super::Draft;
use crate::ir::{Action, Instruction, Program, SectionKind, ShapeSource, Share, SubRange, Value, View};
use device::{Phase, Queue, Role};
use ops::{Shape, TensorType, ValueId};

pub(super) fn lay_out(draft: &mut Draft) {
    let divides = draft.config.shards_states() && draft.config.trains();
    if !divides && !draft.config.shards_parameters() {
        return;
    }
    let program = &mut draft.program;
    let share = Share { index: draft.target.rank, of: draft.config.ranks() };
    program.share = Some(share);
    if !draft.config.shards_parameters() {
        return;
    }
    for bucket in 0..program.buckets.len() {
        if program.value(program.buckets[bucket].parameters).role == Role::Parameter {
            divide(program, bucket, share);
        }
    }
}

/// Replaces a bucket's parameters by this rank's share. Those of all ranks are in memory while they are initialised, one
/// bucket at a time.
fn divide(program: &mut Program, bucket: usize, share: Share) {
    let whole = program.buckets[bucket].whole;
    let own = program.add_share(whole, share);
    program.buckets[bucket].parameters = own;
    for section in &mut program.sections {
        let live = section.live_in.iter_mut().chain(&mut section.live_out);
        live.filter(|id| **id == whole).for_each(|id| *id = own);
    }
    let part = program.share_of(whole, share);
    let Some(start) = program.sections.iter().position(|section| section.kind == SectionKind::Start) else {
        return;
    };
    let writes = |instruction: &Instruction| {
        instruction.action.writes().iter().any(|&id| program.storage(id) == whole)
    };
    let last = program.sections[start].code.iter().rposition(writes).expect("parameters are initialised");
    let copy = Action::Copy { queue: Queue::Compute, from: part, to: own };
    let scope = program.buckets[bucket].scope;
    program.sections[start].code.insert(last + 1, Instruction::new(copy, scope, Phase::Start));
}

impl Program {
    /// A value with its own memory, of the type of a share of another.
    pub(super) fn add_share(&mut self, whole: ValueId, share: Share) -> ValueId {
        let value = self.value(whole).clone();
        let ty = TensorType { shape: share_shape(&value, share), ..value.ty };
        self.add_like(Value { ty, shape_source: ShapeSource::Fixed, ..value })
    }

    /// The view of a share of a value.
    pub(super) fn share_of(&mut self, whole: ValueId, share: Share) -> ValueId {
        let value = self.value(whole);
        let (name, scope, shape) = (value.name, value.scope, share_shape(value, share));
        let view = View { of: whole, range: SubRange::Share(share) };
        self.add_view(name, scope, (ShapeSource::Fixed, shape), view)
    }
}

fn share_shape(whole: &Value, share: Share) -> Shape {
    Shape::new(&[share.range(whole.ty.elements()).len()])
}
