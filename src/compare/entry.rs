//! One strategy at one axis point, with its repeats merged.

use std::collections::{HashMap, HashSet};

use super::Basis;
use super::numbers::{ratio, size};
use super::rounds::Rounds;
use base::statistics::{self, Difference, Ratio};
use device::Role;
use results::{Row, Settings, Status};

/// Above this relative half-width of its confidence interval, a speed ratio is noisy.
pub(super) const NOISY: f64 = 0.05;
/// Above this share of parameters that never change, updates count as lost.
const LOST_UPDATES: f64 = 0.5;
/// Above this share of the step, the data wait gets a column.
pub(super) const WAITS: f64 = 0.02;

/// Above this share of time spent waiting for processors, a speed is disturbed by other programs.
const CROWDED: f64 = 0.03;
/// Above this relative change of the clock, a speed is disturbed.
const CLOCK_CHANGED: f64 = 0.05;

#[derive(Clone, Debug)]
pub(super) struct TableEntry {
    /// Its name in the table.
    pub(super) label: String,
    /// The merged status: with measurements, if any repeat has them.
    pub(super) status: Status,
    /// One row for all repeats, see [`merged`].
    pub(super) row: Row,
    /// Repeats with measurements.
    pub(super) repeats: usize,
    /// Repeats without measurements, if others have them.
    pub(super) lost: usize,
    pub(super) versions: Vec<String>,
    pub(super) instruction_sets: Vec<String>,
    /// Peak in live bytes: measured, or predicted if it ran out of memory or was only planned.
    pub(super) memory: Option<u64>,
    /// Peak in bytes obtained from the system, of the same source.
    pub(super) reserved: Option<u64>,
    /// Tokens or samples per second.
    pub(super) speed: Rounds,
    pub(super) loss: Option<RepeatedLoss>,
    /// Data wait as a share of the step.
    pub(super) wait: Option<f64>,
    /// Wait for processors that other programs used, as a share of the time.
    pub(super) cpu_wait: Option<f64>,
    /// (highest - lowest) / highest clock over all repeats.
    pub(super) clock_change: Option<f64>,
    /// Whether it fits only after PyTorch returned cached memory, in a table of PyTorch's memory.
    pub(super) retries: bool,
    /// Ratios to the baseline of its group.
    pub(super) relative: Relative,
}

/// The losses of all repeats. Only losses of the same source are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RepeatedLoss {
    pub(super) source: LossSource,
    pub(super) values: Rounds,
    /// Whether repeats have different seeds, so that their spread covers the randomness of training.
    pub(super) seeds_vary: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossSource {
    /// The evaluation split, after the last step.
    Evaluation,
    /// The last step's batch, if there is no evaluation.
    Training,
}

impl LossSource {
    pub(super) fn name(self) -> &'static str {
        match self {
            LossSource::Evaluation => "evaluation",
            LossSource::Training => "training",
        }
    }
}

/// An entry relative to its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Relative {
    pub(super) is_baseline: bool,
    pub(super) memory: Option<f64>,
    pub(super) reserved: Option<f64>,
    pub(super) speed: Option<Ratio>,
    /// Ratio of the losses, if both have losses of the same source.
    pub(super) loss: Option<Ratio>,
    /// The baseline's start-up peak exceeds its training peak, and this start-up peak is lower.
    pub(super) less_to_start: bool,
    /// Start-up and first step take noticeably longer or shorter than the baseline's.
    pub(super) other_start_time: bool,
    /// Whether it is on the Pareto front of speed against memory.
    pub(super) pareto: bool,
    /// Number of rounds whose speed ratio is an outlier.
    pub(super) outliers: usize,
    /// Not comparable with the baseline: only one of the two trains parameters, or only this one leaks memory.
    pub(super) no_alternative: bool,
    /// Equal to another entry apart from keys without effect: a difference in speed is noise.
    pub(super) is_duplicate: bool,
    /// The strategy that is listed for this run, if another shares it.
    pub(super) same_as: Option<String>,
}

impl TableEntry {
    /// Estimated milliseconds per sample, comparable across batch sizes.
    pub(super) fn estimated_pace(&self) -> Option<f64> {
        Some(self.row.estimated_step_ms? / self.row.batch_size? as f64)
    }

    /// The order by memory: live bytes, then reserved ones.
    pub(super) fn needs(&self) -> (Option<u64>, Option<u64>) {
        (self.memory, self.reserved)
    }

