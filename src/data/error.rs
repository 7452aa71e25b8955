//! Errors of data sets, with help.

use std::fmt;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use super::KeyedCount;
use super::text::EncoderFailure;
use base::units::Bytes;
use base::{globs, regular};

/// An unusable data set. [`DataError::help`] suggests a fix, and [`DataError::blame`] is the key of the experiment that
/// causes it.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("no paths are given")]
    NoPaths,
    #[error("no file matches `{pattern}`")]
    NoMatch { pattern: String },
    #[error("`{pattern}` is not a glob: {message}")]
    BadGlob { pattern: String, message: String },
    #[error(
        "`{pattern}` is too wide: its folders have more than {} entries, or its paths are too long",
        thousands(globs::MOST_ENTRIES as u64)
    )]
    TooManyFiles { pattern: String },
    #[error("{} is a folder", path.display())]
    Folder { path: PathBuf },
    #[error("cannot read {}: {}", path.display(), regular::reason(error))]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the {} found {} empty", count(*files as u64, "file"), if *files == 1 { "is" } else { "are" })]
    Empty { files: usize },
    #[error(
        "the {} found {} {}",
        count(*files as u64, "file"),
        if *files == 1 { "has" } else { "have" },
        match documents {
            0 => "no records".to_owned(),
            documents => format!("{}, all without tokens", count(*documents as u64, "document")),
        }
    )]
    NoTokens { files: usize, documents: usize },
    #[error("{} has {} of tokens, not a multiple of the size of {format}", path.display(), count(*bytes, "byte"))]
    OddLength { path: PathBuf, bytes: u64, format: &'static str },
    /// Contents that the data set cannot be made of.
    #[error("{} {problem}", path.display())]
    Unfit { path: PathBuf, problem: String, help: String },
    #[error("some tokens are no targets, which documents = \"joined\" cannot leave out")]
    MaskedRow,
    #[error("{} changed during the run", path.display())]
    Changed { path: PathBuf },
    #[error("line {line} of {}: {message}", path.display())]
    Line { path: PathBuf, line: usize, message: String, help: String },
    #[error(
        "cannot encode {}{} with {}: {failure}",
        line.map_or(String::new(), |line| format!("line {line} of ")),
        path.display(),
        tokenizer.display()
    )]
    NotEncoded { path: PathBuf, line: Option<usize>, tokenizer: PathBuf, failure: EncoderFailure },
    #[error(
        "{}{} is a document of {bytes}; the maximum is {most}",
        line.map_or(String::new(), |line| format!("line {line} of ")),
        path.display()
    )]
    TooLong { path: PathBuf, line: Option<usize>, bytes: Bytes, most: Bytes },
    #[error("cannot read {}: {}", path.display(), regular::reason(error))]
    NoTokenizer { path: PathBuf, error: io::Error },
    #[error("{} is not a tokenizer: {message}", path.display())]
    BadTokenizer { path: PathBuf, message: String },
    #[error("{} has no token `{token}`", path.display())]
    NoSuchToken {
        path: PathBuf,
        token: String,
        /// The tokenizer's special tokens.
        special: Vec<String>,
    },
    #[error("no cache folder for encoded text: neither RUNNER_CACHE_DIR nor HOME is set")]
    NoCache,
    #[error("cannot store encoded text in {}: {error}", folder.display())]
    Uncached { folder: PathBuf, error: io::Error },
    /// An error in the files for evaluation.
    #[error("{0}")]
    Evaluation(Box<DataError>),
    /// An error in the files of a key other than `paths`.
    #[error("{error}")]
    InKey { key: &'static str, error: Box<DataError> },
    #[error("split = {split} is not a fraction of the data")]
    BadSplit { split: f64 },
    #[error(
        "the {split} split has {}; {} needs at least {}",
        count(*found, unit),
        length.map_or("a sample".to_owned(), |length| format!("{} = {}", short(length.key), length.count)),
        thousands(*least)
    )]
    TooShort {
        split: Split,
        found: u64,
        least: u64,
        /// The unit of `found` and `least`.
        unit: &'static str,
        /// The material that is too short, such as text.
        material: &'static str,
        /// The model's key for the length of samples.
        length: Option<KeyedCount>,
        /// If the split is the cause: the largest split, in hundredths, that leaves enough on both sides.
        largest_split: Option<f64>,
    },
    #[error(
        "an epoch of the training split has {}, fewer than a batch: train.batch_size = {batch_size}",
        count(*samples, "sample")
    )]
    NoWholeBatch { samples: u64, batch_size: usize },
    #[error(
        "the model needs `{part}`, which data.{data} does not provide: its samples have {}",
        quoted_list(parts)
    )]
    NoPart { data: &'static str, part: &'static str, parts: &'static [&'static str] },
    #[error("the model needs `{part}` as {asked}, but data.{data} provides it as {found}")]
    OtherType {
        data: &'static str,
        part: &'static str,
        /// Tensor types.
        asked: String,
        found: String,
    },
    #[error("{} = {} is less than {}", asked.key, asked.count, describe_bound(*found, part, data))]
    OutOfBounds {
        data: &'static str,
        part: &'static str,
        /// The model's bound on the ids.
        asked: KeyedCount,
        found: Option<KeyedCount>,
    },
}

