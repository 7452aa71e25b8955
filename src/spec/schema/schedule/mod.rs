//! Learning rate schedules: one file for each. To add one, add its file and its line here.

mod constant;
mod cosine;
mod linear;
mod warmup_stable_decay;

pub use constant::Constant;
pub use cosine::Cosine;
pub use linear::Linear;
pub use warmup_stable_decay::WarmupStableDecay;

use super::rules::attach_span;
use crate::reader::declare::{ChoiceTable as _, choice};
use crate::reader::error::Problem;
use crate::reader::keys::join;
use crate::reader::tree::Table;

choice! {
    pub enum Schedule("train.schedule"): Curve {
        constant: Constant,
        linear: Linear,
        cosine: Cosine,
        warmup_stable_decay: WarmupStableDecay,
    }
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule::Constant(Constant::default())
    }
}

/// A learning rate schedule.
trait Curve {
    /// Its explicit length in steps; `None`: the length of the run.
    fn total(&self) -> Option<usize>;

    /// The keys and lengths of its phases in steps. The schedule must be longer than their sum.
    fn parts(&self) -> Vec<(&'static str, usize)>;

    /// The learning rate after `done` steps of a schedule of `total` steps, as a share of the base learning rate.
    fn share(&self, done: usize, total: usize) -> f64;
}

impl Schedule {
    /// The learning rate of step `step`, from 1, in a run of `run` steps, as a share of the base learning rate.
    pub fn share(&self, step: usize, run: usize) -> f64 {
        self.each().share(step.saturating_sub(1), self.each().total().unwrap_or(run))
    }

    /// Fails unless the schedule is longer than its phases, in a run of `run` steps.
    pub(super) fn check(&self, run: usize, tree: &Table) -> Result<(), Problem> {
        let (parts, total) = (self.each().parts(), self.each().total());
        let sum = parts.iter().fold(0, |sum, part| sum + part.1);
        if parts.is_empty() || sum < total.unwrap_or(run) {
            return Ok(());
        }
        let key = |name: &str| format!("{}.{}.{name}", Schedule::PATH, self.name());
        let mut keys: Vec<String> = parts.iter().map(|part| key(part.0)).collect();
        let lengths: Vec<String> = parts.iter().map(|(name, steps)| format!("{name} = {steps}")).collect();
        let length = match total {
            Some(total) => {
                keys.push(key("total"));
                format!("the {total} steps of the schedule")
            }
            None => {
                keys.extend(["measure.warmup_steps", "measure.steps"].map(str::to_owned));
                format!("the {run} steps of the run, untimed warm-up steps included")
            }
        };
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let verb = if parts.len() > 1 { "take up" } else { "takes up" };
        let message = format!("{} {verb} all of {length}", join(&lengths, "and"));
        let help = format!("set the length of the schedule in steps, as in `total = {}`", 10 * sum);
        Err(attach_span(message, &keys, tree, help))
    }
}

/// Progress after `done` steps on the way from step `begin` to step `total`: 0 before, 1 after.
fn progress(done: usize, begin: usize, total: usize) -> f64 {
    let (done, length) = (done.saturating_sub(begin), total.saturating_sub(begin));
    if length == 0 { 1.0 } else { (done as f64 / length as f64).min(1.0) }
}

/// Linear warm-up: `1 / warmup` in the first step, so that no step has a learning rate of 0; 1 from the last step of
/// the warm-up on.
fn warmed_up(done: usize, warmup: usize) -> f64 {
    if done < warmup { (done + 1) as f64 / warmup as f64 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(schedule: Schedule, run: usize, steps: usize) -> Vec<f64> {
        (1..=steps).map(|step| schedule.share(step, run)).collect()
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(near && found.len() == expected.len(), "{found:?}, not {expected:?}");
    }

    #[test]
    fn schedules_have_the_expected_shares() {
        assert_near(&shares(Schedule::default(), 3, 3), &[1.0; 3]);
        let constant = Schedule::Constant(Constant { warmup: 4 });
        assert_near(&shares(constant, 5, 6), &[0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        let linear = Schedule::Linear(Linear { warmup: 2, total: None, floor: 0.2 });
        assert_near(&shares(linear, 6, 8), &[0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]);
        let cosine = Schedule::Cosine(Cosine { warmup: 0, total: Some(4), floor: 0.0 });
        let root = 0.5f64.sqrt();
        assert_near(&shares(cosine, 99, 5), &[1.0, 0.5 + 0.5 * root, 0.5, 0.5 - 0.5 * root, 0.0]);
        let stable = WarmupStableDecay { warmup: 1, decay: 2, total: None, floor: 0.0 };
        assert_near(&shares(Schedule::WarmupStableDecay(stable), 5, 6), &[1.0, 1.0, 1.0, 1.0, 0.5, 0.0]);
    }
}
