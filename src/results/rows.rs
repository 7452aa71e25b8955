//! Rows from plans and measurements.

use super::row::{Row, Status};
use crate::device::{DeviceKind, Phase, Usage};
use crate::execute::{Ended, Measurement, Roles};
use crate::memory::Prediction;
use crate::plan::{Plan, PlannedRun};
use crate::spec::RunConfig;
use crate::statistics;
use crate::units::Bytes;

/// Everything known of a run before it starts. Its status is what is predicted.
pub fn planned_row(plan: &Plan, run: &PlannedRun, repeat: usize) -> Row {
    let mut row = empty_row(plan, run, repeat);
    match &run.config {
        Ok(config) => describe(&mut row, config),
        Err(reason) => {
            row.status = Status::Skipped;
            row.message = reason.clone();
        }
    }
    if let Some(prediction) = &run.prediction {
        predict(&mut row, prediction);
    }
    row
}

/// The row of a run that was executed.
pub fn measured_row(mut row: Row, measurement: &Measurement) -> Row {
    row.status = match measurement.ended {
        Ended::Complete => Status::Ok,
        Ended::OutOfMemory => Status::Oom,
        Ended::Diverged => Status::Diverged,
    };
    memory(&mut row, measurement);
    speed(&mut row, measurement);
    row.loss_first = measurement.loss_first;
    row.loss_last = measurement.loss_last;
    row.loss_eval = measurement.loss_eval;
    row.recompute_flops = measurement.recompute_flops;
    row.hardware_flops = measurement.hardware_flops;
    row.micro_batches = measurement.micro_batches;
    row.emulated = measurement.emulated;
    row.profiled_step_ms = measurement.profiled_step_ms;
    row.skipped_steps = measurement.skipped_steps;
    row.loss_scale = measurement.loss_scale;
    row.receipt = measurement.receipt.clone();
    row.products_timed = measurement.products.map(|products| products.timed);
    row.products_cached = measurement.products.map(|products| products.cached);
    row.products_stored = measurement.products.map(|products| products.stored);
    row.products_untimed = measurement.products.map(|products| products.untimed);
    row.load = measurement.load;
    row.clock_mhz = measurement.clock_mhz;
    row.digest = measurement.digest.clone();
    row.startup_ms = measurement.startup_ms;
    row.product_flops_per_s = measurement.product_flops_per_s;
    row.copy_bytes_per_s = measurement.copy_bytes_per_s;
    row.message = message(measurement);
    row
}

fn empty_row(plan: &Plan, run: &PlannedRun, repeat: usize) -> Row {
    Row {
        experiment: plan.experiment.clone(),
        run_id: run.id.clone(),
        strategy: run.strategy.clone(),
        repeat,
        status: Status::Ok,
        device: plan.target.name.clone(),
        fits_micro_batch: run.fits_micro_batch,
        no_effect: run.no_effect.join(" "),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        limit_bytes: Some(plan.target.memory.0),
        limited: plan.target.limited,
        context_bytes: (plan.target.kind == DeviceKind::Cuda).then_some(plan.target.context.0),
        threads: Some(plan.target.threads),
        axes: run.axes.clone(),
        configuration: run.configuration.clone(),
        ..Row::default()
    }
}

fn describe(row: &mut Row, config: &RunConfig) {
    row.model = config.model.description();
    row.batch_size = Some(config.train.batch_size);
    row.micro_batch = Some(config.micro_batch());
    row.warmup_steps = Some(config.measure.warmup_steps);
    row.steps = Some(config.measure.steps);
    row.precision = config.strategy.precision.name().to_owned();
}

fn predict(row: &mut Row, prediction: &Prediction) {
    row.parameters = Some(prediction.parameters);
    row.model_flops = Some(prediction.model_flops);
    row.predicted_peak_bytes = Some(prediction.device.steady_peak().live.total());
    row.predicted_reserved_peak_bytes = Some(prediction.device.reserved_peak);
    if let Some(found) = &prediction.out_of_memory {
        row.status = Status::Oom;
        row.oom_phase = Some(found.phase.name().to_owned());
        row.oom_operation = Some(found.operation.clone());
        row.oom_value = Some(found.value.clone());
        row.oom_requested_bytes = Some(found.requested);
        row.oom_short_bytes = Some(found.short);
    }
}

