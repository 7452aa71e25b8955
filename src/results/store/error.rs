//! Errors of storing and reading results.

use std::io;
use std::path::{Path, PathBuf};

use base::regular;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot create the folder {path}: {error}: choose another with {option}", path = path.display())]
    Make { path: PathBuf, error: io::Error, option: &'static str },
    #[error("cannot write to {path}: {error}: choose another folder with {option}", path = path.display())]
    NotWritable { path: PathBuf, error: io::Error, option: &'static str },
    #[error("no room for results in {path}: {error}: free some, or choose another disk with {option}", path = path.display())]
    NoRoom { path: PathBuf, error: io::Error, option: &'static str },
    #[error("cannot write {path}: {error}", path = path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("{path} is not what {option} writes of this result: move it away, or choose another folder with {option}", path = path.display())]
    InTheWay { path: PathBuf, option: &'static str },
    #[error("cannot read {}: {}", path.display(), regular::reason(error))]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "{file} is not a result of this program: {problem}: remove {folder} to measure that run again",
        file = file.display(),
        folder = folder.display()
    )]
    Corrupt { file: PathBuf, folder: PathBuf, problem: String },
    #[error("{} is not a list of expected runs: {problem}: remove it, and the next sweep writes it again", file.display())]
    NoList { file: PathBuf, problem: String },
    #[error("{found} holds results where no sweep looks for them: move it to {place}", found = found.display(), place = place.display())]
    Misplaced { found: PathBuf, place: PathBuf },
    #[error(
        "{file} is the result of {result}: remove {folder} to measure the run that belongs there",
        file = file.display(),
        folder = folder.display()
    )]
    OfAnother { file: PathBuf, folder: PathBuf, result: String },
}

/// The option for the folder of results.
pub(super) const OUT: &str = "--out";

impl StoreError {
    /// The same error, for a folder given by another option.
    pub(super) fn of_option(self, option: &'static str) -> StoreError {
        match self {
            StoreError::Make { path, error, .. } => StoreError::Make { path, error, option },
            StoreError::NotWritable { path, error, .. } => StoreError::NotWritable { path, error, option },
            StoreError::NoRoom { path, error, .. } => StoreError::NoRoom { path, error, option },
            other => other,
        }
    }

    pub(super) fn make(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_path_buf();
        |error| {
            if is_full(&error) {
                StoreError::NoRoom { path, error, option: OUT }
            } else {
                StoreError::Make { path, error, option: OUT }
            }
        }
    }

    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_path_buf();
        |error| {
            if is_full(&error) {
                StoreError::NoRoom { path, error, option: OUT }
            } else {
                StoreError::Write { path, error }
            }
        }
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_path_buf();
        |error| StoreError::Read { path, error }
    }
}

/// Whether the disk or quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
