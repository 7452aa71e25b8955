//! The time of a repeat: estimated from rates for limits, and by fixed rates for equal shares.

use device::DeviceKind;
use memory::StepWork;
use plan::{Plan, PlannedRun, is_on_host};
use spec::RunConfig;

/// Assumed seconds of a repeat outside its steps: start of the process, data, and on a card the context, kernels and matmul
/// algorithms.
fn start_seconds(kind: DeviceKind) -> f64 {
    match kind {
        DeviceKind::Cpu => 2.0,
        DeviceKind::Cuda => 60.0,
    }
}

/// The seconds of a repeat with steps of this duration. An evaluation's sample takes a third of a training step's: there is
/// no backward pass.
pub(crate) fn run_seconds(config: &RunConfig, kind: DeviceKind, step_ms: f64) -> f64 {
    let evaluated = config.evaluation.as_ref().map_or(0.0, |evaluation| {
        let times = config.steps().div_ceil(evaluation.every.max(1));
        let size = evaluation.batch_size.unwrap_or(config.train.batch_size) as f64;
        (times * evaluation.batches) as f64 * size / config.train.batch_size.max(1) as f64 / 3.0
    });
    start_seconds(kind) + step_ms / 1e3 * (config.steps() as f64 + evaluated)
}

/// The weight of a repeat in shares: its seconds at fixed rates of a processor or a card. Measured rates would change while
/// tasks run, and the tasks of an array must agree on their shares.
pub(crate) fn nominal_seconds(plan: &Plan, run: &PlannedRun) -> f64 {
    let (Ok(config), Some(prediction)) = (&run.config, &run.prediction) else { return 0.0 };
    let StepWork { tasks, .. } = &prediction.work;
    let seconds = tasks.iter().map(|task| {
        let (flops, bytes) = match plan.target.kind {
            DeviceKind::Cuda if !is_on_host(task, &plan.target) => (5e13, 1e12),
            _ => (8e10, 2e10),
        };
        (task.flops as f64 / flops).max(task.bytes as f64 / bytes)
    });
    run_seconds(config, plan.target.kind, 1e3 * seconds.sum::<f64>())
}
