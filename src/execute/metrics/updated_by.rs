//! Counts parameter elements by update rule.

use base::units::Count;
use ops::OptimizerStep;

/// The most rules of a run: its optimizer's, and the one for parameters that this optimizer does not update.
const MAX_RULES: usize = 2;

/// Elements of the parameters that each rule updated, by its name, in the order of first updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpdatedBy([(&'static str, u64); MAX_RULES]);

impl UpdatedBy {
    pub(super) fn count(&mut self, update: &OptimizerStep, numbers: u64) {
        let name = update.rule.name();
        let mut entries = self.0.iter_mut();
        let entry = entries.find(|(own, _)| own.is_empty() || *own == name);
        let (own, count) = entry.expect("a run has at most two update rules");
        (*own, *count) = (name, *count + numbers);
    }

    /// `updated by muon (4.7M) and adamw (123k)`, or `updated by lion`: the elements updated in each of `steps` steps
    /// since `before`. `None` for a single rule if `expects_one`.
    pub(super) fn summary(&self, before: &UpdatedBy, steps: u64, expects_one: bool) -> Option<String> {
        let own = self.0.iter().filter(|(name, _)| !name.is_empty()).map(|&(name, count)| {
            let earlier = before.0.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count);
            (name, (count - earlier) / steps)
        });
        match own.collect::<Vec<_>>().as_slice() {
            [] => None,
            [_] if expects_one => None,
            [(name, _)] => Some(format!("updated by {name}")),
            all => {
                let parts: Vec<String> =
                    all.iter().map(|(name, numbers)| format!("{name} ({})", Count(*numbers))).collect();
                Some(format!("updated by {}", parts.join(" and ")))
            }
        }
    }
}
