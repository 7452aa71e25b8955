//! The outcome of a run: how it ended, and the measured figures.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::volume::Volume;
use crate::prepare::MatmulAlgorithmSources;
use base::documented;
use base::statistics::{self, Interval};
use base::units::Bytes;
use device::{ByRole, Ledger, Phase, Pool};
use memory::{FreeMemory, OutOfMemory, Shortfall};

/// How a run ended, and what it measured until then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub ended: Ended,
    /// Why training ended early, or why there are no times of operations.
    pub message: String,
    pub measured: Measured,
}

/// How training ended. Each is a result, not an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    #[default]
    Complete,
    OutOfMemory,
    Diverged,
}

documented! {
    /// The figures that a run measures, without those in files of their own. Each is a column of the results: a new
    /// figure is a field here, in the order of the columns, and a line where it is measured. Figures that were not
    /// reached are `None`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Measured {
        /// Live bytes of the device pool at the peak of the steady state: training and evaluation.
        pub peak_bytes: Option<u64>,
        /// Peak bytes of the device pool obtained from the system.
        pub reserved_peak_bytes: Option<u64>,
        /// External reading of the peak: growth of the process's resident set (CPU) or of the driver's counter (CUDA).
        pub external_peak_bytes: Option<u64>,
        /// Live bytes of the device pool at the peak before the first step.
        pub start_peak_bytes: Option<u64>,
        /// Live bytes at the peak by role, rounded as allocated. Their sum is `peak_bytes`.
        pub live: ByRole<Option<u64>>,
        /// Live bytes of the host pool at their peak.
        pub host_peak_bytes: Option<u64>,
        /// Median time of the timed steps, each a whole optimizer step with the wait for its batch.
        pub step_ms_median: Option<f64>,
        /// 90th percentile of the timed steps.
        pub step_ms_p90: Option<f64>,
        /// Tokens of a step, padding included, divided by its median time; if padded lengths vary, the mean tokens of a
        /// step divided by its mean time. Empty for models without tokens.
        pub tokens_per_s: Option<f64>,
        /// Samples of a step divided by its median time.
        pub samples_per_s: Option<f64>,
        /// Median time that the timed steps waited for their batch.
        pub data_wait_ms: Option<f64>,
        /// Loss of the first step, before its update.
        pub loss_first: Option<f64>,
        /// Loss of the last step.
        pub loss_last: Option<f64>,
        /// Loss over the evaluation split, after the last step. Empty without [evaluation].
        pub loss_eval: Option<f64>,
        /// Recomputed FLOPs of one step, as counted while it ran.
        pub recompute_flops: Option<u64>,
        /// The strategy's counted effects, in words.
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
        /// Peak bytes of the host pool obtained from the system.
        pub host_reserved_peak_bytes: Option<u64>,
        /// FLOPs of one step, recomputation included.
        pub hardware_flops: Option<u64>,
        /// Forward and backward passes of one step.
        pub micro_batches: Option<u64>,
        /// Phase in which it ran out of memory: start, forward, backward, update or evaluation.
        pub oom_phase: Option<String>,
        /// The operation whose value could not be allocated.
        pub oom_operation: Option<String>,
        /// The value that could not be allocated.
        pub oom_value: Option<String>,
        /// Bytes of the failed request.
        pub oom_requested_bytes: Option<u64>,
        /// Bytes that the limit is short of for the whole run, not for that request alone.
        pub oom_short_bytes: Option<u64>,
        /// One-minute load average when the timed steps began.
        pub load: Option<f64>,
        /// Clock of the fastest CPU core when the timed steps began.
        pub clock_mhz: Option<f64>,
        /// Digest of the parameters and optimizer states after the last step: equal for bitwise equal training. With
        /// `parallel.shard`, of the parameters.
        pub digest: String,
        /// Time from the start of the run's process to its first step, without compilation, the timing of matmul
        /// algorithms and priming.
        pub startup_ms: Option<f64>,
        /// FLOP/s of a large matmul in the run's precision, measured right after the first repeat.
        pub product_flops_per_s: Option<f64>,
        /// Bytes per second that the device reads and writes in its own memory, measured right after the first repeat.
        pub copy_bytes_per_s: Option<f64>,
        /// Whether 16-bit matmuls were computed in fp32, because the device has no 16-bit units: memory is real, speed
        /// is not that of a GPU.
        pub emulated: bool,
        /// Steps skipped because a gradient was not finite. Empty without a loss scale.
        pub skipped_steps: Option<u64>,
        /// The loss scale after the last step. Empty without one.
        pub loss_scale: Option<f64>,
        /// Time of one more step, in which the GPU timed each operation. The timed steps do not have that overhead.
        pub profiled_step_ms: Option<f64>,
        /// Granularity of the GPU driver's reservations, and so of `external_peak_bytes`.
        pub external_step_bytes: Option<u64>,
        /// Matmul shapes whose algorithms were timed for this run. Empty on the CPU, which has one algorithm.
        pub products_timed: Option<u64>,
        /// Matmul shapes whose algorithms were timed for another run and cached.
        pub products_cached: Option<u64>,
        /// Matmul shapes whose algorithms were stored with the run that this one repeats.
        pub products_stored: Option<u64>,
        /// Matmul shapes whose algorithms were not timed, for lack of memory.
        pub products_untimed: Option<u64>,
        /// Bytes transferred from the device to the host in one step.
        pub to_host_bytes: Option<u64>,
        /// Bytes transferred from the host to the device in one step, without batches.
        pub to_device_bytes: Option<u64>,
        /// The share of copy time, batches included, that computation did not wait for. On a GPU it is that of the
        /// profiled step, and empty if graphs are replayed, which cannot be timed by operation.
        pub copies_hidden: Option<f64>,
        /// The pool of the failed request.
        pub oom_pool: Option<String>,
        /// Bytes that the other pool's limit is short of for the whole run, if any.
        pub oom_other_short_bytes: Option<u64>,
        /// Peak bytes of pinned host memory, part of the host pool.
        pub pinned_peak_bytes: Option<u64>,
        /// Time from the run's first allocation, before its parameters are initialised, to the end of the first step.
        pub first_step_ms: Option<f64>,
        /// Peak bytes of device and host memory together obtained from the system.
        pub all_reserved_peak_bytes: Option<u64>,
        /// The share of parameters, stored in 16 bits without a master weight, that is bitwise the same after the last
        /// step as after the first, by a sample of each tensor except lookup tables. Their updates were rounded away.
        pub unchanged_parameters: Option<f64>,
        /// Bytes of device and host memory that each step never frees.
        pub leaked_bytes: Option<u64>,
        /// Bytes of the pool of the failed request that were reserved and free, but fragmented.
        pub oom_in_pieces_bytes: Option<u64>,
        /// The largest of the fragments of `oom_in_pieces_bytes`.
        pub oom_largest_piece_bytes: Option<u64>,
        /// The share of the timed steps in which the run's threads were ready to run, but waited for CPU cores that
        /// other programs used.
        pub cpu_wait: Option<f64>,
        /// Clock of the fastest CPU core after the timed steps.
        pub clock_after_mhz: Option<f64>,
        /// The share of padding among the tokens of all steps. Empty if samples are never padded.
        pub padding: Option<f64>,
        /// Bytes of the batch copied to the device in one step.
        pub batch_bytes: Option<u64>,
        /// The share of the workers' time for the batches of the timed steps that no step waited for. Empty without
        /// `loader.workers`.
        pub loading_hidden: Option<f64>,
        /// The share of steps whose batch was copied to the device during the step before. Empty unless
        /// `loader.prefetch` is 2 or more.
        pub batches_ahead: Option<f64>,
        /// The instruction set of the CPU kernels: plain, avx2, avx512, avx512_bf16 or amx. `digest` holds for it alone:
        /// with another, the same training differs in the last bits. Empty on a GPU.
        #[serde(default)]
        pub instruction_set: String,
        /// Optimizer step in which it ran out of memory, from 1. Empty in start-up and evaluations.
        pub oom_step: Option<u64>,
        /// Share of the evaluation split's rows whose largest logit is the target's, after the last step. Rows without a
        /// target do not count. Empty without [evaluation], and for models without classes or with tokens.
        pub accuracy: Option<f64>,
        /// Number of ranks, with `parallel`. Memory, FLOPs, copied bytes, waits, padding and `micro_batch` are those of one
        /// rank (the first, or the one that ran out of memory); `batch_size`, `threads` and speed those of all together.
        pub ranks: Option<usize>,
        /// Live bytes of the device pool at the peak of the steady state, of the rank with the largest.
        pub rank_peak_bytes: Option<u64>,
        /// Bytes that a rank sends to others in one step, in rings: in an all-reduce among n, 2 (n - 1) / n of the numbers, in
        /// all-gather and reduce-scatter half of that.
        pub sent_bytes: Option<u64>,
        /// Time of the exchanges of one timed step, on a card of the profiled step, with the wait for the last rank; without
        /// that of the loss.
        pub exchange_ms: Option<f64>,
        /// The share of that time that computation did not wait for.
        pub exchange_hidden: Option<f64>,
        /// Largest resident set of the run's process before its first allocation: program, data and, on a card, its context.
        /// `submit` requests it in addition to the predicted memory.
        pub process_bytes: Option<u64>,
    }
}

