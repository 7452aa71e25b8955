//! The result of one repeat of a run.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use base::documented;
use execute::Measured;

/// The outcome of a repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[default]
    Ok,
    /// Ran out of memory.
    Oom,
    /// The loss became infinite or NaN.
    Diverged,
    /// Invalid combination of keys, or unsupported on this device.
    Skipped,
    Timeout,
    Failed,
    Interrupted,
}

impl Status {
    /// Whether the next sweep keeps the result; others are retried.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Ok | Status::Oom | Status::Diverged | Status::Skipped)
    }
}

/// The name as in results: `oom`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

documented! {
    /// The planned properties of a run, and [`Measured`]. In `result.json` and in the CSV, all fields of both are
    /// columns of one flat record, in the order of [`columns`](super::columns).
    ///
    /// Column names carry units. Unknown values are `None`: an empty cell.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, remote = "Self")] // `columns` makes it flat
    pub struct Row {
        /// Name of the experiment.
        pub experiment: String,
        /// Digest of configuration, target and data; the name of the run's folder. Equal runs share it.
        pub run_id: String,
        /// Name of the strategy, with the keys swept inside it: `lean/accumulate=2`.
        pub strategy: String,
        /// Number of the repeat, from 1. Runs are interleaved within a repeat.
        pub repeat: usize,
        /// Outcome: ok, oom, diverged, skipped, timeout, failed or interrupted. `compare` ranks only ok rows.
        pub status: Status,
        /// Name of the target.
        pub device: String,
        /// Description of the model, with its sizes.
        pub model: String,
        /// Number of the model's parameters.
        pub parameters: Option<u64>,
        /// Samples per optimizer step, over all micro-batches.
        pub batch_size: Option<usize>,
        /// Samples per forward and backward pass.
        pub micro_batch: Option<usize>,
        /// Precision of matmuls: fp32, tf32, bf16 or fp16.
        pub precision: String,
        /// Prediction of `peak_bytes` before the run.
        pub predicted_peak_bytes: Option<u64>,
        /// Strategy keys without effect, separated by spaces.
        pub no_effect: String,
        /// Reason of the outcome, or another remark.
        pub message: String,
        /// Version of the program.
        pub version: String,
        /// Number of warm-up steps, which are not timed.
        pub warmup_steps: Option<usize>,
        /// Number of timed steps.
        pub steps: Option<usize>,
        /// Prediction of `reserved_peak_bytes` before the run.
        pub predicted_reserved_peak_bytes: Option<u64>,
        /// Memory limit of the run.
        pub limit_bytes: Option<u64>,
        /// Whether the limit was requested (true) or is the machine's own.
        pub limited: bool,
        /// Predicted largest micro-batch within the memory limit; 0 if none fits.
        pub fits_micro_batch: Option<usize>,
        /// FLOPs of one step, without recomputation.
        pub model_flops: Option<u64>,
        /// Number of compute threads.
        pub threads: Option<usize>,
        /// Digest of configuration and data, without the target: equal on all machines.
        pub configuration: String,
        /// Memory of the GPU context before the run's first allocation; of a rank, with NCCL's memory.
        pub context_bytes: Option<u64>,
        /// Baseline strategy of the experiment. Unknown in tables of older versions.
        #[serde(default)]
        pub baseline: String,
        /// Number of trained parameters. Unknown in tables of older versions.
        #[serde(default)]
        pub trainable_parameters: Option<u64>,
        /// Requested limit of host memory.
        #[serde(default)]
        pub host_limit_bytes: Option<u64>,
        /// If steps leak memory: predicted number of steps that complete before it runs out of memory.
        #[serde(default)]
        pub steps_until_oom: Option<u64>,
        /// Seed of parameters and batches.
        #[serde(default)]
        pub seed: Option<u64>,
        /// Random id of the sweep that measured the row. A sweep interleaves all runs of a repeat. Unknown in tables of
        /// older versions.
        #[serde(default)]
        pub sweep: String,
        /// Number of planned interim tests of whether the repeats suffice, if these decide how many there are.
        #[serde(default)]
        pub looks: Option<usize>,
        /// Estimated time of a step from a roofline over its operations; only in predictions, if device rates are
        /// known.
        #[serde(default)]
        pub estimated_step_ms: Option<f64>,
        /// Keys of the configuration that are not at their defaults, with their tables:
        /// `[train]; batch_size = 8; [train.optimizer.adamw]; lr = 0.001`. `compare` labels rows of an edited file by
        /// the keys that differ. Unknown in tables of older versions.
        #[serde(default)]
        pub settings: String,
        /// Predicted peak of PyTorch's `max_memory_allocated()` for the script of `export`; only for known cards.
        #[serde(default)]
        pub torch_peak_bytes: Option<u64>,
        /// Predicted peak of PyTorch's `max_memory_reserved()`, likewise.
        #[serde(default)]
        pub torch_reserved_peak_bytes: Option<u64>,
        /// Predicted largest micro-batch of PyTorch within the memory limit; 0 if none fits.
        #[serde(default)]
        pub torch_fits_micro_batch: Option<usize>,
        /// Whether the run fits in PyTorch: yes, only after cached memory was returned (retry), no, or why PyTorch's memory
        /// is not predicted.
        #[serde(default)]
        pub torch_fits: String,
        /// Smallest memory limit, context included, within which the run fits in PyTorch, after cached memory was returned if
        /// needed; only in plans with `--as pytorch`.
        #[serde(default)]
        pub torch_limit_bytes: Option<u64>,
        /// Predicted peak of live bytes of the device pool in the first optimizer step. Later steps need more if that
        /// step creates optimizer states, as with `init = "lazy"`.
        #[serde(default)]
        pub predicted_first_step_peak_bytes: Option<u64>,
        /// Estimated tokens per second at the largest micro-batch within the memory limit; only in predictions, if
        /// device rates are known.
        #[serde(default)]
        pub estimated_fits_tokens_per_s: Option<f64>,
        /// Dtype of the residual stream. Unknown in tables of older versions.
        #[serde(default)]
        pub stream_dtype: String,
        /// Dtype in which embedding tables are stored; likewise.
        #[serde(default)]
        pub table_dtype: String,
        /// The PyTorch program whose memory the columns `torch_` predict: its version, and the choices of `[plan]`.
        #[serde(default)]
        pub torch_program: String,
        /// Estimated time of the exchanges of a step between ranks, hidden by computation or not; only in predictions, if
        /// the target's rates between cards and nodes are known.
        #[serde(default)]
        pub estimated_exchange_ms: Option<f64>,
        /// Swept keys with their values, in the order of the axes. Each key is a column.
        #[serde(default)]
        pub axes: Vec<(String, String)>,
        /// Measurements; in predictions, the predicted values.
        #[serde(skip_deserializing)]
        pub measured: Measured,
    }
}

/// Gives access to measured columns as if they were fields of the row.
impl Deref for Row {
    type Target = Measured;

    fn deref(&self) -> &Measured {
        &self.measured
    }
}

impl DerefMut for Row {
    fn deref_mut(&mut self) -> &mut Measured {
        &mut self.measured
    }
}
