//! Losses weigh each sample of a batch once and add to one sum.

use std::collections::BTreeMap;

use super::{Invariant, Violation, at, broken};
use crate::ir::{Action, Program, Section};
use graph::ScopeId;

/// In each section of a step, each loss weighs the section's share of the batch's samples. Losses of one scope (all
/// slices) count together.
pub(super) fn shares(program: &Program) -> Result<(), Violation> {
    for section in program.step() {
        let mut sums: BTreeMap<ScopeId, f64> = BTreeMap::new();
        for instruction in &section.code {
            if let Action::Launch { op, inputs, .. } = &instruction.action
                && let Some(loss) = op.as_loss()
            {
                *sums.entry(instruction.scope).or_default() += loss.share(&program.types(inputs));
            }
        }
        let share = section.samples as f64 / program.batch_size as f64;
        if let Some((&scope, sum)) = sums.iter().find(|(_, sum)| (*sum - share).abs() > 1e-6 * share) {
            let (kind, path) = (section.kind.name(), &program.scope(scope).path);
            let detail =
                format!("the shares of {path} sum to {sum} in {kind}, which processes {share} of the batch");
            return broken(Invariant::SharesSumToOne, detail);
        }
    }
    Ok(())
}

/// All losses of a step add to the same storage.
pub(super) fn one_loss_sum(program: &Program) -> Result<(), Violation> {
    let sum = program.loss.map(|loss| program.storage(loss));
    for section in program.step() {
        for instruction in &section.code {
            if let Action::Launch { op, outputs, .. } = &instruction.action
                && op.as_loss().is_some()
                && Some(program.storage(program.original(outputs[0]))) != sum
            {
                let detail =
                    format!("{} does not add to the loss of the step", at(program, section, instruction));
                return broken(Invariant::SharesSumToOne, detail);
            }
        }
    }
    Ok(())
}

/// A step, and the evaluation of a batch, process all samples that the rank has of their batch.
pub(super) fn all_samples(program: &Program) -> Result<(), Violation> {
    let seen = |sections: &mut dyn Iterator<Item = &Section>| -> Option<usize> {
        sections.map(|section| section.repeat_count * section.samples).reduce(|all, more| all + more)
    };
    let parts = [
        (seen(&mut program.step()), program.samples),
        (seen(&mut program.evaluation()), program.evaluation_samples),
    ];
    for (seen, samples) in parts {
        if let Some(seen) = seen.filter(|seen| *seen != samples) {
            let detail = format!("{seen} samples of {samples} are processed");
            return broken(Invariant::SharesSumToOne, detail);
        }
    }
    Ok(())
}
