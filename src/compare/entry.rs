//! One strategy at one axis point: its repeats merged.

use std::collections::{HashMap, HashSet};

use super::Basis;
use super::rounds::Rounds;
use base::statistics::{self, Difference, Ratio};
use device::Role;
use results::{Row, Status};

/// Above this half-width, relative to the median, the ratio of a speed to the baseline's is called noisy.
pub(super) const NOISY: f64 = 0.05;
/// Above this share of parameters that never change, little is learnt.
const MOSTLY: f64 = 0.5;
/// Above this share of the step, waiting for data is worth a column.
pub(super) const WAITS: f64 = 0.02;

/// Above this share of the time for which others had the processors, a speed is not the run's own.
const CROWDED: f64 = 0.03;
const CLOCK_CHANGED: f64 = 0.05;

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// What the table calls it.
    pub(super) label: String,
    /// How it ended: with figures if any repeat has them.
    pub(super) status: Status,
    /// Stands for all repeats in what they have in common.
    pub(super) row: Row,
    /// Repeats with figures.
    pub(super) repeats: usize,
    /// Repeats without: of something that worked at other times.
    pub(super) lost: usize,
    pub(super) versions: Vec<String>,
    /// Measured, or predicted where it ran out of memory or was only planned.
    pub(super) memory: Option<u64>,
    /// Tokens or samples a second.
    pub(super) speed: Rounds,
    pub(super) loss: Option<Loss>,
    /// Share of the step.
    pub(super) wait: Option<f64>,
    /// For processors that others had: a share of the time.
    pub(super) cpu_wait: Option<f64>,
    /// Between the highest and the lowest of its repeats, over the highest.
    pub(super) clock_change: Option<f64>,
    /// Against the baseline of its group.
    pub(super) relative: Relative,
}

/// Losses of one kind alone can be compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loss {
    pub(super) of: LossOf,
    pub(super) values: Rounds,
    /// Whether repeats have seeds of their own: their losses then show how much of a difference is luck.
    pub(super) seeds_vary: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossOf {
    /// The evaluation split, after the last step.
    Evaluation,
    /// The last step's batch, where nothing is evaluated.
    Training,
}

impl LossOf {
    pub(super) fn name(self) -> &'static str {
        match self {
            LossOf::Evaluation => "evaluation",
            LossOf::Training => "training",
        }
    }
}

/// What an entry is worth in its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Relative {
    pub(super) is_baseline: bool,
    pub(super) memory: Option<f64>,
    pub(super) speed: Option<Ratio>,
    /// Of the loss, where losses of one kind were measured in both.
    pub(super) loss: Option<Ratio>,
    /// The start-up peak decides what the baseline needs, and is lower here.
    pub(super) less_to_start: bool,
    /// The first step, with what comes before it, takes longer or shorter than the baseline's.
    pub(super) other_start_time: bool,
    pub(super) pareto: bool,
    /// Rounds whose ratio of speeds lies far from the others'.
    pub(super) outliers: usize,
    /// It trains nothing where the baseline does, or the other way round; or it leaves ever more behind, and the baseline does not.
    pub(super) no_alternative: bool,
    /// Another entry is the same without keys that change nothing: what differs in speed is noise.
    pub(super) idle: bool,
    /// The strategy in whose name this run was measured.
    pub(super) same_as: Option<String>,
}

impl Entry {
    /// Milliseconds that each sample of a step is estimated to take, which is what strategies of other batches are compared by.
    pub(super) fn estimated_pace(&self) -> Option<f64> {
        Some(self.row.estimated_step_ms? / self.row.batch_size? as f64)
    }

    /// Ran to the end: what something can be said of.
    pub(super) fn is_usable(&self) -> bool {
        self.status == Status::Ok && self.memory.is_some()
    }

    /// An alternative of its own, not another name for one or something else: what a recommendation can be made of.
    pub(super) fn is_candidate(&self) -> bool {
        self.is_usable() && self.relative.same_as.is_none() && !self.relative.no_alternative
    }

    /// Whether its memory grows with every step.
    pub(super) fn leaks(&self) -> bool {
        self.row.leaked_bytes.is_some_and(|bytes| bytes > 0)
    }

    /// Whether any of its parameters are trained.
    pub(super) fn trains(&self) -> bool {
        self.row.trainable_parameters != Some(0)
    }

    /// Whether its speed beside the baseline's is known badly.
    pub(super) fn is_noisy(&self) -> bool {
        self.relative.speed.as_ref().and_then(Ratio::half_width).is_some_and(|half| half > NOISY)
    }

