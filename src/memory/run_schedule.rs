//! The order in which a run executes its program. Training and prediction follow the same order, since the state of a
//! caching allocator depends on it.

use spec::RunConfig;

/// A run's optimizer steps and the evaluations between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSchedule {
    /// Optimizer steps, including untimed ones.
    pub steps: usize,
    pub evaluations: Option<Evaluations>,
}

/// The evaluation interval and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluations {
    /// Optimizer steps between evaluations.
    pub every: usize,
    /// Batches per evaluation.
    pub batches: usize,
}

/// Optimizer steps, followed by an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationCycle {
    pub steps: usize,
    /// Batches of the evaluation; 0 without evaluation.
    pub evaluation_batches: usize,
}

impl RunSchedule {
    pub fn of(config: &RunConfig) -> RunSchedule {
        let evaluations = config
            .evaluation
            .as_ref()
            .map(|evaluation| Evaluations { every: evaluation.every, batches: evaluation.batches });
        RunSchedule { steps: config.steps(), evaluations }
    }

    /// Batches of an evaluation; 0 without evaluations.
    pub(crate) fn evaluation_batches(&self) -> usize {
        self.evaluations.map_or(0, |evaluations| evaluations.batches)
    }

    /// The whole run as cycles, with the number of successive repetitions. The last steps are always evaluated,
    /// however few.
    pub fn cycles(&self) -> impl Iterator<Item = (usize, EvaluationCycle)> + use<> {
        let whole_run = Evaluations { every: self.steps, batches: 0 };
        let Evaluations { every, batches } = self.evaluations.unwrap_or(whole_run);
        let every = every.max(1);
        let cycles = [(self.steps / every, every), (1, self.steps % every)];
        let cycles = cycles.into_iter().filter(|(times, steps)| times * steps > 0);
        cycles.map(move |(times, steps)| (times, EvaluationCycle { steps, evaluation_batches: batches }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps after which a run is evaluated.
    fn evaluated(steps: usize, every: Option<usize>) -> Vec<usize> {
        let evaluations = every.map(|every| Evaluations { every, batches: 6 });
        let mut step = 0;
        let mut after = Vec::new();
        for (times, cycle) in (RunSchedule { steps, evaluations }).cycles() {
            for _ in 0..times {
                step += cycle.steps;
                assert_eq!(cycle.evaluation_batches, if every.is_some() { 6 } else { 0 });
                after.extend(every.map(|_| step));
            }
        }
        assert_eq!(step, steps, "the cycles cover every step");
        after
    }

    #[test]
    fn evaluations_follow_every_interval_and_the_last_step() {
        assert_eq!(evaluated(7, Some(3)), [3, 6, 7]);
        assert_eq!(evaluated(6, Some(3)), [3, 6]);
        assert_eq!(evaluated(2, Some(3)), [2]);
        assert_eq!(evaluated(3, Some(1)), [1, 2, 3]);
        assert!(evaluated(5, None).is_empty());
        assert!(evaluated(0, Some(2)).is_empty());
    }
}