    /// Whether it needs no more memory than another, neither live nor reserved; unknown if a live peak is.
    pub(super) fn needs_no_more(&self, other: &TableEntry) -> bool {
        let is_at_most = |(own, other): (u64, u64)| own <= other;
        self.memory.zip(other.memory).is_some_and(is_at_most)
            && self.reserved.zip(other.reserved).is_none_or(is_at_most)
    }

    /// `7.7 GiB`; with another reserved peak, `7.7 GiB live, 8 GiB reserved`; with `, 5 GiB on the host` if it needs much
    /// there.
    pub(super) fn peaks(&self) -> Option<String> {
        let live = size(self.memory?);
        let reserved = self.reserved.map(size).filter(|reserved| *reserved != live);
        let host = self.host_memory().map(|host| format!(", {} on the host", size(host))).unwrap_or_default();
        Some(reserved.map_or(live.clone(), |reserved| format!("{live} live, {reserved} reserved")) + &host)
    }

    /// Host memory, if it exceeds 1 MiB and a tenth of the device peak: less does not come from a strategy.
    pub(super) fn host_memory(&self) -> Option<u64> {
        const SMALL: u64 = 1 << 20;
        let small = self.memory.map_or(SMALL, |bytes| SMALL.max(bytes / 10));
        self.row.host_reserved_peak_bytes.filter(|host| *host > small)
    }

    /// `, 0.57 of fp32`; if only reserved bytes differ, `, 0.57 of the reserved bytes of fp32`. Nothing for the
    /// baseline.
    pub(super) fn share_of(&self, base: Option<&TableEntry>) -> String {
        let Some(base) = base.filter(|_| !self.relative.is_baseline) else { return String::new() };
        let (share, what) = match self.relative.reserved {
            Some(reserved) if self.memory == base.memory => (Some(reserved), "the reserved bytes of "),
            _ => (self.relative.memory, ""),
        };
        share.map(|share| format!(", {} of {what}{}", ratio(share), base.label)).unwrap_or_default()
    }

    pub(super) fn mark_retries(&mut self) {
        self.retries = self.row.torch_fits == "retry";
    }

    /// Whether a table of PyTorch's memory has no figures of it, because PyTorch's memory is not predicted.
    pub(super) fn is_not_predicted(&self) -> bool {
        // Other skipped runs are not predicted for this program either.
        self.status == Status::Skipped && !self.row.torch_fits.is_empty()
    }

    /// Whether it finished and its peak is known.
    pub(super) fn is_usable(&self) -> bool {
        self.status == Status::Ok && self.memory.is_some()
    }

    /// Whether it can be recommended: usable, a run of its own and comparable with the baseline.
    pub(super) fn is_candidate(&self) -> bool {
        self.is_usable() && self.relative.same_as.is_none() && !self.relative.no_alternative
    }

    /// Whether every step leaks memory.
    pub(super) fn leaks(&self) -> bool {
        self.row.leaked_bytes.is_some_and(|bytes| bytes > 0)
    }

    /// Whether it trains any parameters.
    pub(super) fn trains(&self) -> bool {
        self.row.trainable_parameters != Some(0)
    }

    /// Whether the confidence interval of its speed ratio is wide.
    pub(super) fn is_noisy(&self) -> bool {
        self.relative.speed.as_ref().and_then(Ratio::half_width).is_some_and(|half| half > NOISY)
    }

