//! `evaluations.csv`: a line for each evaluation.

use std::path::Path;

use super::error::RunError;
use super::line_file::LineFile;

/// The file in a run's folder with a line for each evaluation. Missing without evaluations.
pub const EVALUATIONS_FILE: &str = "evaluations.csv";

pub(super) struct EvaluationLog(LineFile);

impl EvaluationLog {
    pub(super) fn create(folder: &Path) -> Result<EvaluationLog, RunError> {
        LineFile::create(&folder.join(EVALUATIONS_FILE), "step,loss").map(EvaluationLog)
    }

    /// Writes the mean loss after `step` steps.
    pub(super) fn evaluation(&mut self, step: usize, loss: f64) -> Result<(), RunError> {
        self.0.add(&format!("{step},{loss}"))
    }
}