    /// Whether its speed is not to be trusted.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_noisy() || self.is_disturbed()
    }

    /// Whether its speed is not the strategy's own doing.
    pub(super) fn is_disturbed(&self) -> bool {
        self.crowded().is_some() || self.clock_changed().is_some() || self.relative.outliers > 0
    }

    /// The share of the time in which others had the processors, where it is not small.
    pub(super) fn crowded(&self) -> Option<f64> {
        self.cpu_wait.filter(|share| *share > CROWDED)
    }

    /// How much the processor's clock changed, where it is not little.
    pub(super) fn clock_changed(&self) -> Option<f64> {
        self.clock_change.filter(|change| *change > CLOCK_CHANGED)
    }

    /// The loss beside the baseline's, where it is not by luck what it is: a share of the baseline's.
    pub(super) fn loss_change(&self) -> Option<f64> {
        Some(self.relative.loss?.median - 1.0)
    }

    /// Whether losses of several seeds show no difference from the baseline's.
    pub(super) fn same_loss(&self) -> bool {
        let seeds_vary = self.loss.as_ref().is_some_and(|loss| loss.seeds_vary);
        seeds_vary && self.relative.loss.is_some_and(|ratio| ratio.difference == Difference::None)
    }

    /// Whether its speed cannot be told from the baseline's.
    pub(super) fn same_speed(&self) -> bool {
        !self.relative.is_baseline
            && self.relative.speed.is_some_and(|ratio| ratio.difference == Difference::None)
    }

    /// The share of parameters that no step changed for good, where that is most of them.
    pub(super) fn lost_updates(&self) -> Option<f64> {
        self.row.unchanged_parameters.filter(|share| *share > MOSTLY)
    }

    /// Keys of the strategy that changed nothing.
    pub(super) fn no_effect(&self) -> Vec<String> {
        self.row.no_effect.split_whitespace().map(str::to_string).collect()
    }

    /// Whether keys that change nothing are all that it has beyond the other, by everything that is predicted.
    pub(super) fn is_idle_beside(&self, other: &Entry) -> bool {
        let predicted = |entry: &Entry| {
            let row = &entry.row;
            let memory = (row.predicted_peak_bytes, row.predicted_reserved_peak_bytes);
            (memory, row.model_flops, row.hardware_flops, row.micro_batch, row.precision.clone())
        };
        !self.row.no_effect.is_empty()
            && other.is_candidate()
            && other.row.no_effect.is_empty()
            && predicted(self) == predicted(other)
    }

    /// How much faster it is than another.
    pub(super) fn speed_beside(&self, other: &Entry) -> Option<Ratio> {
        self.speed.over(&other.speed)
    }

    /// What is known of that: nothing where either has no speed.
    pub(super) fn difference(&self, other: &Entry) -> Difference {
        self.speed_beside(other).map_or(Difference::Unknown, |ratio| ratio.difference)
    }

    /// Whether a step is several micro-batches.
    pub(super) fn accumulates(&self) -> bool {
        self.micro_batches() > Some(1)
    }

    fn micro_batches(&self) -> Option<usize> {
        Some(self.row.batch_size?.div_ceil(self.row.micro_batch.filter(|rows| *rows > 0)?))
    }

    /// The largest batch of one step that the limit allows, in as many micro-batches as now.
    pub(super) fn fits_batch(&self) -> Option<usize> {
        self.row.fits_micro_batch?.checked_mul(self.micro_batches()?)
    }

    /// What is computed again, over what the model needs.
    pub(super) fn flops_added(&self) -> Option<f64> {
        let model = self.row.model_flops.filter(|flops| *flops > 0)?;
        Some(self.row.recompute_flops? as f64 / model as f64)
    }

    /// What leaves the device in a step, and what comes back.
    pub(super) fn moved_bytes(&self) -> Option<u64> {
        self.row.to_host_bytes?.checked_add(self.row.to_device_bytes?)
    }

    /// Training peak, where the phases are known.
    pub(super) fn training_peak(&self) -> Option<u64> {
        let row = &self.row;
        [row.forward_peak_bytes, row.backward_peak_bytes, row.update_peak_bytes].into_iter().flatten().max()
    }

    /// What the first step took beyond the others, start-up included.
    pub(super) fn start_ms(&self) -> Option<f64> {
        let row = &self.row;
        Some((row.first_step_ms? - row.step_ms_median?).max(0.0)).filter(|_| self.is_usable())
    }

    pub(super) fn start_above_training(&self) -> bool {
        self.is_usable() && self.row.start_peak_bytes > self.memory
    }

    /// Parameters that training keeps on the device are made later.
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

    /// How far the witness is from the bytes asked of the system, where the two do not agree.
    pub(super) fn uncounted(&self) -> Option<i128> {
        let row = &self.row;
        if !self.is_usable() {
            return None;
        }
        let device = row.reserved_peak_bytes.or(row.predicted_reserved_peak_bytes)?;
        let witnessed = row.external_peak_bytes?;
        // A card's driver counts the card's memory alone, the resident set both pools.
        let (reserved, agrees) = match row.context_bytes {
            Some(_) => {
                let step = row.external_step_bytes.unwrap_or(0);
                (device, execute::driver_agrees(device, witnessed, step))
            }
            None => {
                // What is older than the column has each at its own time.
                let each = device.saturating_add(row.host_reserved_peak_bytes.unwrap_or(0));
                let both = row.all_reserved_peak_bytes.unwrap_or(each);
                (both, execute::agrees(both, witnessed))
            }
        };
        (!agrees).then(|| i128::from(witnessed) - i128::from(reserved))
    }
}