    /// Whether its speed is noisy or disturbed.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_noisy() || self.is_disturbed()
    }

    /// Whether other programs, clock changes or outliers affected its speed.
    pub(super) fn is_disturbed(&self) -> bool {
        self.crowded().is_some() || self.clock_changed().is_some() || self.relative.outliers > 0
    }

    /// The share of time spent waiting for processors, if above [`CROWDED`].
    pub(super) fn crowded(&self) -> Option<f64> {
        self.cpu_wait.filter(|share| *share > CROWDED)
    }

    /// The relative change of the processor's clock, if above [`CLOCK_CHANGED`].
    pub(super) fn clock_changed(&self) -> Option<f64> {
        self.clock_change.filter(|change| *change > CLOCK_CHANGED)
    }

    /// The difference to the baseline's loss, as a share of it.
    pub(super) fn loss_change(&self) -> Option<f64> {
        Some(self.relative.loss?.median - 1.0)
    }

    /// Whether both losses are of the same data after the same training: as many steps of equal batches, and the same
    /// data, sequences and evaluation. What is unknown counts as equal.
    pub(super) fn has_comparable_loss(&self, other: &TableEntry) -> bool {
        let (one, two) = (&self.row, &other.row);
        let equal = |a: Option<usize>, b: Option<usize>| a.zip(b).is_none_or(|(a, b)| a == b);
        let settings = Settings::parse(&one.settings).zip(Settings::parse(&two.settings));
        let differing = settings.map(|(a, b)| Settings::differing(&[&a, &b])).unwrap_or_default();
        let is_of_data = |key: &String| {
            let word = key.rsplit('.').next().unwrap_or(key);
            key.starts_with("data.")
                || ["evaluation.batches", "evaluation.batch_size"].contains(&key.as_str())
                || key.starts_with("model.") && ["context", "vocabulary"].contains(&word)
        };
        equal(one.steps, two.steps)
            && equal(one.warmup_steps, two.warmup_steps)
            && equal(one.batch_size, two.batch_size)
            && !differing.iter().any(is_of_data)
    }

    /// Whether losses of different seeds show no difference from the baseline's.
    pub(super) fn same_loss(&self) -> bool {
        let seeds_vary = self.loss.as_ref().is_some_and(|loss| loss.seeds_vary);
        seeds_vary && self.relative.loss.is_some_and(|ratio| ratio.difference == Difference::None)
    }

    /// Whether its speed is not measurably different from the baseline's.
    pub(super) fn same_speed(&self) -> bool {
        !self.relative.is_baseline
            && self.relative.speed.is_some_and(|ratio| ratio.difference == Difference::None)
    }

    /// Its rank in speed beside the baseline, as the table shows it: -1 slower, 0 no measurable difference, 1 faster.
    pub(super) fn standing(&self) -> Option<i8> {
        let difference =
            if self.relative.is_baseline { Difference::None } else { self.relative.speed?.difference };
        match difference {
            Difference::Less => Some(-1),
            Difference::None => Some(0),
            Difference::More => Some(1),
            Difference::Unknown => None,
        }
    }

    /// Whether the table shows no difference in speed: both are the baseline or marked `=`.
    pub(super) fn is_level_with(&self, other: &TableEntry) -> bool {
        self.standing() == Some(0) && other.standing() == Some(0)
    }

    /// The share of parameters that no step changed, if above [`LOST_UPDATES`].
    pub(super) fn lost_updates(&self) -> Option<f64> {
        self.row.unchanged_parameters.filter(|share| *share > LOST_UPDATES)
    }

    /// Keys of the strategy without effect.
    pub(super) fn no_effect(&self) -> Vec<String> {
        self.row.no_effect.split_whitespace().map(str::to_string).collect()
    }

    /// Whether it differs from `other` only in keys without effect, judging by all predicted figures.
    pub(super) fn is_duplicate_of(&self, other: &TableEntry) -> bool {
        let predicted = |entry: &TableEntry| {
            let row = &entry.row;
            let memory = (row.predicted_peak_bytes, row.predicted_reserved_peak_bytes);
            (memory, row.model_flops, row.hardware_flops, row.micro_batch, row.precision.clone())
        };
        !self.row.no_effect.is_empty()
            && other.is_candidate()
            && other.row.no_effect.is_empty()
            && predicted(self) == predicted(other)
    }

    /// The ratio of its speed to another's.
    pub(super) fn speed_over(&self, other: &TableEntry) -> Option<Ratio> {
        self.speed.over(&other.speed)
    }

    /// The established difference in speed; unknown if either has no speed.
    pub(super) fn difference(&self, other: &TableEntry) -> Difference {
        self.speed_over(other).map_or(Difference::Unknown, |ratio| ratio.difference)
    }

    /// Whether a step has several micro-batches.
    pub(super) fn accumulates(&self) -> bool {
        self.micro_batches() > Some(self.row.ranks.unwrap_or(1))
    }

    /// Those of a step on all ranks.
    fn micro_batches(&self) -> Option<usize> {
        Some(self.row.batch_size?.div_ceil(self.row.micro_batch.filter(|rows| *rows > 0)?))
    }

    /// The largest batch of a step within the memory limit, with the same number of micro-batches.
    pub(super) fn fits_batch(&self) -> Option<usize> {
        self.row.fits_micro_batch?.checked_mul(self.micro_batches()?)
    }

    /// Recomputed FLOPs over the model's FLOPs.
    pub(super) fn flops_added(&self) -> Option<f64> {
        let model = self.row.model_flops.filter(|flops| *flops > 0)?;
        Some(self.row.recompute_flops? as f64 / model as f64)
    }

    /// Bytes transferred per step, in both directions.
    pub(super) fn moved_bytes(&self) -> Option<u64> {
        self.row.to_host_bytes?.checked_add(self.row.to_device_bytes?)
    }

    /// The peak of forward, backward and update, if the phases are known.
    pub(super) fn training_peak(&self) -> Option<u64> {
        let row = &self.row;
        [row.forward_peak_bytes, row.backward_peak_bytes, row.update_peak_bytes].into_iter().flatten().max()
    }

    /// The time of start-up and first step beyond a median step.
    pub(super) fn start_ms(&self) -> Option<f64> {
        let row = &self.row;
        Some((row.first_step_ms? - row.step_ms_median?).max(0.0)).filter(|_| self.is_usable())
    }

    pub(super) fn start_above_training(&self) -> bool {
        self.is_usable() && self.row.start_peak_bytes > self.memory
    }

    /// Whether the start-up peak is below the parameters' size: some are allocated later.
    pub(super) fn starts_without_parameters(&self) -> bool {
        self.is_usable()
            && self.row.start_peak_bytes.is_some_and(|start| Some(start) < self.row.live[Role::Parameter])
    }

    pub(super) fn evaluation_above_training(&self) -> bool {
        self.is_usable()
            && self
                .training_peak()
                .is_some_and(|peak| self.row.evaluation_peak_bytes.is_some_and(|e| e > peak))
    }

    pub(super) fn prediction_missed(&self) -> bool {
        let row = &self.row;
        self.is_usable()
            && row.peak_bytes.zip(row.predicted_peak_bytes).is_some_and(|(peak, predicted)| peak != predicted)
    }

    /// External reading minus reserved bytes, if they differ beyond the tolerance.
    pub(super) fn uncounted(&self) -> Option<i128> {
        let row = &self.row;
        if !self.is_usable() {
            return None;
        }
        let device = row.reserved_peak_bytes.or(row.predicted_reserved_peak_bytes)?;
        let external = row.external_peak_bytes?;
        // The GPU driver counts device memory alone, the resident set both pools.
        let (reserved, agrees) = match row.context_bytes {
            Some(_) => {
                let step = row.external_step_bytes.unwrap_or(0);
                (device, execute::driver_agrees(device, external, step))
            }
            None => {
                // Older rows have no joint peak: add the peaks of both pools.
                let each = device.saturating_add(row.host_reserved_peak_bytes.unwrap_or(0));
                let both = row.all_reserved_peak_bytes.unwrap_or(each);
                (both, execute::agrees(both, external))
            }
        };
        (!agrees).then(|| i128::from(external) - i128::from(reserved))
    }
}

