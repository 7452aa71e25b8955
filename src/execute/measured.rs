//! What a child found out.

use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::products::ProductSources;
use super::volume::Volume;
use base::documented;
use base::statistics::{self, Interval};
use base::units::Bytes;
use device::{ByRole, Ledger, Phase, Pool};
use memory::{OutOfMemory, Pieces, Short};

/// How a run ended, and what it measured until then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub ended: Ended,
    /// Why it ended early.
    pub message: String,
    pub measured: Measured,
}

/// How training ended: all are results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    #[default]
    Complete,
    OutOfMemory,
    Diverged,
}

documented! {
    /// The figures that a run measures, but for what goes into files of its own. Each is a column of the results: a new
    /// figure is a field here, in the order of the columns, and a line where it is measured. What was not reached is
    /// `None`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Measured {
        /// Live bytes of the device pool at the peak of the steady state: training and evaluation.
        pub peak_bytes: Option<u64>,
        /// Most bytes of the device pool asked of the system.
        pub reserved_peak_bytes: Option<u64>,
        /// Growth of the process's resident set (CPU) or of the driver's figure (CUDA), which count without this program.
        pub external_peak_bytes: Option<u64>,
        /// Live bytes of the device pool at the peak before the first step.
        pub start_peak_bytes: Option<u64>,
        /// What was live at the peak, rounded as allocated. All roles together are `peak_bytes`.
        pub live: ByRole<Option<u64>>,
        /// Live bytes of the host pool at their peak.
        pub host_peak_bytes: Option<u64>,
        /// Median of the timed steps, each a whole optimizer step with the wait for its batch.
        pub step_ms_median: Option<f64>,
        /// What nine of ten timed steps did not exceed.
        pub step_ms_p90: Option<f64>,
        /// Tokens of a step by its median time. Empty for models without tokens.
        pub tokens_per_s: Option<f64>,
        /// Samples of a step by its median time.
        pub samples_per_s: Option<f64>,
        /// Median over the timed steps of what they waited for their batch.
        pub data_wait_ms: Option<f64>,
        /// Loss of the first step, before it changed anything.
        pub loss_first: Option<f64>,
        /// Loss of the last step.
        pub loss_last: Option<f64>,
        /// Loss over the evaluation split, after the last step. Empty without [evaluation].
        pub loss_eval: Option<f64>,
        /// FLOPs computed again in one step, as counted while it ran.
        pub recompute_flops: Option<u64>,
        /// What the strategy really did, in words.
        pub effects: String,
        /// The fastest timed step.
        pub step_ms_min: Option<f64>,
        /// Half the width of the 95 % interval of the median, from the spread of steps within this one process.
        pub step_ms_ci95: Option<f64>,
        /// Live bytes of the device pool at the peak of forward passes.
        pub forward_peak_bytes: Option<u64>,
        /// Live bytes of the device pool at the peak of backward passes.
        pub backward_peak_bytes: Option<u64>,
        /// Live bytes of the device pool at the peak of the optimizer's updates.
        pub update_peak_bytes: Option<u64>,
        /// Live bytes of the device pool at the peak of evaluations. Empty without [evaluation].
        pub evaluation_peak_bytes: Option<u64>,
        /// Most bytes of the host pool asked of the system.
        pub host_reserved_peak_bytes: Option<u64>,
        /// FLOPs of one step, with what was computed again.
        pub hardware_flops: Option<u64>,
        /// Forward and backward passes of one step.
        pub micro_batches: Option<u64>,
        /// Where it ran out of memory: start, forward, backward, update or evaluation.
        pub oom_phase: Option<String>,
        /// The operation whose value there was no room for.
        pub oom_operation: Option<String>,
        /// The value that there was no room for.
        pub oom_value: Option<String>,
        /// Bytes of the request that could not be met.
        pub oom_requested_bytes: Option<u64>,
        /// What the limit lacked for the whole run, not for that request alone.
        pub oom_short_bytes: Option<u64>,
        /// One-minute load average when the timed steps began.
        pub load: Option<f64>,
        /// Clock of the processor when the timed steps began.
        pub clock_mhz: Option<f64>,
        /// Digest of the parameters and optimizer state after the last step: equal for training that is equal to the bit.
        pub digest: String,
        /// From the beginning of the run's process to that of its first step.
        pub startup_ms: Option<f64>,
        /// FLOP/s that the device reached right after the run in a large product in the run's precision. Of the first repeat.
        pub product_flops_per_s: Option<f64>,
        /// Bytes that the device then read and wrote per second in its own memory. Of the first repeat.
        pub copy_bytes_per_s: Option<f64>,
        /// Whether 16-bit numbers were multiplied in fp32, by a device without units for them: their memory is real, their
        /// speed is not a card's.
        pub emulated: bool,
        /// Steps not taken because a gradient was not finite. Empty without a loss scale.
        pub skipped_steps: Option<u64>,
        /// The loss scale after the last step. Empty without one.
        pub loss_scale: Option<f64>,
        /// Time of one more step, in which a card noted when each operation was done; the timed ones are not charged with that.
        pub profiled_step_ms: Option<f64>,
        /// What a card's driver reserves at a time: its figure, `external_peak_bytes`, is no finer.
        pub external_step_bytes: Option<u64>,
        /// Shapes of products whose algorithms were timed for this run. Empty on the CPU, which has no choice of them.
        pub products_timed: Option<u64>,
        /// Shapes whose algorithms were timed for another run, and kept in the cache.
        pub products_cached: Option<u64>,
        /// Shapes whose algorithms were stored with the run that this one repeats.
        pub products_stored: Option<u64>,
        /// Shapes whose algorithms were not timed, for want of memory.
        pub products_untimed: Option<u64>,
        /// Of one step: bytes that left the device for the host's work, or until they are needed again.
        pub to_host_bytes: Option<u64>,
        /// Of one step: bytes that came back, batches not among them.
        pub to_device_bytes: Option<u64>,
        /// The share of the time of copies, batches among them, in which nothing waited for them. On a card that of the step
        /// whose operations are timed, and unknown where graphs are replayed, which cannot be timed in parts.
        pub copies_hidden: Option<f64>,
        /// The pool that could not meet the request.
        pub oom_pool: Option<String>,
        /// What the other pool's limit lacks for the whole run, if it lacks anything.
        pub oom_other_short_bytes: Option<u64>,
        /// Of what the host held: the most in pinned memory.
        pub pinned_peak_bytes: Option<u64>,
        /// From where the run's memory is asked for and its parameters are made to the end of the first step.
        pub first_step_ms: Option<f64>,
        /// The most asked of the system at one time, of the device's memory and the host's together.
        pub all_reserved_peak_bytes: Option<u64>,
        /// Of parameters that are stored in 16 bits without a copy: the share that is bit for bit the same after the last
        /// step as after the first, by a sample of each tensor that is not looked up in. What steps changed of them was lost.
        pub unchanged_parameters: Option<f64>,
        /// What each step left behind for ever, of the device's memory and the host's together.
        pub leaked_bytes: Option<u64>,
        /// What of the pool that could not meet the request was reserved and free, but in pieces.
        pub oom_in_pieces_bytes: Option<u64>,
        /// The largest of the pieces of `oom_in_pieces_bytes`.
        pub oom_largest_piece_bytes: Option<u64>,
        /// The share of the timed steps in which the run's threads were ready, and waited for processors that something else
        /// had.
        pub cpu_wait: Option<f64>,
        /// Clock of the processor after the timed steps.
        pub clock_after_mhz: Option<f64>,
        /// The share of tokens that were padding, of all steps. Empty where samples have none.
        pub padding: Option<f64>,
        /// Bytes of batches that came to the device in one step.
        pub batch_bytes: Option<u64>,
        /// The share of the time that threads took for the batches of the timed steps in which no step waited for them. Empty
        /// without `loader.workers`.
        pub loading_hidden: Option<f64>,
        /// The share of steps whose batch was on its way to the device while the step before computed. Empty unless
        /// `loader.prefetch` is 2 or more.
        pub batches_ahead: Option<f64>,
    }
}

