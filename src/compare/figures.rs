//! The comparison as CSV and JSON: exact bytes, unrounded ratios, one object per strategy and axis point.

use serde::{Deserialize, Serialize};

use super::Comparison;
use super::entry::TableEntry;
use super::group::TableGroup;
use base::statistics::Difference;
use results::{Status, csv};

#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    experiment: String,
    group: String,
    strategy: String,
    run_id: String,
    status: Status,
    /// Number of merged repeats with measurements.
    repeats: usize,
    device: String,
    model: String,
    batch_size: Option<usize>,
    baseline: bool,
    predicted_peak_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    reserved_peak_bytes: Option<u64>,
    external_peak_bytes: Option<u64>,
    start_peak_bytes: Option<u64>,
    /// Peak of live bytes over the baseline's.
    memory_ratio: Option<f64>,
    tokens_per_s: Option<f64>,
    samples_per_s: Option<f64>,
    /// Speed over the baseline's: the median of the rounds that measured both, and its 95 % confidence interval.
    speed_ratio: Option<f64>,
    speed_ratio_low: Option<f64>,
    speed_ratio_high: Option<f64>,
    /// Whether the speed is not measurably different from the baseline's; unknown with too few rounds.
    same_speed: Option<bool>,
    loss: Option<f64>,
    /// Difference to the baseline's loss, as a share of it.
    loss_change: Option<f64>,
    fits_micro_batch: Option<usize>,
    limit_bytes: Option<u64>,
    pareto: bool,
    noisy: bool,
    same_as: Option<String>,
    no_effect: String,
    oom_phase: Option<String>,
    oom_value: Option<String>,
    oom_short_bytes: Option<u64>,
    effects: String,
    message: String,
    version: String,
    /// `evaluation`, or `training` if there is no evaluation.
    loss_of: Option<String>,
    host_limit_bytes: Option<u64>,
    oom_pool: Option<String>,
    oom_other_short_bytes: Option<u64>,
    unchanged_parameters: Option<f64>,
    /// Warning about the assumed properties of the predicted machine.
    caution: Option<String>,
    /// From a roofline over the step's operations, if device rates are known.
    estimated_step_ms: Option<f64>,
    parameters: Option<u64>,
    hardware_flops: Option<u64>,
    recompute_flops: Option<u64>,
    to_host_bytes: Option<u64>,
    to_device_bytes: Option<u64>,
    predicted_reserved_peak_bytes: Option<u64>,
    /// Peak of reserved bytes over the baseline's.
    reserved_ratio: Option<f64>,
    predicted_first_step_peak_bytes: Option<u64>,
    oom_step: Option<u64>,
    /// PyTorch's memory: see the columns of results.
    torch_peak_bytes: Option<u64>,
    torch_reserved_peak_bytes: Option<u64>,
    torch_fits_micro_batch: Option<usize>,
    torch_fits: String,
    torch_limit_bytes: Option<u64>,
    /// The program whose memory the other columns hold, if not this one: `PyTorch 2.15`.
    memory_of: Option<String>,
    estimated_fits_tokens_per_s: Option<f64>,
    stream_dtype: String,
    table_dtype: String,
    torch_program: String,
    estimated_exchange_ms: Option<f64>,
    axes: Vec<(String, String)>,
}

#[derive(Serialize)]
struct Experiment<'a> {
    experiment: &'a str,
    baseline: &'a str,
    rows: Vec<Figures>,
    verdict: Vec<String>,
}

pub(super) fn json(comparisons: &[Comparison]) -> String {
    let experiments: Vec<Experiment<'_>> = comparisons
        .iter()
        .map(|comparison| Experiment {
            experiment: &comparison.experiment,
            baseline: &comparison.baseline,
            rows: figures(comparison),
            verdict: comparison.verdict(),
        })
        .collect();
    let mut text = serde_json::to_string_pretty(&experiments).expect("figures have only text keys");
    text.push('\n');
    text
}

