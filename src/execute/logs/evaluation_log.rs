//! `evaluations.csv`: a line for each evaluation.

use std::path::Path;

use super::line_file::LineFile;
use crate::error::RunError;

/// The file in a run's folder with a line for each evaluation. Missing without evaluations.
const EVALUATIONS_FILE: &str = "evaluations.csv";

pub(crate) struct EvaluationLog(LineFile);

impl EvaluationLog {
    pub(crate) fn create(folder: &Path) -> Result<EvaluationLog, RunError> {
        LineFile::create(&folder.join(EVALUATIONS_FILE), "step,loss").map(EvaluationLog)
    }

    /// Writes the mean loss after `step` steps.
    pub(crate) fn evaluation(&mut self, step: usize, loss: f64) -> Result<(), RunError> {
        self.0.add(&format!("{step},{loss}"))
    }
}
