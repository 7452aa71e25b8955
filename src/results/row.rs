//! One run's result: the schema of `result.json` and of the CSV.

use serde::{Deserialize, Serialize};

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[default]
    Ok,
    /// Ran out of memory.
    Oom,
    /// The loss stopped being finite.
    Diverged,
    /// The combination makes no sense, or not on this device.
    Skipped,
    Timeout,
    Failed,
    Interrupted,
}

impl Status {
    /// Final results are not tried again.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Ok | Status::Oom | Status::Diverged | Status::Skipped)
    }
}

/// Columns carry their units in their names. What is unknown is `None`, an empty cell. The order of the fields
/// is the order of the columns; the swept keys follow them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub experiment: String,
    pub run_id: String,
    pub strategy: String,
    pub repeat: usize,
    pub status: Status,
    pub device: String,
    pub model: String,
    pub parameters: Option<u64>,
    pub batch_size: Option<usize>,
    pub micro_batch: Option<usize>,
    pub precision: String,
    pub predicted_peak_bytes: Option<u64>,
    /// Live bytes of the device pool at the peak of the steady state: training and evaluation.
    pub peak_bytes: Option<u64>,
    /// Most bytes of the device pool asked of the system.
    pub reserved_peak_bytes: Option<u64>,
    /// Growth of the process's resident set (CPU) or of the driver's figure (CUDA).
    pub witness_peak_bytes: Option<u64>,
    pub start_peak_bytes: Option<u64>,
    /// From here to `communication_bytes`: what was live at the peak. They sum to `peak_bytes`.
    pub parameter_bytes: Option<u64>,
    pub master_weight_bytes: Option<u64>,
    pub gradient_bytes: Option<u64>,
    pub optimizer_bytes: Option<u64>,
    pub activation_bytes: Option<u64>,
    pub input_bytes: Option<u64>,
    pub workspace_bytes: Option<u64>,
    pub communication_bytes: Option<u64>,
    pub host_peak_bytes: Option<u64>,
    pub step_ms_median: Option<f64>,
    pub step_ms_p90: Option<f64>,
    pub tokens_per_s: Option<f64>,
    pub samples_per_s: Option<f64>,
    /// Median over the timed steps of what they waited for their batch.
    pub data_wait_ms: Option<f64>,
    pub loss_first: Option<f64>,
    pub loss_last: Option<f64>,
    /// Over the evaluation split, after the last step.
    pub loss_eval: Option<f64>,
    pub recompute_flops: Option<u64>,
    /// What the strategy really did, in words.
    pub receipt: String,
    /// Strategy keys that changed nothing, separated by spaces.
    pub no_effect: String,
    pub message: String,
    pub version: String,
    pub step_ms_min: Option<f64>,
    /// Half the width of the 95 % interval of the median.
    pub step_ms_ci95: Option<f64>,
    pub warmup_steps: Option<usize>,
    pub steps: Option<usize>,
    pub forward_peak_bytes: Option<u64>,
    pub backward_peak_bytes: Option<u64>,
    pub update_peak_bytes: Option<u64>,
    pub evaluation_peak_bytes: Option<u64>,
    pub predicted_reserved_peak_bytes: Option<u64>,
    pub host_reserved_peak_bytes: Option<u64>,
    /// The memory limit that the run kept to.
    pub limit_bytes: Option<u64>,
    /// Whether the limit was asked for, not the machine's own.
    pub limited: bool,
    /// The largest micro-batch that the limit allows, predicted.
    pub fits_micro_batch: Option<usize>,
    /// FLOPs of one step, without and with what was computed again.
    pub model_flops: Option<u64>,
    pub hardware_flops: Option<u64>,
    pub micro_batches: Option<u64>,
    pub oom_phase: Option<String>,
    pub oom_operation: Option<String>,
    pub oom_value: Option<String>,
    pub oom_requested_bytes: Option<u64>,
    pub oom_short_bytes: Option<u64>,
    pub threads: Option<usize>,
    /// One-minute load average when the timed steps began.
    pub load: Option<f64>,
    /// Of the processor when the timed steps began.
    pub clock_mhz: Option<f64>,
    /// Digest of the parameters and optimizer state after the last step.
    pub digest: String,
    /// Digest of the configuration and the data, without the target: what the run is, wherever it ran.
    pub configuration: String,
    /// From the beginning of the run's process to that of its first step.
    pub startup_ms: Option<f64>,
    /// What the device reached right after the run: FLOP/s of a large product in the run's precision, and bytes read and
    /// written per second in its own memory.
    pub product_flops_per_s: Option<f64>,
    pub copy_bytes_per_s: Option<f64>,
    /// Whether 16-bit numbers were multiplied in fp32, by a device without units for them: their memory is real, their
    /// speed is not a card's.
    #[serde(default)]
    pub emulated: bool,
    /// What a card took for itself before the run's first allocation.
    pub context_bytes: Option<u64>,
    /// Steps not taken because a gradient was not finite, and the loss scale after the last step.
    pub skipped_steps: Option<u64>,
    pub loss_scale: Option<f64>,
    /// Of one more step, in which a card noted when each operation was done; the timed ones are not charged with that.
    pub profiled_step_ms: Option<f64>,
    /// What a card's driver reserves at a time: its figure, `witness_peak_bytes`, is no finer.
    pub witness_step_bytes: Option<u64>,
    /// Shapes of products by where the choice of their algorithms came from: timed for this run, timed for another and kept
    /// in the cache, stored with the run that this one repeats, and not timed for want of memory. Unknown on the CPU,
    /// which has no choice.
    pub products_timed: Option<u64>,
    pub products_cached: Option<u64>,
    pub products_stored: Option<u64>,
    pub products_untimed: Option<u64>,
    /// The swept keys and their values, in the order of the axes. Each is a column of its own in the CSV.
    #[serde(default)]
    pub axes: Vec<(String, String)>,
}