/// What the timed steps took, and waited for their batches.
#[derive(Default)]
pub(super) struct Times {
    pub(super) step_ms: Vec<f64>,
    pub(super) data_wait_ms: Vec<f64>,
    /// What threads took for their batches, where threads assemble them.
    pub(super) loading_ms: Vec<f64>,
}

/// How the batches of the timed steps came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loading {
    /// Threads that assembled them.
    pub(super) workers: usize,
    /// The share of the time of steps in which they waited for their batches.
    pub(super) waited: f64,
    /// The share of the time that threads took in which no step waited.
    pub(super) hidden: Option<f64>,
}

impl Loading {
    pub(super) fn of(workers: usize, times: &Times) -> Loading {
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        let [steps, waited, took] =
            [&times.step_ms, &times.data_wait_ms, &times.loading_ms].map(|times| sum(times));
        let hidden = (took > 0.0).then(|| 1.0 - (waited / took).min(1.0));
        Loading { workers, waited: if steps > 0.0 { waited / steps } else { 0.0 }, hidden }
    }
}

impl Outcome {
    /// Out of memory after so many steps, which is so many bytes short for the whole run: what was live then is the run's
    /// peak.
    pub(super) fn ran_out(&mut self, found: &OutOfMemory, short: Short, steps: u64) {
        self.ended = Ended::OutOfMemory;
        self.message = describe(found, short);
        if found.leaked > 0 {
            let leaked = Bytes(found.leaked);
            let left =
                format!("; of what was live, {steps} steps and the one under way had left {leaked} behind");
            self.message.push_str(&left);
        }
        if let Some(pieces) = in_pieces(found.pieces) {
            self.message.push_str(&format!("; {pieces}"));
        }
        if found.pool == Pool::Device {
            self.measured.record_peak(&found.live);
        }
        self.measured.record_out_of_memory(found, short);
    }

    /// Training is over and has its result: that the step for the timeline got no memory costs the timeline alone.
    pub(super) fn has_no_timeline(&mut self) {
        if self.message.is_empty() {
            self.message = "no times of operations: the step that is taken for them got no memory".to_owned();
        }
    }