/// Equal for repeats of one run.
fn run_key(row: &Row) -> (&str, &str, &str, &[(String, String)]) {
    (&row.run_id, &row.strategy, &row.device, &row.axes)
}

/// Merges repeats into entries, in the order of their first rows.
pub(super) fn merge(rows: &[&Row], in_tokens: bool, basis: Basis) -> Vec<TableEntry> {
    let mut runs: Vec<Vec<&Row>> = Vec::new();
    let mut indices = HashMap::new();
    let mut seen: HashMap<(usize, usize), Vec<&Row>> = HashMap::new();
    for &row in rows {
        let index = *indices.entry(run_key(row)).or_insert(runs.len());
        if index == runs.len() {
            runs.push(Vec::new());
        }
        // Skip duplicate rows: the same file may be given twice.
        let seen = seen.entry((index, row.repeat)).or_default();
        if !seen.contains(&row) {
            seen.push(row);
            runs[index].push(row);
        }
    }
    runs.iter().map(|repeats| merge_repeats(repeats, in_tokens, basis)).collect()
}

fn merge_repeats(repeats: &[&Row], in_tokens: bool, basis: Basis) -> TableEntry {
    let rank = |status: Status| match status {
        Status::Diverged => 0, // one diverged repeat makes the whole run suspect
        Status::Ok => 1,
        Status::Oom => 2,
        Status::Skipped => 3,
        Status::Timeout => 4,
        Status::Failed => 5,
        Status::Interrupted => 6,
    };
    let first =
        repeats.iter().copied().min_by_key(|row| rank(row.status)).expect("a run has at least one row");
    let status = first.status;
    let has_figures = |row: &&Row| matches!(row.status, Status::Ok | Status::Diverged);
    let measured: Vec<&Row> = repeats.iter().copied().filter(has_figures).collect();
    let mut versions: Vec<String> = repeats.iter().map(|row| row.version.clone()).collect();
    let mut instruction_sets: Vec<String> = repeats.iter().map(|row| row.instruction_set.clone()).collect();
    for distinct in [&mut versions, &mut instruction_sets] {
        distinct.sort();
        distinct.dedup();
    }
    let speed = |row: &Row| if in_tokens { useful_tokens_per_s(row) } else { row.samples_per_s };
    let waits = |row: &Row| Some(row.data_wait_ms? / row.step_ms_median.filter(|ms| *ms > 0.0)?);
    let peak = |predicted: Option<u64>, counted: fn(&Row) -> Option<u64>| match (basis, status) {
        (_, Status::Skipped) => None,
        (Basis::Predicted, _) | (_, Status::Oom) => predicted,
        _ => measured.iter().filter_map(|row| counted(row)).max(),
    };
    TableEntry {
        label: first.strategy.clone(),
        status,
        row: merged(first, &measured),
        repeats: measured.len(),
        lost: if measured.is_empty() { 0 } else { repeats.len() - measured.len() },
        versions,
        instruction_sets,
        memory: peak(first.predicted_peak_bytes, |row| row.peak_bytes),
        reserved: peak(first.predicted_reserved_peak_bytes, |row| row.reserved_peak_bytes),
        speed: Rounds::of(&measured, speed),
        loss: loss(&measured),
        wait: median_of(&measured, waits),
        cpu_wait: median_of(&measured, |row| row.cpu_wait),
        clock_change: clock_change(&measured),
        retries: false,
        relative: Relative::default(),
    }
}

