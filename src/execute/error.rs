//! Errors of a run, and reasons for which training ends early.

use std::io;
use std::path::Path;

use base::regular;
use base::units::Bytes;
use compile::Violation;
use data::{DataError, WeightsError};
use device::{DeviceError, Pool};
use memory::{Failure, OutOfMemory};

/// An error that leaves a run without a result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Spec(#[from] spec::Error),
    #[error("{0} must contain exactly one run")]
    NotOneRun(String),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the device failed: {0}")]
    Device(DeviceError),
    /// The system refused memory that is within the limit. A retry may succeed.
    #[error(
        "refused by the system: {} for the {} pool, although within the limit; other programs, a control group or \
         `ulimit` leave less memory",
        if bytes.0 == 0 { "memory".to_owned() } else { format!("{bytes} more") },
        pool.name()
    )]
    Refused { pool: Pool, bytes: Bytes },
    #[error("cannot start a thread for loader.workers: {0}")]
    NoThread(io::Error),
    #[error("cannot join the other ranks: {0}")]
    NoGroup(io::Error),
    #[error("the data or the model's weights changed while the sweep ran; sweep again")]
    DataChanged,
    #[error("{file} is not a table of matmul algorithms: {error}")]
    Products { file: String, error: csv::Error },
    #[error("cannot read {file}: {}", regular::reason(error))]
    Read { file: String, error: io::Error },
    #[error("cannot write {file}: {error}")]
    Write { file: String, error: io::Error },
}

impl From<DeviceError> for RunError {
    fn from(error: DeviceError) -> RunError {
        match error {
            DeviceError::OutOfMemory { pool, bytes } => RunError::Refused { pool, bytes: Bytes(bytes) },
            error => RunError::Device(error),
        }
    }
}

/// Why training ends early.
pub(super) enum Stop {
    OutOfMemory(Box<OutOfMemory>),
    Error(RunError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        match failure {
            Failure::OutOfMemory(found) => Stop::OutOfMemory(found),
            Failure::Device(error) => Stop::Error(error.into()),
            Failure::Weights(error) => Stop::Error(error.into()),
        }
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Stop {
        Stop::Error(error.into())
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Stop {
        Stop::Error(error)
    }
}

pub(super) fn cannot_write(file: &Path, error: io::Error) -> RunError {
    RunError::Write { file: file.display().to_string(), error }
}
