//! Selects the run to explain.

use crate::failure::Failure;
use crate::run_selector::{NumberedRun, listed, numbered, select};
use plan::Plan;

/// Finds the run that `--run` selects. Without it, there must be only one.
///
/// # Errors
/// No run matches, or several do.
pub(super) fn choose<'a>(plans: &'a [Plan], which: Option<&str>) -> Result<NumberedRun<'a>, Failure> {
    let all = numbered(plans);
    let Some(which) = which else {
        return match all.as_slice() {
            [only] => Ok(*only),
            [] => Err(Failure::input("there is no run to explain")),
            several => Err(Failure::input(format!(
                "there are {} runs; choose one with `--run`:\n{}",
                several.len(),
                listed(several)
            ))),
        };
    };
    let mut found = select(&all, which)?;
    // Strategies that resolve to the same run share its id. Without its data a run has none.
    found.dedup_by(|one, before| !one.run.id.is_empty() && one.run.id == before.run.id);
    match found.as_slice() {
        [one] => Ok(*one),
        several => Err(Failure::input(format!(
            "`{which}` matches {} runs; give one's number:\n{}",
            several.len(),
            listed(several)
        ))),
    }
}
