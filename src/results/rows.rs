//! Rows from plans and measurements.

use super::row::{Row, Status};
use super::settings;
use device::{DeviceKind, Phase, Target, Usage};
use execute::{Ended, Outcome};
use memory::{EmbeddingDtypes, Prediction};
use plan::{DeviceRates, Plan, PlannedRun, TorchForecast};
use pytorch::Fit;
use spec::{KeywordEnum as _, RunConfig, StorageDtype};

/// The row of a run before it starts, with its predicted status.
pub fn planned_row(plan: &Plan, run: &PlannedRun, repeat: usize) -> Row {
    let mut row = empty_row(plan, run, repeat);
    match &run.config {
        Ok(config) => describe(&mut row, &config.of_repeat(repeat)),
        Err(reason) => {
            row.status = Status::Skipped;
            row.message = reason.clone();
        }
    }
    if let Some(prediction) = &run.prediction {
        predict(&mut row, prediction, &target_of(plan, run));
    }
    if let Some(torch) = &run.torch {
        predict_torch(&mut row, torch, plan.keys.torch_program(run.config.as_ref().ok()));
    }
    row
}

/// The row of an executed run: measurements replace predictions.
pub fn measured_row(planned: Row, outcome: Outcome) -> Row {
    let Outcome { ended, message, measured } = outcome;
    let status = match ended {
        Ended::Complete => Status::Ok,
        Ended::OutOfMemory => Status::Oom,
        Ended::Diverged => Status::Diverged,
    };
    Row { status, message, measured, ..planned }
}

pub(super) fn empty_row(plan: &Plan, run: &PlannedRun, repeat: usize) -> Row {
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
        limit_bytes: Some(target_of(plan, run).memory.0),
        limited: plan.target.limited,
        host_limit_bytes: plan.target.host_memory.map(|memory| memory.0),
        context_bytes: (plan.target.kind == DeviceKind::Cuda).then_some(target_of(plan, run).context.0),
        threads: Some(plan.target.threads),
        axes: run.axes.clone(),
        configuration: run.configuration.clone(),
        settings: run.config.as_ref().map(settings::one_line).unwrap_or_default(),
        baseline: plan.baseline.clone(),
        looks: (plan.repeats.looks().len() > 1).then(|| plan.repeats.looks().len()),
        ..Row::default()
    }
}

/// The device of the run, or of its first rank.
pub(super) fn target_of(plan: &Plan, run: &PlannedRun) -> Target {
    plan.target.of_rank(run.config.as_ref().map_or(1, RunConfig::ranks))
}

pub(super) fn describe(row: &mut Row, config: &RunConfig) {
    row.model = config.model.description();
    row.batch_size = Some(config.train.batch_size);
    row.micro_batch = Some(config.of_rank(0).micro_batch());
    row.warmup_steps = Some(config.measure.warmup_steps);
    row.steps = Some(config.measure.steps);
    row.seed = Some(config.train.seed);
    row.precision = config.strategy.precision.name().to_owned();
}

fn predict(row: &mut Row, prediction: &Prediction, target: &Target) {
    row.parameters = Some(prediction.parameters);
    row.trainable_parameters = Some(prediction.trainable_parameters);
    row.steps_until_oom = prediction.steps_until_oom;
    row.model_flops = Some(prediction.model_flops);
    row.predicted_peak_bytes = Some(prediction.device.steady_peak().live.total());
    row.predicted_first_step_peak_bytes = Some(prediction.first_step_peak);
    row.predicted_reserved_peak_bytes = Some(prediction.device.reserved_peak);
    if let Some(EmbeddingDtypes { tables, stream }) = prediction.embedding_dtypes {
        let [stream, tables] = [stream, tables].map(StorageDtype::of);
        row.stream_dtype = stream.map(StorageDtype::keyword).unwrap_or_default().to_owned();
        row.table_dtype = tables.map(StorageDtype::keyword).unwrap_or_default().to_owned();
    }
    if let Some(found) = &prediction.out_of_memory {
        row.status = Status::Oom;
        row.measured.record_out_of_memory(found, prediction.short(target));
    }
}

/// `program`: whose memory is predicted.
pub(super) fn predict_torch(row: &mut Row, torch: &Result<TorchForecast, String>, program: String) {
    row.torch_program = program;
    row.torch_fits = match torch {
        Err(reason) => format!("not predicted: {reason}"),
        Ok(torch) => {
            let peak = torch.memory.peak();
            row.torch_peak_bytes = Some(peak.allocated);
            row.torch_reserved_peak_bytes = Some(peak.reserved);
            row.torch_fits_micro_batch = torch.largest_micro_batch;
            match torch.memory.fit {
                Fit::Fits => "yes".to_owned(),
                Fit::OnlyByRetrying => "retry".to_owned(),
                Fit::Refused(_) => "no".to_owned(),
            }
        }
    };
}

