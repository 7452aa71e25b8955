//! The predicted peak by role, which tables do not hold: predicted again from a run's configuration and target.

use std::path::Path;

use device::ByRole;
use memory::{RunSchedule, predict};
use plan::{Point, compile, expand};
use spec::read_target;

/// Live bytes of the device at the predicted peak; of a run that runs out of memory, as if it had no limit. `None` if
/// a file is missing or of another version, or if the result is not the peak that was predicted before the run.
pub(crate) fn live_at_peak(run: &Path, target: &Path, peak: Option<u64>) -> Option<ByRole> {
    let [Point { config, .. }] = <[Point; 1]>::try_from(expand(run, &[], &|_| None).ok()?.points).ok()?;
    let (config, target) = (config.ok()?, read_target(target).ok()?.target);
    let program = compile(&config, &target).ok()?;
    let live = predict(&program, &target, RunSchedule::of(&config)).device.steady_peak().live;
    Some(live).filter(|live| Some(live.total()) == peak)
}