/// The purpose of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Training,
    Evaluation,
}

/// The key that causes an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKey {
    /// The full key.
    Key(&'static str),
    /// A key of the data set's table.
    Data(&'static str),
    /// The data set as a whole.
    DataSet,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Split::Training => "training",
            Split::Evaluation => "evaluation",
        })
    }
}

impl DataError {
    /// The same error in the files for evaluation.
    #[must_use]
    pub(super) fn in_evaluation(self) -> DataError {
        DataError::Evaluation(Box::new(self))
    }

    /// The same error in the files of this key of the data set's table.
    #[must_use]
    pub(super) fn in_key(self, key: &'static str) -> DataError {
        DataError::InKey { key, error: Box::new(self) }
    }

    /// How to fix it.
    pub fn help(&self) -> String {
        match self {
            DataError::Evaluation(error) | DataError::InKey { error, .. } => error.help(),
            DataError::NoPaths => "list at least one file or glob".into(),
            DataError::NoMatch { .. } => "relative paths are relative to the file that contains them".into(),
            DataError::BadGlob { .. } => "use `*`, `?`, `**` or `[a-z]`, and `[[]` for a bracket".into(),
            DataError::TooManyFiles { .. } => {
                "name a narrower folder, or join small files into larger ones".into()
            }
            DataError::Folder { path } => format!("to read all files in it, write `{}/**/*`", path.display()),
            DataError::Unreadable { .. } => "check that the file exists and is readable".into(),
            DataError::Empty { .. } => "list at least one file that is not empty".into(),
            DataError::NoTokens { .. } => {
                "list at least one file with text; with jsonl or template, its records must have some".into()
            }
            DataError::OddLength { .. } => {
                "use another format, or set header to the number of bytes before the tokens".into()
            }
            DataError::MaskedRow => "use documents = \"padded\" or \"packed\"".into(),
            DataError::Changed { .. } => "sweep again, and do not change the data during a run".into(),
            DataError::Line { help, .. } | DataError::Unfit { help, .. } => help.clone(),
            DataError::TooLong { .. } => {
                "split it into files, or write one JSON object per line and document, and set jsonl to its field".into()
            }
            DataError::NotEncoded { failure, .. } => match failure {
                EncoderFailure::Refused(_) => "use a tokenizer that has tokens for any text".into(),
                EncoderFailure::TooMuchMemory(_) | EncoderFailure::TooMuchTime(_) => {
                    "divide the document into shorter ones, or use another tokenizer".into()
                }
                _ => "use another tokenizer".into(),
            },
            DataError::NoTokenizer { .. } | DataError::BadTokenizer { .. } => {
                "use the tokenizer.json of a model; relative paths are relative to the file that contains them".into()
            }
            DataError::NoSuchToken { special, .. } if special.is_empty() => {
                "use one of its tokens, or omit `end`".into()
            }
            DataError::NoSuchToken { special, .. } => {
                let some: Vec<_> = special.iter().take(5).map(|token| Some(format!("`{token}`"))).collect();
                format!("use {}", either(some))
            }
            DataError::NoCache | DataError::Uncached { .. } => {
                "set RUNNER_CACHE_DIR to a writable folder".into()
            }
            DataError::BadSplit { .. } => "use a number above 0, up to 1".into(),
            DataError::TooShort { material, length, largest_split, .. } => {
                let split = largest_split.map(|split| format!("a split of at most {split}"));
                let length = length.map(|length| format!("a shorter {}", short(length.key)));
                let material = Some(format!("more {material}"));
                format!("use {}", either([split, length, material]))
            }
            DataError::NoWholeBatch { samples, .. } => {
                format!("use a batch_size of at most {samples}, or last_batch = \"keep\"")
            }
            DataError::OutOfBounds { found: Some(found), .. } => format!("use at least {}", found.count),
            DataError::NoPart { .. } | DataError::OtherType { .. } | DataError::OutOfBounds { .. } => {
                "use data that suits the model, or another model".into()
            }
        }
    }