/// Times of the timed steps, and of their waits for batches.
#[derive(Default)]
pub(crate) struct StepTimes {
    pub(crate) step_ms: Vec<f64>,
    /// Tokens of each step, padding included. Empty for models without tokens.
    pub(crate) step_tokens: Vec<usize>,
    pub(crate) data_wait_ms: Vec<f64>,
    /// The workers' times for the batches. Empty without workers.
    pub(crate) loading_ms: Vec<f64>,
}

/// How the batches of the timed steps were loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loading {
    /// Worker threads.
    pub(crate) workers: usize,
    /// The share of step time spent waiting for batches.
    pub(crate) waited: f64,
    /// The share of the workers' time that no step waited for.
    pub(crate) hidden: Option<f64>,
}

impl Loading {
    pub(crate) fn new(workers: usize, times: &StepTimes) -> Loading {
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        let [steps, waited, took] =
            [&times.step_ms, &times.data_wait_ms, &times.loading_ms].map(|times| sum(times));
        let hidden = (took > 0.0).then(|| 1.0 - (waited / took).min(1.0));
        Loading { workers, waited: if steps > 0.0 { waited / steps } else { 0.0 }, hidden }
    }
}

impl Outcome {
    /// Out of memory after `steps` steps. The whole run lacks the bytes of `short`. The live bytes of the failed
    /// request are the run's peak.
    pub(crate) fn set_out_of_memory(&mut self, found: &OutOfMemory, short: Shortfall, steps: u64) {
        self.ended = Ended::OutOfMemory;
        self.message = describe(found, short);
        if found.leaked > 0 {
            let leaked = Bytes(found.leaked);
            let left =
                format!("; of the live bytes, {leaked} had been leaked by {steps} steps and the current one");
            self.message.push_str(&left);
        }
        if found.collected > 0 {
            let collected = Bytes(found.collected);
            self.message
                .push_str(&format!("; of the live bytes, {collected} had been collected by the evaluation"));
        }
        if let Some(pieces) = in_pieces(found.pieces) {
            self.message.push_str(&format!("; {pieces}"));
        }
        if found.pool == Pool::Device {
            self.measured.record_peak(&found.live);
        }
        self.measured.record_out_of_memory(found, short);
    }

