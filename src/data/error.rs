//! Why a data set cannot be used, and what would work.

use std::fmt;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use super::Given;
use base::units::Bytes;

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
    #[error("the {} there {} empty", count(*files as u64, "file"), if *files == 1 { "is" } else { "are" })]
    Empty { files: usize },
    #[error("{} has {}, which are no whole number of {format}", path.display(), count(*bytes, "byte"))]
    OddLength { path: PathBuf, bytes: u64, format: &'static str },
    #[error("{} begins with a header of llm.c's of 1,024 bytes, and header = {header}", path.display())]
    Header { path: PathBuf, header: usize },
    #[error("{} has changed while it was trained on", path.display())]
    Changed { path: PathBuf },
    #[error("line {line} of {}: {message}", path.display())]
    Line { path: PathBuf, line: usize, message: String, help: String },
    #[error("{} is no text in UTF-8 from byte {at} on", path.display())]
    NotText { path: PathBuf, at: usize },
    #[error("cannot encode {}{}: {message}", line.map_or(String::new(), |line| format!("line {line} of ")), path.display())]
    NotEncoded { path: PathBuf, line: Option<usize>, message: String },
    #[error(
        "{}{} is one document of {bytes}, and at most {most} are encoded as one",
        line.map_or(String::new(), |line| format!("line {line} of ")),
        path.display()
    )]
    TooLong { path: PathBuf, line: Option<usize>, bytes: Bytes, most: Bytes },
    #[error("cannot read {}: {error}", path.display())]
    NoTokenizer { path: PathBuf, error: io::Error },
    #[error("{} is no tokenizer: {message}", path.display())]
    BadTokenizer { path: PathBuf, message: String },
    #[error("{} has no token `{token}`", path.display())]
    NoSuchToken {
        path: PathBuf,
        token: String,
        /// Those that it has beside words.
        special: Vec<String>,
    },
    #[error("there is no folder for encoded text: neither RUNNER_CACHE_DIR nor HOME is set")]
    NoCache,
    #[error("cannot keep encoded text in {}: {error}", folder.display())]
    Uncached { folder: PathBuf, error: io::Error },
    #[error("split = {split} is not a share of the data")]
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
        /// What they count.
        unit: &'static str,
        /// What there should be more of.
        material: &'static str,
        /// What the model says of how long samples are.
        length: Option<Given>,
        /// The largest split, to a hundredth, that leaves both sides enough, where it is to blame.
        largest_split: Option<f64>,
    },
    #[error(
        "an epoch of the training split is {}, fewer than a batch: train.batch_size = {batch_size}",
        count(*samples, "sample")
    )]
    NoWholeBatch { samples: u64, batch_size: usize },
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
    #[error("{} = {} is less than {}", asked.key, asked.count, in_data(*found, part, data))]
    OutOfBounds {
        data: &'static str,
        part: &'static str,
        /// What the model takes.
        asked: Given,
        found: Option<Given>,
    },
}

/// What samples are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Training,
    Evaluation,
}