    /// Whether the only problem is that the data does not exist on this machine.
    pub fn is_absence(&self) -> bool {
        match self {
            DataError::Evaluation(error) | DataError::InKey { error, .. } => error.is_absence(),
            DataError::NoMatch { .. } => true,
            DataError::Unreadable { error, .. } | DataError::NoTokenizer { error, .. } => {
                error.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }

    /// The path or glob that the error concerns, as given in the experiment.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DataError::Evaluation(error) | DataError::InKey { error, .. } => error.path(),
            DataError::NoMatch { pattern }
            | DataError::BadGlob { pattern, .. }
            | DataError::TooManyFiles { pattern } => Some(Path::new(pattern)),
            DataError::Folder { path }
            | DataError::Unreadable { path, .. }
            | DataError::OddLength { path, .. }
            | DataError::Unfit { path, .. }
            | DataError::Line { path, .. }
            | DataError::TooLong { path, .. }
            | DataError::NotEncoded { path, .. }
            | DataError::NoTokenizer { path, .. }
            | DataError::Changed { path } => Some(path),
            _ => None,
        }
    }

    /// The full keys whose values conflict, as far as they are known.
    pub fn keys(&self) -> Vec<&'static str> {
        match self {
            DataError::OutOfBounds { asked, found, .. } => {
                iter::once(asked.key).chain(found.map(|found| found.key)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The key that causes the error.
    pub fn blame(&self) -> ErrorKey {
        match self {
            DataError::Evaluation(error) => match error.blame() {
                ErrorKey::Data("paths") => ErrorKey::Data("evaluate"),
                other => other,
            },
            DataError::InKey { key, .. } => ErrorKey::Data(key),
            DataError::TooShort { largest_split: Some(_), .. } | DataError::BadSplit { .. } => {
                ErrorKey::Data("split")
            }
            DataError::TooShort { length: Some(given), .. } | DataError::OutOfBounds { asked: given, .. } => {
                ErrorKey::Key(given.key)
            }
            DataError::NoWholeBatch { .. } => ErrorKey::Key("train.batch_size"),
            DataError::TooShort { .. } => ErrorKey::DataSet,
            DataError::NoPart { .. } | DataError::OtherType { .. } => ErrorKey::DataSet,
            DataError::NoTokenizer { .. } | DataError::BadTokenizer { .. } => ErrorKey::Data("tokens.file"),
            DataError::NoSuchToken { .. } => ErrorKey::Data("tokens.end"),
            DataError::MaskedRow => ErrorKey::Data("documents"),
            DataError::NoCache | DataError::Uncached { .. } => ErrorKey::Data("tokens"),
            DataError::NoPaths
            | DataError::NoMatch { .. }
            | DataError::BadGlob { .. }
            | DataError::TooManyFiles { .. }
            | DataError::Folder { .. }
            | DataError::Unreadable { .. }
            | DataError::OddLength { .. }
            | DataError::Unfit { .. }
            | DataError::Changed { .. }
            | DataError::Line { .. }
            | DataError::TooLong { .. }
            | DataError::NotEncoded { .. }
            | DataError::Empty { .. }
            | DataError::NoTokens { .. } => ErrorKey::Data("paths"),
        }
    }
}

/// "`tokens` and `targets`"
fn quoted_list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        Some((only, _)) => only.clone(),
        None => "nothing".to_owned(),
    }
}

/// "the 256 tokens of data.text"
fn describe_bound(found: Option<KeyedCount>, part: &str, data: &str) -> String {
    match found {
        Some(found) => format!("the {} {part} of data.{data}", found.count),
        None => format!("the unbounded `{part}` of data.{data}"),
    }
}

/// "a, b or c" of the options that are `Some`.
fn either(options: impl IntoIterator<Item = Option<String>>) -> String {
    let options: Vec<String> = options.into_iter().flatten().collect();
    match options.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => options.concat(),
    }
}

/// The last part of a key.
fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

pub(super) fn count(number: u64, noun: &str) -> String {
    let (first, rest) =
        noun.split_once(' ').map_or((noun, String::new()), |(first, rest)| (first, format!(" {rest}")));
    format!("{} {first}{}{rest}", thousands(number), if number == 1 { "" } else { "s" })
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
    fn messages_report_counts_and_help() {
        let too_short = |split, found, context, largest_split| DataError::TooShort {
            split,
            found,
            least: context as u64 + 1,
            unit: "byte",
            material: "text",
            length: Some(KeyedCount { key: "model.transformer.context", count: context }),
            largest_split,
        };
        let error = too_short(Split::Training, 1200, 2048, None);
        assert_eq!(
            error.to_string(),
            "the training split has 1,200 bytes; context = 2048 needs at least 2,049"
        );
        assert_eq!(error.help(), "use a shorter context or more text");

        let error = too_short(Split::Evaluation, 1, 64, Some(0.93));
        assert_eq!(error.to_string(), "the evaluation split has 1 byte; context = 64 needs at least 65");
        assert_eq!(error.help(), "use a split of at most 0.93, a shorter context or more text");

        assert_eq!(DataError::Empty { files: 1 }.to_string(), "the 1 file found is empty");
        assert_eq!(DataError::Empty { files: 2 }.to_string(), "the 2 files found are empty");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }
}
