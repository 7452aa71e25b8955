//! In which order a run goes through its program: training follows it, and so does what predicts memory, since an
//! allocator that keeps freed memory may answer differently in another order.

use spec::RunConfig;

/// A run's optimizer steps and the evaluations between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSchedule {
    /// Optimizer steps, those that are not timed among them.
    pub steps: usize,
    pub evaluations: Option<Evaluations>,
}

/// How often a run is evaluated, and on how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluations {
    /// Optimizer steps from one to the next.
    pub every: usize,
    /// Batches of each.
    pub batches: usize,
}

/// Optimizer steps, and the evaluation after the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationCycle {
    pub steps: usize,
    /// Batches of the evaluation; none if there is no evaluation.
    pub evaluated: usize,
}

impl RunSchedule {
    pub fn of(config: &RunConfig) -> RunSchedule {
        let evaluations = config
            .evaluation
            .as_ref()
            .map(|evaluation| Evaluations { every: evaluation.every, batches: evaluation.batches });
        RunSchedule { steps: config.steps(), evaluations }
    }

    /// The whole run, as rounds and how often each comes in a row. The last steps are evaluated, too, however few they
    /// are.
    pub fn rounds(&self) -> impl Iterator<Item = (usize, EvaluationCycle)> + use<> {
        let once = Evaluations { every: self.steps, batches: 0 };
        let Evaluations { every, batches } = self.evaluations.unwrap_or(once);
        let every = every.max(1);
        let rounds = [(self.steps / every, every), (1, self.steps % every)];
        let rounds = rounds.into_iter().filter(|(times, steps)| times * steps > 0);
        rounds.map(move |(times, steps)| (times, EvaluationCycle { steps, evaluated: batches }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After which steps a run is evaluated.
    fn evaluated(steps: usize, every: Option<usize>) -> Vec<usize> {
        let evaluations = every.map(|every| Evaluations { every, batches: 6 });
        let mut step = 0;
        let mut after = Vec::new();
        for (times, round) in (RunSchedule { steps, evaluations }).rounds() {
            for _ in 0..times {
                step += round.steps;
                assert_eq!(round.evaluated, if every.is_some() { 6 } else { 0 });
                after.extend(every.map(|_| step));
            }
        }
        assert_eq!(step, steps, "every step is taken");
        after
    }

    #[test]
    fn evaluations_come_after_every_so_many_steps_and_after_the_last() {
        assert_eq!(evaluated(7, Some(3)), [3, 6, 7]);
        assert_eq!(evaluated(6, Some(3)), [3, 6]);
        assert_eq!(evaluated(2, Some(3)), [2]);
        assert_eq!(evaluated(3, Some(1)), [1, 2, 3]);
        assert!(evaluated(5, None).is_empty());
        assert!(evaluated(0, Some(2)).is_empty());
    }
}
