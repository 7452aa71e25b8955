//! Why a data set cannot be used, and what would work.

use std::io;
use std::path::{Path, PathBuf};

/// Each says what was found; [`DataError::help`] says what would work, and [`DataError::blame`] which key of the
/// experiment is to blame.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("no paths are given")]
    NoPaths,
    #[error("no file matches `{pattern}`")]
    NoMatch { pattern: String },
    #[error("`{pattern}` is not a glob: {message}")]
    BadGlob { pattern: String, message: String },
    #[error("{} is a folder", path.display())]
    Folder { path: PathBuf },
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the {} there {} empty", count(*files, "file"), if *files == 1 { "is" } else { "are" })]
    Empty { files: usize },
    #[error("split = {split} is not a share of the text")]
    BadSplit { split: f64 },
    #[error(
        "the training split has {}; context = {context} needs at least {}",
        in_bytes(*bytes),
        thousands(*context as u64 + 1)
    )]
    TrainingTooShort { bytes: u64, context: usize },
    #[error(
        "the evaluation split has {}; context = {context} needs at least {}",
        in_bytes(*bytes),
        thousands(*context as u64 + 1)
    )]
    EvaluationTooShort {
        bytes: u64,
        context: usize,
        /// The largest split, to a hundredth, that leaves both sides enough.
        largest_split: Option<f64>,
    },
    #[error(
        "the model asks for `{part}`, which data.{data} does not have: its samples have {}",
        in_words(parts)
    )]
    NoPart { data: &'static str, part: &'static str, parts: &'static [&'static str] },
    #[error("the model asks for `{part}` as {asked}, and data.{data} has it as {found}")]
    OtherType {
        data: &'static str,
        part: &'static str,
        /// Types.
        asked: String,
        found: String,
    },
}

/// The key that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// One of the model's, whatever the model.
    Model(&'static str),
    /// One of the data set's.
    Data(&'static str),
    /// No single key: the data set as a whole.
    DataSet,
}

impl DataError {
    /// What would work.
    pub fn help(&self) -> String {
        match self {
            DataError::NoPaths => "name at least one file or glob".into(),
            DataError::NoMatch { .. } => {
                "relative paths start at the folder of the file that they are written in".into()
            }
            DataError::BadGlob { .. } => "write `*`, `?`, `**` or `[a-z]`, and `[[]` for a bracket".into(),
            DataError::Folder { path } => format!("to read all files in it, write `{}/**/*`", path.display()),
            DataError::Unreadable { .. } => "check that the file is there and may be read".into(),
            DataError::Empty { .. } => "name at least one file with text in it".into(),
            DataError::BadSplit { .. } => "use a number above 0, up to 1".into(),
            DataError::EvaluationTooShort { largest_split: Some(split), .. } => {
                format!("use a split of at most {split}, a shorter context or more text")
            }
            DataError::TrainingTooShort { .. } | DataError::EvaluationTooShort { .. } => {
                "use a shorter context or more text".into()
            }
            DataError::NoPart { .. } | DataError::OtherType { .. } => {
                "use data that is made for the model, or another model".into()
            }
        }
    }

    /// The path or glob that the error is about, as it was given, if it is one of them.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DataError::NoMatch { pattern } | DataError::BadGlob { pattern, .. } => Some(Path::new(pattern)),
            DataError::Folder { path } | DataError::Unreadable { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The key that the error is about.
    pub fn blame(&self) -> Blame {
        match self {
            DataError::TrainingTooShort { .. } => Blame::Model("context"),
            DataError::EvaluationTooShort { largest_split: None, .. } => Blame::Model("context"),
            DataError::EvaluationTooShort { .. } | DataError::BadSplit { .. } => Blame::Data("split"),
            DataError::NoPart { .. } | DataError::OtherType { .. } => Blame::DataSet,
            DataError::NoPaths
            | DataError::NoMatch { .. }
            | DataError::BadGlob { .. }
            | DataError::Folder { .. }
            | DataError::Unreadable { .. }
            | DataError::Empty { .. } => Blame::Data("paths"),
        }
    }
}

/// "`tokens` and `targets`"
fn in_words(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        Some((only, _)) => only.clone(),
        None => "nothing".to_owned(),
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
        let error = DataError::TrainingTooShort { bytes: 1200, context: 2048 };
        assert_eq!(
            error.to_string(),
            "the training split has 1,200 bytes; context = 2048 needs at least 2,049"
        );
        assert_eq!(error.help(), "use a shorter context or more text");

        let error = DataError::EvaluationTooShort { bytes: 1, context: 64, largest_split: Some(0.93) };
        assert_eq!(error.to_string(), "the evaluation split has 1 byte; context = 64 needs at least 65");
        assert_eq!(error.help(), "use a split of at most 0.93, a shorter context or more text");

        assert_eq!(DataError::Empty { files: 1 }.to_string(), "the 1 file there is empty");
        assert_eq!(DataError::Empty { files: 2 }.to_string(), "the 2 files there are empty");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }
}
