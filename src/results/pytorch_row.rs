//! Rows of plans that show PyTorch's memory.

use super::row::{Row, Status};
use super::rows::{describe, empty_row, fewer_micro_batches, predict_torch, target_of, untrained_effect};
use device::{ByRole, Pool, Role, Target};
use plan::{Plan, PlannedRun, TorchForecast};
use pytorch::{Fit, Phase, Purpose};
use spec::RunConfig;

/// The row that `plan --as pytorch` shows: PyTorch's memory in the place of this program's. Figures of this program that
/// PyTorch has no counterpart of are missing, and all are missing if the run is not predicted.
pub fn pytorch_row(plan: &Plan, run: &PlannedRun) -> Row {
    let mut row = Row { fits_micro_batch: None, no_effect: String::new(), ..empty_row(plan, run, 0) };
    let skip = |row: &mut Row, reason: &String| {
        row.status = Status::Skipped;
        row.message = reason.clone();
    };
    match &run.config {
        Ok(config) => describe(&mut row, config),
        Err(reason) => skip(&mut row, reason),
    }
    if let Some(prediction) = &run.prediction {
        row.parameters = Some(prediction.parameters);
        row.trainable_parameters = Some(prediction.trainable_parameters);
        row.model_flops = Some(prediction.model_flops);
        // Only whether the run leaks is used.
        row.measured.leaked_bytes = Some(prediction.leaked_bytes);
    }
    match &run.torch {
        None => {}
        Some(Err(reason)) => skip(&mut row, reason),
        Some(Ok(torch)) => {
            predict(&mut row, torch, &target_of(plan, run));
            row.measured.ranks = run.config.as_ref().map(RunConfig::ranks).ok().filter(|ranks| *ranks > 1);
        }
    }
    if let Some(torch) = &run.torch {
        predict_torch(&mut row, torch, plan.keys.torch_program(run.config.as_ref().ok()));
    }
    let effects = fewer_micro_batches(run).into_iter().chain(untrained_effect(run));
    row.measured.effects = effects.collect::<Vec<_>>().join(", ");
    row
}

fn predict(row: &mut Row, torch: &TorchForecast, target: &Target) {
    let memory = &torch.memory;
    let peak = memory.peak();
    row.predicted_peak_bytes = Some(peak.allocated);
    row.predicted_reserved_peak_bytes = Some(peak.reserved);
    row.predicted_first_step_peak_bytes = Some(memory.first_step.allocated);
    row.fits_micro_batch = torch.largest_micro_batch;
    row.no_effect = torch.no_effect.join(" ");
    row.torch_limit_bytes = torch.smallest_memory.map(|memory| memory + target.context.0);
    let phase_peak = |phase| memory.phase_peak(phase).map(|usage| usage.allocated);
    let measured = &mut row.measured;
    measured.reserved_peak_bytes = Some(peak.reserved);
    measured.start_peak_bytes = phase_peak(Phase::Start);
    measured.evaluation_peak_bytes = phase_peak(Phase::Evaluation);
    let mut live = ByRole::default();
    memory.at_peak.iter().for_each(|(purpose, bytes)| live[role(*purpose)] += bytes);
    live[Role::Rounding] = peak.allocated.saturating_sub(live.total());
    measured.live = live.map(Some);
    if let Fit::Refused(refusal) = memory.fit {
        row.status = Status::Oom;
        measured.oom_pool = Some(Pool::Device.name().to_owned());
        measured.oom_step = Some(refusal.step as u64).filter(|step| *step > 0);
        measured.oom_phase = Some(refusal.phase.name().to_owned());
        measured.oom_value = Some(refusal.purpose.name().to_owned());
        let available = target.available_at(Pool::Device);
        let short = torch.smallest_memory.map(|memory| memory.saturating_sub(available));
        measured.oom_short_bytes = Some(short.unwrap_or(refusal.short));
    }
}

/// The role under which a purpose is shown.
fn role(purpose: Purpose) -> Role {
    match purpose {
        Purpose::Parameter => Role::Parameter,
        Purpose::MasterWeight => Role::MasterWeight,
        Purpose::Gradient => Role::Gradient,
        Purpose::OptimizerState => Role::Optimizer,
        Purpose::Cast => Role::Cast,
        Purpose::Loss | Purpose::Activation => Role::Activation,
        Purpose::Workspace => Role::Workspace,
        Purpose::Communication => Role::Communication,
    }
}
