//! Data parallelism: gradients are summed over all ranks, bucket by bucket, each as soon as it is complete, under the rest
//! of the last micro-batch's backward pass.

use super::Draft;
use crate::ir::{Action, Instruction, SectionKind, When};
use device::Phase;

pub(super) fn insert(draft: &mut Draft) {
    let program = &mut draft.program;
    if draft.config.ranks() == 1 || !program.trains() {
        return;
    }
    let last = [SectionKind::Tail, SectionKind::Micro, SectionKind::First];
    let at = last.iter().find_map(|kind| program.sections.iter().position(|section| section.kind == *kind));
    let at = at.expect("added by `build`");
    let code = std::mem::take(&mut program.sections[at].code);
    let mut last_write = vec![None; program.values.len()];
    for (index, instruction) in code.iter().enumerate() {
        for &id in instruction.action.writes() {
            last_write[program.storage(id).index()] = Some(index);
        }
    }
    let mut sums_after: Vec<Vec<Instruction>> = vec![Vec::new(); code.len()];
    for bucket in program.trained().collect::<Vec<_>>() {
        let scope = program.buckets[bucket].scope;
        let from = program.buckets[bucket].gradients.expect("added by differentiation");
        let last = last_write[program.storage(from).index()].expect("backward writes all gradients");
        let to = program.add_version(from);
        let sum = Instruction::new(Action::AllReduce { from, to }, scope, Phase::Backward);
        sums_after[last].push(Instruction { when: When::Last, ..sum });
    }
    program.sections[at].code = code
        .into_iter()
        .zip(sums_after)
        .flat_map(|(instruction, sums)| std::iter::once(instruction).chain(sums))
        .collect();
}
