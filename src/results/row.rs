//! One run's result.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use base::documented;
use execute::Measured;

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

documented! {
    /// What is known of a run before it starts, and [`Measured`]. Written down, in `result.json` and in the CSV, all
    /// fields of both are columns of one flat record, in the order that [`columns`](super::columns) gives them.
    ///
    /// Columns carry their units in their names. What is unknown is `None`, an empty cell.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, remote = "Self")] // `columns` makes it flat
    pub struct Row {
        /// The experiment's name, as its file says.
        pub experiment: String,
        /// Digest of configuration, target and data: names the run's folder. Runs that are equal share it.
        pub run_id: String,
        /// The strategy's name, with what is swept inside it: `lean/accumulate=2`.
        pub strategy: String,
        /// The repeat's number, from 1. Repeats of one number were measured in turns.
        pub repeat: usize,
        /// How it ended: ok, oom, diverged, skipped, timeout, failed or interrupted. `compare` ranks those that are ok.
        pub status: Status,
        /// The target's name.
        pub device: String,
        /// The model in words, with its sizes.
        pub model: String,
        /// How many numbers the model has.
        pub parameters: Option<u64>,
        /// Samples of one optimizer step, whatever the micro-batches.
        pub batch_size: Option<usize>,
        /// Samples of one forward and backward pass.
        pub micro_batch: Option<usize>,
        /// Precision of matrix work: fp32, tf32, bf16 or fp16.
        pub precision: String,
        /// What was predicted of `peak_bytes` before the run.
        pub predicted_peak_bytes: Option<u64>,
        /// Strategy keys that changed nothing, separated by spaces.
        pub no_effect: String,
        /// Why it ended as it did, or what else there is to say.
        pub message: String,
        /// The program's version.
        pub version: String,
        /// Steps before those that are timed.
        pub warmup_steps: Option<usize>,
        /// Steps that are timed.
        pub steps: Option<usize>,
        /// What was predicted of `reserved_peak_bytes` before the run.
        pub predicted_reserved_peak_bytes: Option<u64>,
        /// The memory limit that the run kept to.
        pub limit_bytes: Option<u64>,
        /// Whether the limit was asked for, not the machine's own.
        pub limited: bool,
        /// The largest micro-batch that the limit allows, predicted; 0 if none does.
        pub fits_micro_batch: Option<usize>,
        /// FLOPs of one step, without what is computed again.
        pub model_flops: Option<u64>,
        /// Threads that compute.
        pub threads: Option<usize>,
        /// Digest of the configuration and the data, without the target: what the run is, wherever it ran.
        pub configuration: String,
        /// What a card took for itself before the run's first allocation.
        pub context_bytes: Option<u64>,
        /// The strategy that the experiment's ratios are against. Unknown in tables of older versions.
        #[serde(default)]
        pub baseline: String,
        /// How many of the model's parameters are trained. Unknown in tables of older versions.
        #[serde(default)]
        pub trainable_parameters: Option<u64>,
        /// The limit on the host's memory, where one was asked for.
        #[serde(default)]
        pub host_limit_bytes: Option<u64>,
        /// Where steps leave something behind: how many the limit has room for, predicted.
        #[serde(default)]
        pub steps_until_oom: Option<u64>,
        /// What all of its parameters and batches are drawn from.
        #[serde(default)]
        pub seed: Option<u64>,
        /// The sweep that measured it, by a random name: it measured all runs of a repeat in turns. Unknown in tables of
        /// older versions.
        #[serde(default)]
        pub sweep: String,
        /// How often it was looked at whether its repeats are enough, where that decides how many there are.
        #[serde(default)]
        pub looks: Option<usize>,
        /// In a table of predictions: what a step would take, by a roofline over its operations. An estimate, where rates are known.
    #[serde(default)]
    pub estimated_step_ms: Option<f64>,
    /// Value of a swept key, in the order of the axes: each is a column of its own.
        #[serde(default)]
        pub axes: Vec<(String, String)>,
        /// In a table of predictions: what is predicted of it.
        #[serde(skip_deserializing)]
        pub measured: Measured,
    }
}

/// The columns of a row are read alike, whichever part fills them in.
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