/// The key that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// In full.
    Key(&'static str),
    /// One of the data set's.
    Data(&'static str),
    /// No single key: the data set as a whole.
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
            DataError::Empty { .. } => "name at least one file with something in it".into(),
            DataError::OddLength { .. } => {
                "name another format, or as header how many bytes come before the tokens".into()
            }
            DataError::Header { .. } => "write header = 1024".into(),
            DataError::Changed { .. } => "sweep again, and leave data alone that is trained on".into(),
            DataError::Line { help, .. } => help.clone(),
            DataError::TooLong { .. } => {
                "split it into files, or write what belongs together as lines of JSON, and name their field as jsonl".into()
            }
            DataError::NotText { .. } => "tokens = \"bytes\" takes any file".into(),
            DataError::NotEncoded { .. } => "use a tokenizer that has tokens for any text".into(),
            DataError::NoTokenizer { .. } | DataError::BadTokenizer { .. } => {
                "name the tokenizer.json of a model; relative paths start at the folder of the file that they are written in"
                    .into()
            }
            DataError::NoSuchToken { special, .. } if special.is_empty() => {
                "name one that it has, or leave `end` out".into()
            }
            DataError::NoSuchToken { special, .. } => {
                let some: Vec<_> = special.iter().take(5).map(|token| Some(format!("`{token}`"))).collect();
                format!("it has {}", either(some))
            }
            DataError::NoCache | DataError::Uncached { .. } => {
                "set RUNNER_CACHE_DIR to a folder that can be written to".into()
            }
            DataError::BadSplit { .. } => "use a number above 0, up to 1".into(),
            DataError::TooShort { material, length, largest_split, .. } => {
                let split = largest_split.map(|split| format!("a split of at most {split}"));
                let length = length.map(|length| format!("a shorter {}", short(length.key)));
                let material = Some(format!("more {material}"));
                format!("use {}", either([split, length, material]))
            }
            DataError::NoWholeBatch { samples, .. } => {
                format!("a batch_size of at most {samples} has whole batches, or last_batch = \"keep\" keeps this one")
            }
            DataError::OutOfBounds { found: Some(found), .. } => format!("{} and more work", found.count),
            DataError::NoPart { .. } | DataError::OtherType { .. } | DataError::OutOfBounds { .. } => {
                "use data that is made for the model, or another model".into()
            }
        }
    }

    /// Whether the data is not here, and nothing else is wrong.
    pub fn is_absence(&self) -> bool {
        match self {
            DataError::NoMatch { .. } => true,
            DataError::Unreadable { error, .. } | DataError::NoTokenizer { error, .. } => {
                error.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }

    /// The path or glob that the error is about, as it was given, if it is one of them.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DataError::NoMatch { pattern } | DataError::BadGlob { pattern, .. } => Some(Path::new(pattern)),
            DataError::Folder { path }
            | DataError::Unreadable { path, .. }
            | DataError::OddLength { path, .. }
            | DataError::Header { path, .. }
            | DataError::Line { path, .. }
            | DataError::NotText { path, .. }
            | DataError::TooLong { path, .. }
            | DataError::NotEncoded { path, .. }
            | DataError::NoTokenizer { path, .. }
            | DataError::Changed { path } => Some(path),
            _ => None,
        }
    }

    /// The keys, in full, that do not go together, those that are known.
    pub fn keys(&self) -> Vec<&'static str> {
        match self {
            DataError::OutOfBounds { asked, found, .. } => {
                iter::once(asked.key).chain(found.map(|found| found.key)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The key that the error is about.
    pub fn blame(&self) -> Blame {
        match self {
            DataError::TooShort { largest_split: Some(_), .. } | DataError::BadSplit { .. } => {
                Blame::Data("split")
            }
            DataError::TooShort { length: Some(given), .. } | DataError::OutOfBounds { asked: given, .. } => {
                Blame::Key(given.key)
            }
            DataError::NoWholeBatch { .. } => Blame::Key("train.batch_size"),
            DataError::TooShort { .. } => Blame::DataSet,
            DataError::NoPart { .. } | DataError::OtherType { .. } => Blame::DataSet,
            DataError::NoTokenizer { .. } | DataError::BadTokenizer { .. } => Blame::Data("tokens.file"),
            DataError::NoSuchToken { .. } => Blame::Data("tokens.end"),
            DataError::NoCache | DataError::Uncached { .. } => Blame::Data("tokens"),
            DataError::NoPaths
            | DataError::NoMatch { .. }
            | DataError::BadGlob { .. }
            | DataError::Folder { .. }
            | DataError::Unreadable { .. }
            | DataError::OddLength { .. }
            | DataError::Header { .. }
            | DataError::Changed { .. }
            | DataError::Line { .. }
            | DataError::NotText { .. }
            | DataError::TooLong { .. }
            | DataError::NotEncoded { .. }
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

/// "the 256 tokens of data.text"
fn in_data(found: Option<Given>, part: &str, data: &str) -> String {
    match found {
        Some(found) => format!("the {} {part} of data.{data}", found.count),
        None => format!("what data.{data} may have as `{part}`"),
    }
}

/// "a, b or c" of those that there are.
fn either(ways: impl IntoIterator<Item = Option<String>>) -> String {
    let ways: Vec<String> = ways.into_iter().flatten().collect();
    match ways.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => ways.concat(),
    }
}

/// The last part of a key.
fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn count(number: u64, noun: &str) -> String {
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
    fn messages_say_what_was_found_and_what_would_work() {
        let too_short = |split, found, context, largest_split| DataError::TooShort {
            split,
            found,
            least: context as u64 + 1,
            unit: "byte",
            material: "text",
            length: Some(Given { key: "model.transformer.context", count: context }),
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