    pub(super) fn diverged(&mut self) {
        self.ended = Ended::Diverged;
        self.message = "the loss stopped being finite".to_owned();
    }
}

impl Measured {
    /// What was live at the peak.
    pub fn record_peak(&mut self, live: &ByRole) {
        self.peak_bytes = Some(live.total());
        self.live = live.map(Some);
    }

    /// The request that could not be met, and what limits lack for the whole run.
    pub fn record_out_of_memory(&mut self, found: &OutOfMemory, short: Short) {
        let (short, other) = short.of(found.pool);
        self.oom_phase = Some(found.phase.name().to_owned());
        self.oom_operation = Some(found.operation.clone());
        self.oom_value = Some(found.value.clone());
        self.oom_requested_bytes = Some(found.requested);
        self.oom_short_bytes = Some(short);
        self.oom_pool = Some(found.pool.name().to_owned());
        self.oom_other_short_bytes = Some(other).filter(|bytes| *bytes > 0);
        let Pieces { bytes, largest } = found.pieces;
        self.oom_in_pieces_bytes = Some(bytes).filter(|bytes| *bytes > 0);
        self.oom_largest_piece_bytes = self.oom_in_pieces_bytes.map(|_| largest);
    }

    pub(super) fn record_memory(&mut self, ledger: &Ledger) {
        let (device, host) = (ledger.usage(Pool::Device), ledger.usage_at(Pool::Host));
        let phase = |phase| Some(device.phase_peak(phase).live.total()).filter(|bytes| *bytes > 0);
        self.record_peak(&device.steady_peak().live);
        self.reserved_peak_bytes = Some(device.reserved_peak);
        self.start_peak_bytes = Some(device.phase_peak(Phase::Start).live.total());
        self.forward_peak_bytes = phase(Phase::Forward);
        self.backward_peak_bytes = phase(Phase::Backward);
        self.update_peak_bytes = phase(Phase::Update);
        self.evaluation_peak_bytes = phase(Phase::Evaluation);
        self.host_peak_bytes = Some(host.peak());
        self.pinned_peak_bytes = Some(ledger.usage(Pool::Pinned).peak());
        self.host_reserved_peak_bytes = Some(host.reserved_peak);
        self.all_reserved_peak_bytes = Some(ledger.all_reserved_peak());
    }

    /// Of steps of so many samples and tokens.
    pub(super) fn record_speed(&mut self, times: &Times, volume: Volume) {
        let steps = &times.step_ms;
        let median = statistics::median(steps);
        self.step_ms_median = median;
        self.step_ms_p90 = statistics::quantile(steps, 0.9);
        self.step_ms_min = statistics::quantile(steps, 0.0);
        self.step_ms_ci95 = statistics::median_interval(steps, 0.95).map(Interval::half_width);
        self.data_wait_ms = statistics::median(&times.data_wait_ms);
        self.samples_per_s = median.map(|ms| volume.samples_per_s(ms));
        self.tokens_per_s = median.and_then(|ms| volume.tokens_per_s(ms));
    }

    /// Of so many steps, what was counted in between, to one of them.
    pub(super) fn record_counts(&mut self, before: &Counts, after: &Counts, steps: u64) {
        let of_step = |count: fn(&Counts) -> u64| Some((count(after) - count(before)) / steps);
        self.to_host_bytes = of_step(|counts| counts.bytes_to_host);
        self.to_device_bytes = of_step(|counts| counts.bytes_to_device);
        self.batch_bytes = of_step(|counts| counts.batch_bytes);
        self.recompute_flops = of_step(|counts| counts.recompute_flops);
        self.hardware_flops = of_step(|counts| counts.flops);
        self.leaked_bytes = of_step(|counts| counts.leaked_bytes);
        self.micro_batches = of_step(|counts| counts.micro_batches);
    }

    pub(super) fn record_products(&mut self, sources: ProductSources) {
        let ProductSources { timed, cached, stored, untimed } = sources;
        self.products_timed = Some(timed);
        self.products_cached = Some(cached);
        self.products_stored = Some(stored);
        self.products_untimed = Some(untimed);
    }
}

/// `14 MiB were reserved but free in pieces, the largest 6 MiB`
pub fn in_pieces(Pieces { bytes, largest }: Pieces) -> Option<String> {
    let (all, largest) = (Bytes(bytes), Bytes(largest));
    (bytes > 0).then(|| format!("{all} were reserved but free in pieces, the largest {largest}"))
}

fn describe(found: &OutOfMemory, short: Short) -> String {
    let OutOfMemory { operation, value, .. } = found;
    let (phase, (short, other)) = (found.phase.name(), short.of(found.pool));
    let (of, of_other) = match found.pool.home() {
        Pool::Device => ("", "of host memory"),
        Pool::Host | Pool::Pinned => (" of host memory", "of the device's"),
    };
    let other = match other {
        0 => String::new(),
        bytes => format!(", and {} {of_other}", Bytes(bytes)),
    };
    format!("{phase}: no room for {value} of {operation}; the run is {}{of} short{other}", Bytes(short))
}
