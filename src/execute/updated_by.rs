//! Which rules updated how many parameters.

use base::units::Count;
use ops::OptimizerStep;

/// Rules that a run has at the most: its optimizer's own, and that of what this does not update.
const MOST: usize = 2;

/// Numbers in the parameters that each rule updated, by its name, in the order of their first updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdatedBy([(&'static str, u64); MOST]);

impl UpdatedBy {
    pub(super) fn count(&mut self, update: &OptimizerStep, numbers: u64) {
        let name = update.rule.name();
        let mut places = self.0.iter_mut();
        let place = places.find(|(own, _)| own.is_empty() || *own == name);
        let (own, count) = place.expect("a run has two rules at the most");
        (*own, *count) = (name, *count + numbers);
    }

    /// `updated by muon (4.7M) and adamw (123k)`, or `updated by lion`: what was updated after `before`, in each of so many steps.
    /// Nothing of one rule alone that is all that is to be expected.
    pub(super) fn told(&self, before: &UpdatedBy, steps: u64, expects_one: bool) -> Option<String> {
        let own = self.0.iter().filter(|(name, _)| !name.is_empty()).map(|&(name, count)| {
            let earlier = before.0.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count);
            (name, (count - earlier) / steps)
        });
        match own.collect::<Vec<_>>().as_slice() {
            [] => None,
            [_] if expects_one => None,
            [(name, _)] => Some(format!("updated by {name}")),
            all => {
                let told: Vec<String> =
                    all.iter().map(|(name, numbers)| format!("{name} ({})", Count(*numbers))).collect();
                Some(format!("updated by {}", told.join(" and ")))
            }
        }
    }
}