pub(super) fn csv(comparisons: &[Comparison]) -> String {
    let rows: Vec<Figures> = comparisons.iter().flat_map(figures).collect();
    let mut text = Vec::new();
    let columns = results::fields(Figures::deserialize).iter();
    let columns: Vec<String> =
        columns.filter(|field| **field != "axes").map(|field| (*field).to_owned()).collect();
    csv::write_records(&rows, &columns, &[], |row| &row.axes, &mut text).expect("memory can be written to");
    String::from_utf8(text).expect("cells are text")
}

fn figures(comparison: &Comparison) -> Vec<Figures> {
    let of_group = |group: &TableGroup| {
        group.entries.iter().map(|entry| entry_figures(entry, group, comparison)).collect::<Vec<_>>()
    };
    comparison.groups.iter().flat_map(of_group).collect()
}

fn entry_figures(entry: &TableEntry, group: &TableGroup, comparison: &Comparison) -> Figures {
    let row = entry.row.clone();
    let measured = row.measured;
    let relative = entry.relative.clone();
    let interval = relative.speed.and_then(|speed| speed.interval);
    Figures {
        experiment: row.experiment,
        group: group.heading.clone(),
        strategy: row.strategy,
        run_id: row.run_id,
        status: entry.status,
        repeats: entry.repeats,
        device: row.device,
        model: row.model,
        batch_size: row.batch_size,
        baseline: relative.is_baseline,
        predicted_peak_bytes: row.predicted_peak_bytes,
        peak_bytes: measured.peak_bytes,
        reserved_peak_bytes: measured.reserved_peak_bytes,
        external_peak_bytes: measured.external_peak_bytes,
        start_peak_bytes: measured.start_peak_bytes,
        memory_ratio: relative.memory,
        tokens_per_s: measured.tokens_per_s,
        samples_per_s: measured.samples_per_s,
        speed_ratio: relative.speed.map(|speed| speed.median),
        speed_ratio_low: interval.map(|interval| interval.low),
        speed_ratio_high: interval.map(|interval| interval.high),
        same_speed: relative
            .speed
            .filter(|speed| speed.difference != Difference::Unknown)
            .map(|speed| speed.difference == Difference::None),
        loss: entry.loss.as_ref().and_then(|loss| loss.values.median()),
        loss_change: entry.loss_change(),
        fits_micro_batch: row.fits_micro_batch,
        limit_bytes: row.limit_bytes,
        pareto: relative.pareto,
        noisy: entry.is_noisy(),
        same_as: relative.same_as,
        no_effect: row.no_effect,
        oom_phase: measured.oom_phase,
        oom_value: measured.oom_value,
        oom_short_bytes: measured.oom_short_bytes,
        effects: measured.effects,
        message: row.message,
        version: entry.versions.join(" "),
        loss_of: entry.loss.as_ref().map(|loss| loss.source.name().to_owned()),
        host_limit_bytes: row.host_limit_bytes,
        oom_pool: measured.oom_pool,
        oom_other_short_bytes: measured.oom_other_short_bytes,
        unchanged_parameters: measured.unchanged_parameters,
        caution: comparison.caution.clone(),
        estimated_step_ms: row.estimated_step_ms,
        parameters: row.parameters,
        hardware_flops: measured.hardware_flops,
        recompute_flops: measured.recompute_flops,
        to_host_bytes: measured.to_host_bytes,
        to_device_bytes: measured.to_device_bytes,
        predicted_reserved_peak_bytes: row.predicted_reserved_peak_bytes,
        reserved_ratio: relative.reserved,
        predicted_first_step_peak_bytes: row.predicted_first_step_peak_bytes,
        oom_step: measured.oom_step,
        torch_peak_bytes: row.torch_peak_bytes,
        torch_reserved_peak_bytes: row.torch_reserved_peak_bytes,
        torch_fits_micro_batch: row.torch_fits_micro_batch,
        torch_fits: row.torch_fits,
        torch_limit_bytes: row.torch_limit_bytes,
        memory_of: comparison.pytorch.clone(),
        estimated_fits_tokens_per_s: row.estimated_fits_tokens_per_s,
        stream_dtype: row.stream_dtype,
        table_dtype: row.table_dtype,
        torch_program: row.torch_program,
        estimated_exchange_ms: row.estimated_exchange_ms,
        axes: row.axes,
    }
}
