//! Parameters that ranks divide are gathered for their use, each bucket as a whole.

use std::collections::HashMap;

use crate::ir::{Action, Bucket, Instruction, Program, Value, Variant};
use device::{Collective, Pool, Role};
use graph::ScopeId;
use ops::{Cast, Op, TensorType, ValueId};

/// Removes the casts of parameters that are gathered in the dtype of the cast, and returns the parameter of each: less is sent
/// and held if shares are cast before.
pub(super) fn remove_casts(program: &Program, code: &mut Vec<Instruction>) -> HashMap<ValueId, ValueId> {
    let mut parameters = HashMap::new();
    code.retain_mut(|instruction| {
        let Action::Launch { op: Op::Cast(cast), inputs, outputs, .. } = &mut instruction.action else {
            return true;
        };
        let is_removed = |input: ValueId| {
            let bucket = program.gathered_with(input);
            bucket.is_some_and(|bucket| program.buckets[bucket].cast_to == Some(cast.to))
        };
        let pairs = inputs.iter().copied().zip(outputs.iter().copied());
        let (removed, kept): (Vec<_>, Vec<_>) = pairs.partition(|(input, _)| is_removed(*input));
        parameters.extend(removed.into_iter().map(|(input, output)| (output, input)));
        (*inputs, *outputs) = kept.into_iter().unzip();
        !inputs.is_empty()
    });
    parameters
}

/// Gathers the parameters of a bucket. A share that is cast before is written to its place in the whole.
pub(super) fn gather(program: &mut Program, bucket: usize, pool: Pool) -> (ValueId, Vec<Action>) {
    let Bucket { whole, parameters, cast_to, .. } = program.buckets[bucket];
    let value = program.value(whole).clone();
    let gather = |from, to| Action::Exchange { collective: Collective::AllGather, from, to };
    let Some(to) = cast_to else {
        let local = program.add_like(Value { pool, ..value });
        return (local, vec![gather(parameters, local)]);
    };
    let ty = TensorType { dtype: to, ..value.ty };
    let local = program.add_like(Value { ty, pool, variant: Variant::Cast, role: Role::Cast, ..value });
    let own = program.share_of(local, program.share.expect("set by the shard layout"));
    let (op, inputs) = (Op::Cast(Cast { to }), vec![parameters]);
    let cast = Action::Launch { op, inputs, outputs: vec![own], workspace: None };
    let whole = program.add_version(local);
    (whole, vec![cast, gather(own, whole)])
}

/// The buckets that were gathered. Ranks with other numbers of samples must gather the same: layers are counted as they
/// follow each other, whatever else is between them and however often a slice of the loss turns from forward to backward.
#[derive(Default)]
pub(super) struct Gathered {
    layer: Option<ScopeId>,
    /// Of the layer, counted from the first; a layer that follows another is counted again.
    number: usize,
    /// By whole bucket: its copy, and the number of the layer that used it last.
    copies: HashMap<ValueId, (ValueId, usize)>,
}

impl Gathered {
    /// The next instruction that reads gathered parameters is of this layer.
    pub(super) fn enter(&mut self, layer: ScopeId) {
        if self.layer != Some(layer) {
            (self.layer, self.number) = (Some(layer), self.number + 1);
        }
    }

    /// The copy of a bucket if at most `kept` layers followed the one that used it last. A layer that is gathered so far ahead
    /// would be gathered before its earlier copy is freed.
    pub(super) fn copy_of(&mut self, whole: ValueId, kept: usize) -> Option<ValueId> {
        let (copy, last) = self.copies.get_mut(&whole)?;
        let is_kept = self.number - *last <= kept;
        *last = self.number;
        is_kept.then_some(*copy)
    }

    pub(super) fn add(&mut self, whole: ValueId, copy: ValueId) {
        self.copies.insert(whole, (copy, self.number));
    }
}
