//! Data parallelism: gradients are summed over all ranks, bucket by bucket, each as soon as it is complete, under the rest
//! of the backward pass.

use super::Draft;
use crate::ir::{Action, Instruction, Program, SectionKind, When};
use device::{Collective, Phase};

/// If ranks divide the gradients, each gets its share of the sums of every micro-batch, and whole gradients live within
/// its backward pass. Precedes the duplication of sections for further micro-batches.
pub(super) fn scatter(draft: &mut Draft) {
    let program = &mut draft.program;
    if !draft.config.shards_gradients() || !program.trains() {
        return;
    }
    let share = program.share.expect("set by the shard layout");
    let mut exchanges = Vec::new();
    for index in program.trained() {
        let bucket = &program.buckets[index];
        let (scope, whole) = (bucket.scope, bucket.gradients.expect("added by differentiation"));
        let own = program.add_share(whole, share);
        program.buckets[index].gradients = Some(own);
        for section in &mut program.sections {
            section.live_out.iter_mut().filter(|id| **id == whole).for_each(|id| *id = own);
        }
        let scatter = Action::Exchange { collective: Collective::ReduceScatter, from: whole, to: own };
        exchanges.push(Instruction::new(scatter, scope, Phase::Backward));
    }
    for at in 0..program.sections.len() {
        if program.sections[at].kind.is_in_step() && program.sections[at].samples > 0 {
            insert(program, at, exchanges.clone());
        }
    }
}

/// Otherwise, each rank gets the sums of a whole step, or its share of them, in the last micro-batch.
pub(super) fn reduce(draft: &mut Draft) {
    let program = &mut draft.program;
    if draft.config.ranks() == 1 || draft.config.shards_gradients() || !program.trains() {
        return;
    }
    let last = [SectionKind::Tail, SectionKind::Micro, SectionKind::First];
    let at = last.iter().find_map(|kind| program.sections.iter().position(|section| section.kind == *kind));
    let mut exchanges = Vec::new();
    for bucket in program.trained() {
        let scope = program.buckets[bucket].scope;
        let from = program.buckets[bucket].gradients.expect("added by differentiation");
        // A rank that updates its share gets the sums of that share, in place.
        let (collective, numbers) = match program.share {
            None => (Collective::AllReduce, from),
            Some(share) => (Collective::ReduceScatter, program.share_of(from, share)),
        };
        let to = program.add_version(numbers);
        let reduce = Instruction::new(Action::Exchange { collective, from, to }, scope, Phase::Backward);
        exchanges.push(Instruction { when: When::Last, ..reduce });
    }
    insert(program, at.expect("added by `build`"), exchanges);
}

/// Puts each exchange after the last instruction of the section that writes its numbers.
fn insert(program: &mut Program, at: usize, exchanges: Vec<Instruction>) {
    let code = std::mem::take(&mut program.sections[at].code);
    let mut last_write = vec![None; program.values.len()];
    for (index, instruction) in code.iter().enumerate() {
        for &id in instruction.action.writes() {
            last_write[program.storage(id).index()] = Some(index);
        }
    }
    let mut after: Vec<Vec<Instruction>> = vec![Vec::new(); code.len()];
    for exchange in exchanges {
        let numbers = program.storage(exchange.action.reads()[0]);
        after[last_write[numbers.index()].expect("backward writes all gradients")].push(exchange);
    }
    let pairs = code.into_iter().zip(after);
    program.sections[at].code =
        pairs.flat_map(|(instruction, exchanges)| std::iter::once(instruction).chain(exchanges)).collect();
}
