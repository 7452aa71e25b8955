//! `steps.csv`: a line for each step, written before the next step begins.

use std::path::Path;

use super::line_file::LineFile;
use crate::error::RunError;
use crate::metrics::Volume;

/// The file in a run's folder with a line for each step.
pub const STEPS_FILE: &str = "steps.csv";

/// Results and times of one optimizer step.
pub(crate) struct TimedStep {
    pub(crate) loss: f32,
    pub(crate) gradient_norm: Option<f32>,
    /// Loss scale of the next step.
    pub(crate) loss_scale: Option<f32>,
    pub(crate) ms: f64,
    pub(crate) data_wait_ms: f64,
    /// `None` for inference.
    pub(crate) learning_rate: Option<f32>,
}

/// `steps.csv`, written between steps.
pub(crate) struct StepLog(LineFile);

impl StepLog {
    pub(crate) fn create(folder: &Path) -> Result<StepLog, RunError> {
        let header = "step,loss,grad_norm,ms,tokens_per_s,live_bytes,data_wait_ms,loss_scale,samples_per_s,learning_rate";
        LineFile::create(&folder.join(STEPS_FILE), header).map(StepLog)
    }

    pub(crate) fn step(
        &mut self,
        step: usize,
        done: &TimedStep,
        volume: Volume,
        live: u64,
    ) -> Result<(), RunError> {
        let optional = |number: Option<f32>| number.map_or(String::new(), |number| number.to_string());
        let (norm, scale) = (optional(done.gradient_norm), optional(done.loss_scale));
        let rate = volume.tokens_per_s(done.ms).map_or(String::new(), |rate| format!("{rate:.1}"));
        let learning_rate = optional(done.learning_rate);
        let samples = volume.samples_per_s(done.ms);
        let TimedStep { loss, ms, data_wait_ms, .. } = done;
        self.0.add(&format!(
            "{step},{loss},{norm},{ms:.3},{rate},{live},{data_wait_ms:.3},{scale},{samples:.3},{learning_rate}"
        ))
    }
}
