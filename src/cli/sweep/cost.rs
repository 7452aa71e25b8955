//! The time of a repeat: estimated from rates for limits, and by fixed rates for equal parts.

use device::DeviceKind;
use memory::StepWork;
use plan::{Plan, PlannedRun, is_on_host};
use spec::RunConfig;

/// The seconds of a repeat's steps and evaluations. A sample takes a third of its training step in an evaluation: there is no
/// backward pass.
pub(crate) fn training_seconds(config: &RunConfig, step_ms: f64) -> f64 {
    let evaluated = config.evaluation.as_ref().map_or(0.0, |evaluation| {
        let times = config.steps().div_ceil(evaluation.every.max(1));
        let size = evaluation.batch_size.unwrap_or(config.train.batch_size) as f64;
        (times * evaluation.batches) as f64 * size / config.train.batch_size.max(1) as f64 / 3.0
    });
    step_ms / 1e3 * (config.steps() as f64 + evaluated)
}

/// The weight of a repeat in parts: its seconds at fixed rates of a processor or a card. Measured rates would change while
/// tasks run, and the tasks of an array must agree on their parts.
pub(super) fn nominal_seconds(plan: &Plan, run: &PlannedRun) -> f64 {
    let (Ok(config), Some(prediction)) = (&run.config, &run.prediction) else { return 0.0 };
    let StepWork { tasks, .. } = &prediction.work;
    let seconds = tasks.iter().map(|task| {
        let (flops, bytes) = match plan.target.kind {
            DeviceKind::Cuda if !is_on_host(task, &plan.target) => (5e13, 1e12),
            _ => (8e10, 2e10),
        };
        (task.flops as f64 / flops).max(task.bytes as f64 / bytes)
    });
    let start = match plan.target.kind {
        DeviceKind::Cpu => 1.0,
        DeviceKind::Cuda => 20.0,
    };
    start + training_seconds(config, 1e3 * seconds.sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{Evaluation, Measure};

    #[test]
    fn training_time_is_that_of_steps_and_evaluations() {
        let mut config = RunConfig {
            measure: Measure { warmup_steps: 10, steps: 90, ..Measure::default() },
            evaluation: None,
            ..testing::small()
        };
        assert_eq!(training_seconds(&config, 3e3), 300.0);
        config.evaluation = Some(Evaluation { every: 30, batches: 5, ..Evaluation::default() });
        // After steps 30, 60, 90 and 100.
        assert_eq!(training_seconds(&config, 3e3), 300.0 + 4.0 * 5.0);
        config.evaluation.as_mut().unwrap().batch_size = Some(2 * config.train.batch_size);
        assert_eq!(training_seconds(&config, 3e3), 300.0 + 2.0 * 4.0 * 5.0);
    }
}
