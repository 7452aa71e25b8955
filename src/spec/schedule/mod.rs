//! How the learning rate goes over a run: a file for each schedule. A new one is its file, and its line here.

mod constant;
mod cosine;
mod linear;
mod warmup_stable_decay;

pub use constant::Constant;
pub use cosine::Cosine;
pub use linear::Linear;
pub use warmup_stable_decay::WarmupStableDecay;

use super::declare::{Choice as _, choice};
use super::error::Problem;
use super::reader::join;
use super::rules::blame;
use super::tree::Table;

choice! {
    pub enum Schedule("train.schedule"): Curve {
        constant: Constant,
        linear: Linear,
        cosine: Cosine,
        warmup_stable_decay: WarmupStableDecay,
    }
    later
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule::Constant(Constant::default())
    }
}

/// What each schedule says of itself.
trait Curve {
    /// How many steps it is long, where that is said and not left to the run.
    fn total(&self) -> Option<usize>;

    /// Steps that it has parts for, with their keys: it must be longer than all of them.
    fn parts(&self) -> Vec<(&'static str, usize)>;

    /// What share of the learning rate a step takes after as many as `done`, where the schedule is `total` steps long.
    fn share(&self, done: usize, total: usize) -> f64;
}

impl Schedule {
    /// What share of the learning rate step `step`, from 1, takes in a run of `run` steps.
    pub fn share(&self, step: usize, run: usize) -> f64 {
        self.each().share(step.saturating_sub(1), self.each().total().unwrap_or(run))
    }

    /// Whether its parts are shorter than it is, in a run of `run` steps.
    pub(super) fn check(&self, run: usize, tree: &Table) -> Result<(), Problem> {
        let (parts, total) = (self.each().parts(), self.each().total());
        let sum = parts.iter().fold(0, |sum, part| sum + part.1);
        if parts.is_empty() || sum < total.unwrap_or(run) {
            return Ok(());
        }
        let key = |name: &str| format!("{}.{}.{name}", Schedule::PATH, self.name());
        let mut keys: Vec<String> = parts.iter().map(|part| key(part.0)).collect();
        let said: Vec<String> = parts.iter().map(|(name, steps)| format!("{name} = {steps}")).collect();
        let whole = match total {
            Some(total) => {
                keys.push(key("total"));
                format!("the {total} steps of the schedule")
            }
            None => {
                keys.extend(["measure.warmup_steps", "measure.steps"].map(str::to_owned));
                format!("the {run} steps of the run, warm-up before measuring included")
            }
        };
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let verb = if parts.len() > 1 { "leave" } else { "leaves" };
        let message = format!("{} {verb} nothing of {whole}", join(&said, "and"));
        let help =
            format!("`total = {}` says how long it is meant to be, however much of it is measured", 10 * sum);
        Err(blame(message, &keys, tree, help))
    }
}

/// The share of the way from the first step after `begin` to the end, after as many steps as `done`: 0 before, 1 behind.
fn progress(done: usize, begin: usize, total: usize) -> f64 {
    let (done, length) = (done.saturating_sub(begin), total.saturating_sub(begin));
    if length == 0 { 1.0 } else { (done as f64 / length as f64).min(1.0) }
}

/// A line from nothing to the whole learning rate, which the last step of a warm-up takes; 1 behind it. The first step is not
/// lost on a rate of nothing.
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
    fn schedules_go_where_they_say() {
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
