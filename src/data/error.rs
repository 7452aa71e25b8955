//! Why a data set cannot be used, and what would work.

use std::io;
use std::path::PathBuf;

/// Each says what was found and what would work; [`DataError::key`] says which key of the experiment to blame.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("no paths are given: name at least one file or glob")]
    NoPaths,
    #[error("no file matches `{pattern}`: check the folder and the ending")]
    NoMatch { pattern: String },
    #[error(
        "`{pattern}` is not a glob ({message}): write `*`, `?`, `**` or `[a-z]`, and `[[]` for a bracket"
    )]
    BadGlob { pattern: String, message: String },
    #[error("{path} is a folder: to read all files in it, write `{path}/**/*`", path = path.display())]
    Folder { path: PathBuf },
    #[error("cannot read {path}: {error}", path = path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the {files} there {are} empty: name at least one file with text in it", files = count(*files, "file"), are = if *files == 1 { "is" } else { "are" })]
    Empty { files: usize },
    #[error("split = {split} is not a share of the text: use a number above 0, up to 1")]
    BadSplit { split: f64 },
    #[error(
        "the training split has {have}; context = {context} needs at least {need}: use a shorter context or more text",
        have = in_bytes(*bytes),
        need = thousands(*context as u64 + 1)
    )]
    TrainingTooShort { bytes: u64, context: usize },
    #[error(
        "the evaluation split has {have}; context = {context} needs at least {need}: {advice}",
        have = in_bytes(*bytes),
        need = thousands(*context as u64 + 1),
        advice = match largest_split {
            Some(split) => format!("use a split of at most {split}, a shorter context or more text"),
            None => "use a shorter context or more text".to_string(),
        }
    )]
    EvaluationTooShort {
        bytes: u64,
        context: usize,
        /// The largest split, to a hundredth, that leaves both sides enough.
        largest_split: Option<f64>,
    },
}

impl DataError {
    /// The key that the error is about: `context` is the model's, whatever the model.
    pub fn key(&self) -> &'static str {
        match self {
            DataError::TrainingTooShort { .. } => "context",
            DataError::EvaluationTooShort { largest_split: Some(_), .. } | DataError::BadSplit { .. } => {
                "data.text.split"
            }
            DataError::EvaluationTooShort { largest_split: None, .. } => "context",
            _ => "data.text.paths",
        }
    }
}

fn in_bytes(number: u64) -> String {
    format!("{} {}", thousands(number), if number == 1 { "byte" } else { "bytes" })
}

fn count(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number as u64), if number == 1 { "" } else { "s" })
}

/// `1,200`
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_was_found_and_what_would_work() {
        assert_eq!(
            DataError::TrainingTooShort { bytes: 1200, context: 2048 }.to_string(),
            "the training split has 1,200 bytes; context = 2048 needs at least 2,049: use a shorter context or \
             more text"
        );
        assert_eq!(
            DataError::EvaluationTooShort { bytes: 1, context: 64, largest_split: Some(0.93) }.to_string(),
            "the evaluation split has 1 byte; context = 64 needs at least 65: use a split of at most 0.93, a \
             shorter context or more text"
        );
        assert_eq!(
            DataError::Empty { files: 1 }.to_string(),
            "the 1 file there is empty: name at least one file with text in it"
        );
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }
}