    /// The profiled step ran out of memory. Training is over and keeps its result, without a timeline.
    pub(crate) fn set_no_timeline(&mut self) {
        if self.message.is_empty() {
            self.message = "no times of operations: the profiled step ran out of memory".to_owned();
        }
    }

    pub(crate) fn set_diverged(&mut self) {
        self.ended = Ended::Diverged;
        self.message = "the loss is not finite".to_owned();
    }
}

impl Measured {
    /// Sets the live bytes at the peak.
    pub(crate) fn record_peak(&mut self, live: &ByRole) {
        self.peak_bytes = Some(live.total());
        self.live = live.map(Some);
    }

    /// Sets the failed request, and the bytes that the limits are short of for the whole run.
    pub fn record_out_of_memory(&mut self, found: &OutOfMemory, short: Shortfall) {
        let (short, other) = short.of(found.pool);
        self.oom_phase = Some(found.phase.name().to_owned());
        self.oom_step = found.step;
        self.oom_operation = Some(found.operation.clone());
        self.oom_value = Some(found.value.clone());
        self.oom_requested_bytes = Some(found.requested);
        self.oom_short_bytes = Some(short);
        self.oom_pool = Some(found.pool.name().to_owned());
        self.oom_other_short_bytes = Some(other).filter(|bytes| *bytes > 0);
        let FreeMemory { bytes, largest } = found.pieces;
        self.oom_in_pieces_bytes = Some(bytes).filter(|bytes| *bytes > 0);
        self.oom_largest_piece_bytes = self.oom_in_pieces_bytes.map(|_| largest);
    }

