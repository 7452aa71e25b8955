//! `evaluations.csv`: a line for each evaluation.

use std::path::Path;

use super::line_file::LineFile;
use crate::engine::Evaluated;
use crate::error::RunError;

/// The file in a run's folder with a line for each evaluation. Missing without evaluations.
const EVALUATIONS_FILE: &str = "evaluations.csv";

pub(crate) struct EvaluationLog(LineFile);

impl EvaluationLog {
    pub(crate) fn create(folder: &Path) -> Result<EvaluationLog, RunError> {
        LineFile::create(&folder.join(EVALUATIONS_FILE), "step,loss,accuracy").map(EvaluationLog)
    }

    /// Writes the means after `step` steps. The accuracy is empty if the loss has no classes.
    pub(crate) fn evaluation(&mut self, step: usize, mean: Evaluated) -> Result<(), RunError> {
        let accuracy = mean.accuracy.map_or(String::new(), |accuracy| accuracy.to_string());
        self.0.add(&format!("{step},{},{accuracy}", mean.loss))
    }
}