/// Tokens per second without padding, which is no result: runs that pad less are as fast with fewer tokens.
pub(super) fn useful_tokens_per_s(row: &Row) -> Option<f64> {
    Some(row.tokens_per_s? * (1.0 - row.padding.unwrap_or(0.0)))
}

fn clock_change(measured: &[&Row]) -> Option<f64> {
    let clocks = || measured.iter().flat_map(|row| [row.clock_mhz, row.clock_after_mhz]).flatten();
    let highest = clocks().max_by(f64::total_cmp).filter(|clock| positive(*clock))?;
    Some(1.0 - clocks().min_by(f64::total_cmp)? / highest)
}

fn loss(measured: &[&Row]) -> Option<RepeatedLoss> {
    let seeds: HashSet<Option<u64>> = measured.iter().map(|row| row.seed).collect();
    let loss = |source, value: fn(&Row) -> Option<f64>| {
        let values = Rounds::of(measured, value);
        values.median().map(|_| RepeatedLoss { source, values, seeds_vary: seeds.len() > 1 })
    };
    loss(LossSource::Evaluation, |row| row.loss_eval)
        .or_else(|| loss(LossSource::Training, |row| row.loss_last))
}

/// One row for all repeats: peaks are the maxima, times and speeds the medians, the rest is the first row's.
fn merged(first: &Row, measured: &[&Row]) -> Row {
    let most = |bytes: fn(&Row) -> Option<u64>| measured.iter().filter_map(|row| bytes(row)).max();
    let mut row = first.clone();
    row.tokens_per_s = median_of(measured, |row| row.tokens_per_s.filter(|speed| positive(*speed)));
    row.first_step_ms = median_of(measured, |row| row.first_step_ms);
    row.step_ms_median = median_of(measured, |row| row.step_ms_median);
    row.accuracy = median_of(measured, |row| row.accuracy);
    row.samples_per_s = median_of(measured, |row| row.samples_per_s.filter(|speed| positive(*speed)));
    if !measured.is_empty() {
        row.peak_bytes = most(|row| row.peak_bytes);
        row.reserved_peak_bytes = most(|row| row.reserved_peak_bytes);
        row.external_peak_bytes = most(|row| row.external_peak_bytes);
    }
    row
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn median_of(rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.iter().filter_map(|row| value(row)).filter(|v| v.is_finite()).collect();
    statistics::median(&values)
}
