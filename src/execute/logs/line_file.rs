//! A file in a run's folder that is appended line by line.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::error::{RunError, cannot_write};

/// Each line is written at once, without buffering.
pub(super) struct LineFile {
    file: File,
    name: String,
}

impl LineFile {
    pub(super) fn create(path: &Path, header: &str) -> Result<LineFile, RunError> {
        let file = File::create(path).map_err(|error| cannot_write(path, error))?;
        let mut lines = LineFile { file, name: path.display().to_string() };
        lines.add(header)?;
        Ok(lines)
    }

    pub(super) fn add(&mut self, line: &str) -> Result<(), RunError> {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| RunError::Write { file: self.name.clone(), error })
    }
}