/// The row that `plan` shows: predicted memory, and an estimated step time if device rates are known.
pub fn predicted_row(plan: &Plan, run: &PlannedRun, speeds: &DeviceRates) -> Row {
    let mut row = planned_row(plan, run, 0);
    if let Some(prediction) = &run.prediction {
        let measured = &mut row.measured;
        measured.live = prediction.device.steady_peak().live.map(Some);
        measured.reserved_peak_bytes = Some(prediction.device.reserved_peak);
        measured.start_peak_bytes = Some(prediction.device.phase_peak(Phase::Start).live.total());
        measured.evaluation_peak_bytes = phase_peak(&prediction.device, Phase::Evaluation);
        measured.host_reserved_peak_bytes = Some(prediction.host.reserved_peak);
        measured.leaked_bytes = Some(prediction.leaked_bytes);
        measured.hardware_flops = Some(prediction.hardware_flops);
        measured.recompute_flops = Some(prediction.recompute_flops);
        measured.to_host_bytes = Some(prediction.work.to_host_bytes);
        measured.to_device_bytes = Some(prediction.work.to_device_bytes);
    }
    let mut effects: Vec<String> = fewer_micro_batches(run).into_iter().collect();
    let ranks = run.config.as_ref().map_or(1, RunConfig::ranks);
    if let Some(prediction) = run.prediction.as_ref().filter(|_| ranks > 1) {
        let sent = prediction.work.sent_bytes();
        (row.measured.ranks, row.measured.sent_bytes) = (Some(ranks), Some(sent));
        row.measured.rank_peak_bytes = Some(prediction.device.steady_peak().live.total());
        effects.push(execute::exchanged_by_ranks(ranks, sent));
    }
    if let Some(prediction) = &run.prediction {
        let (recomputed, all) = (prediction.recompute_flops, prediction.hardware_flops);
        effects.extend((recomputed > 0).then(|| execute::more_flops(recomputed, all - recomputed)));
    }
    // Narrow tables cut the end of longer texts.
    effects.extend(untrained_effect(run));
    if let (Ok(config), Some(prediction)) = (&run.config, &run.prediction) {
        row.estimated_exchange_ms =
            speeds.exchange_ms(&prediction.work, config, &plan.target).ok().filter(|_| ranks > 1);
        row.estimated_step_ms = speeds.step_ms(&prediction.work, config, &plan.target).ok();
        row.estimated_fits_tokens_per_s = fits_tokens_per_s(plan, run, config, speeds);
    }
    if let Some(prediction) = &run.prediction {
        let leaked = prediction.leaked_bytes;
        let leak = run.config.as_ref().ok().and_then(|config| config.strategy.leak);
        effects.extend((leaked > 0).then(|| execute::leaked_each_step(leaked, leak)));
        effects.extend(execute::collected_each_evaluation(prediction.collected_bytes));
    }
    row.measured.effects = effects.join(", ");
    row
}

/// The number of micro-batches, if the batch is too small for `accumulate` of them.
pub(super) fn fewer_micro_batches(run: &PlannedRun) -> Option<String> {
    let config = run.config.as_ref().ok()?;
    let (count, requested) = (config.of_rank(0).micro_batches(), config.strategy.accumulate);
    (count < requested).then(|| execute::micro_batches_of(count, requested))
}

/// The number of parameters that are not trained, if there are any.
pub(super) fn untrained_effect(run: &PlannedRun) -> Option<String> {
    let prediction = run.prediction.as_ref()?;
    let untrained = prediction.parameters - prediction.trainable_parameters;
    (untrained > 0).then(|| execute::untrained_parameters(untrained, prediction.parameters))
}

/// The estimated tokens per second at the largest micro-batch that fits, with the configured number of micro-batches.
fn fits_tokens_per_s(plan: &Plan, run: &PlannedRun, config: &RunConfig, speeds: &DeviceRates) -> Option<f64> {
    let ms = speeds.step_ms(run.fits_work.as_ref()?, config, &plan.target).ok()?;
    let samples = run.fits_micro_batch? * config.strategy.accumulate * config.ranks();
    let tokens = samples * config.sample().positions()?;
    Some(1e3 * tokens as f64 / ms)
}

fn phase_peak(usage: &Usage, phase: Phase) -> Option<u64> {
    Some(usage.phase_peak(phase).live.total()).filter(|bytes| *bytes > 0)
}