    pub(crate) fn record_memory(&mut self, ledger: &Ledger) {
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

    /// Sets step times and throughput, for steps of this number of samples.
    pub(crate) fn record_speed(&mut self, times: &StepTimes, samples: usize) {
        let steps = &times.step_ms;
        let median = statistics::median(steps);
        self.step_ms_median = median;
        self.step_ms_p90 = statistics::quantile(steps, 0.9);
        self.step_ms_min = statistics::quantile(steps, 0.0);
        self.step_ms_ci95 = statistics::median_interval(steps, 0.95).map(Interval::half_width);
        self.data_wait_ms = statistics::median(&times.data_wait_ms);
        let tokens = times.step_tokens.first().copied();
        let are_alike = times.step_tokens.iter().all(|of_step| Some(*of_step) == tokens);
        // Steps of different lengths have no typical time.
        let ms = if are_alike { median } else { Some(steps.iter().sum::<f64>() / steps.len() as f64) };
        let tokens = tokens.map(|_| times.step_tokens.iter().sum::<usize>() / times.step_tokens.len());
        let volume = Volume { samples, tokens };
        self.samples_per_s = ms.map(|ms| volume.samples_per_s(ms));
        self.tokens_per_s = ms.and_then(|ms| volume.tokens_per_s(ms));
    }

    /// Sets the counts per step, from the counters before and after `steps` steps.
    pub(crate) fn record_counts(&mut self, before: &Counts, after: &Counts, steps: u64) {
        let per_step = |count: fn(&Counts) -> u64| Some((count(after) - count(before)) / steps);
        self.to_host_bytes = per_step(|counts| counts.bytes_to_host);
        self.to_device_bytes = per_step(|counts| counts.bytes_to_device);
        self.batch_bytes = per_step(|counts| counts.batch_bytes);
        self.recompute_flops = per_step(|counts| counts.recompute_flops);
        self.hardware_flops = per_step(|counts| counts.flops);
        self.leaked_bytes = per_step(|counts| counts.leaked_bytes);
        self.micro_batches = per_step(|counts| counts.micro_batches);
    }

    /// Exchanges during a number of steps, if the device times them: their duration, and the share that nothing waited for.
    pub(crate) fn record_exchanges(&mut self, exchanges: Option<(Duration, Option<f64>)>, steps: usize) {
        if let Some((took, hidden)) = exchanges {
            self.exchange_ms = Some(took.as_secs_f64() * 1e3 / steps as f64);
            self.exchange_hidden = hidden;
        }
    }

    pub(crate) fn record_products(&mut self, sources: MatmulAlgorithmSources) {
        let MatmulAlgorithmSources { timed, cached, stored, untimed } = sources;
        self.products_timed = Some(timed);
        self.products_cached = Some(cached);
        self.products_stored = Some(stored);
        self.products_untimed = Some(untimed);
    }
}

/// `14 MiB reserved but free in fragments, the largest 6 MiB`
pub fn in_pieces(FreeMemory { bytes, largest }: FreeMemory) -> Option<String> {
    let (all, largest) = (Bytes(bytes), Bytes(largest));
    (bytes > 0).then(|| format!("{all} reserved but free in fragments, the largest {largest}"))
}

fn describe(found: &OutOfMemory, short: Shortfall) -> String {
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
    let step = found.step.map(|step| format!("step {step}, ")).unwrap_or_default();
    format!("{step}{phase}: no room for {value} of {operation}; the run is {}{of} short{other}", Bytes(short))
}