/// A row whose memory columns are the predicted ones: what `plan` shows.
pub fn predicted_row(plan: &Plan, run: &PlannedRun) -> Row {
    let mut row = planned_row(plan, run, 0);
    if let Some(prediction) = &run.prediction {
        let peak = prediction.device.steady_peak().live;
        let roles = Roles::of(&peak);
        role_columns(&mut row, &roles);
        row.start_peak_bytes = phase_peak(&prediction.device, Phase::Start);
        row.evaluation_peak_bytes = phase_peak(&prediction.device, Phase::Evaluation);
        row.host_reserved_peak_bytes = Some(prediction.host.reserved_peak);
        row.hardware_flops = Some(prediction.hardware_flops);
    }
    row
}

fn phase_peak(usage: &Usage, phase: Phase) -> Option<u64> {
    Some(usage.phase_peak(phase).live.total()).filter(|bytes| *bytes > 0)
}

fn role_columns(row: &mut Row, roles: &Roles) {
    row.parameter_bytes = Some(roles.parameter);
    row.master_weight_bytes = Some(roles.master_weight);
    row.gradient_bytes = Some(roles.gradient);
    row.optimizer_bytes = Some(roles.optimizer);
    row.activation_bytes = Some(roles.activation);
    row.input_bytes = Some(roles.input);
    row.workspace_bytes = Some(roles.workspace);
    row.communication_bytes = Some(roles.communication);
}

fn memory(row: &mut Row, measurement: &Measurement) {
    row.peak_bytes = measurement.peak_bytes;
    if measurement.peak_bytes.is_some() {
        role_columns(row, &measurement.roles);
    }
    row.reserved_peak_bytes = measurement.reserved_peak_bytes;
    row.witness_peak_bytes = measurement.witness_peak_bytes;
    row.witness_step_bytes = measurement.witness_step_bytes;
    row.start_peak_bytes = measurement.start_peak_bytes;
    row.forward_peak_bytes = measurement.forward_peak_bytes;
    row.backward_peak_bytes = measurement.backward_peak_bytes;
    row.update_peak_bytes = measurement.update_peak_bytes;
    row.evaluation_peak_bytes = measurement.evaluation_peak_bytes;
    row.host_peak_bytes = measurement.host_peak_bytes;
    row.host_reserved_peak_bytes = measurement.host_reserved_peak_bytes;
    let found = measurement.out_of_memory.as_ref();
    row.oom_phase = found.map(|found| found.phase.clone());
    row.oom_operation = found.map(|found| found.operation.clone());
    row.oom_value = found.map(|found| found.value.clone());
    row.oom_requested_bytes = found.map(|found| found.requested);
    row.oom_short_bytes = found.map(|found| found.short);
}

fn speed(row: &mut Row, measurement: &Measurement) {
    let steps = &measurement.step_ms;
    row.step_ms_median = statistics::median(steps);
    row.step_ms_p90 = statistics::quantile(steps, 0.9);
    row.step_ms_min = statistics::quantile(steps, 0.0);
    row.step_ms_ci95 = statistics::median_interval(steps).map(statistics::Interval::half_width);
    row.data_wait_ms = statistics::median(&measurement.data_wait_ms);
    let per_second = |count: usize| row.step_ms_median.map(|ms| count as f64 / ms * 1e3);
    row.samples_per_s = row.batch_size.and_then(per_second);
    row.tokens_per_s = measurement.tokens_per_step.and_then(per_second);
}

fn message(measurement: &Measurement) -> String {
    match (&measurement.out_of_memory, measurement.ended) {
        (Some(found), _) if found.short == 0 => format!(
            "{}: the system refused {} for {} of {}, below the limit",
            found.phase,
            Bytes(found.requested),
            found.value,
            found.operation
        ),
        (Some(found), _) => format!(
            "{}: {} asked for {} for {}, {} short",
            found.phase,
            found.operation,
            Bytes(found.requested),
            found.value,
            Bytes(found.short)
        ),
        (None, Ended::Diverged) => "the loss stopped being finite".to_owned(),
        (None, _) => String::new(),
    }
}