/// What repeats of one run have in common.
fn run(row: &Row) -> (&str, &str, &str, &[(String, String)]) {
    (&row.run_id, &row.strategy, &row.device, &row.axes)
}

/// Repeats become entries, in the order in which the rows first name them.
pub(super) fn merge(rows: &[Row], in_tokens: bool, basis: Basis) -> Vec<Entry> {
    let mut runs: Vec<Vec<&Row>> = Vec::new();
    let mut places = HashMap::new();
    let mut known: HashMap<(usize, usize), Vec<&Row>> = HashMap::new();
    for row in rows {
        let place = *places.entry(run(row)).or_insert(runs.len());
        if place == runs.len() {
            runs.push(Vec::new());
        }
        // A file that is named twice says nothing new.
        let known = known.entry((place, row.repeat)).or_default();
        if !known.contains(&row) {
            known.push(row);
            runs[place].push(row);
        }
    }
    runs.iter().map(|repeats| of_repeats(repeats, in_tokens, basis)).collect()
}

fn of_repeats(repeats: &[&Row], in_tokens: bool, basis: Basis) -> Entry {
    let rank = |status: Status| match status {
        Status::Diverged => 0, // one repeat that diverged is a reason not to trust the others
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
    versions.sort();
    versions.dedup();
    let speed = |row: &Row| if in_tokens { row.tokens_per_s } else { row.samples_per_s };
    let waits = |row: &Row| Some(row.data_wait_ms? / row.step_ms_median.filter(|ms| *ms > 0.0)?);
    Entry {
        label: first.strategy.clone(),
        status,
        row: merged(first, &measured),
        repeats: measured.len(),
        lost: if measured.is_empty() { 0 } else { repeats.len() - measured.len() },
        versions,
        memory: match (basis, status) {
            (_, Status::Skipped) => None,
            (Basis::Predicted, _) | (_, Status::Oom) => first.predicted_peak_bytes,
            _ => measured.iter().filter_map(|row| row.peak_bytes).max(),
        },
        speed: Rounds::of(&measured, speed),
        loss: loss(&measured),
        wait: middle(&measured, waits),
        cpu_wait: middle(&measured, |row| row.cpu_wait),
        clock_change: clock_change(&measured),
        relative: Relative::default(),
    }
}

fn clock_change(measured: &[&Row]) -> Option<f64> {
    let clocks = || measured.iter().flat_map(|row| [row.clock_mhz, row.clock_after_mhz]).flatten();
    let highest = clocks().max_by(f64::total_cmp).filter(|clock| positive(*clock))?;
    Some(1.0 - clocks().min_by(f64::total_cmp)? / highest)
}

fn loss(measured: &[&Row]) -> Option<Loss> {
    let seeds: HashSet<Option<u64>> = measured.iter().map(|row| row.seed).collect();
    let loss = |of, value: fn(&Row) -> Option<f64>| {
        let values = Rounds::of(measured, value);
        values.median().map(|_| Loss { of, values, seeds_vary: seeds.len() > 1 })
    };
    loss(LossOf::Evaluation, |row| row.loss_eval).or_else(|| loss(LossOf::Training, |row| row.loss_last))
}

/// A row for all repeats: bytes are the same in all of them or, if not, the most; speeds are the medians.
fn merged(first: &Row, measured: &[&Row]) -> Row {
    let most = |bytes: fn(&Row) -> Option<u64>| measured.iter().filter_map(|row| bytes(row)).max();
    let mut row = first.clone();
    row.tokens_per_s = middle(measured, |row| row.tokens_per_s.filter(|speed| positive(*speed)));
    row.first_step_ms = middle(measured, |row| row.first_step_ms);
    row.step_ms_median = middle(measured, |row| row.step_ms_median);
    row.samples_per_s = middle(measured, |row| row.samples_per_s.filter(|speed| positive(*speed)));
    if !measured.is_empty() {
        row.peak_bytes = most(|row| row.peak_bytes);
        row.external_peak_bytes = most(|row| row.external_peak_bytes);
    }
    row
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn middle(rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.iter().filter_map(|row| value(row)).filter(|v| v.is_finite()).collect();
    statistics::median(&values)
}
