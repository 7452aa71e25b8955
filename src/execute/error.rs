//! Why a run has no result, or ends before its end.

use std::io;
use std::path::Path;

use base::units::Bytes;
use compile::Violation;
use data::{DataError, WeightsError};
use device::{DeviceError, Pool};
use memory::{Failure, OutOfMemory};

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Spec(#[from] spec::Error),
    #[error("{0} does not hold exactly one run")]
    NotOneRun(String),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the device failed: {0}")]
    Device(DeviceError),
    /// Out of memory that the limit has room for, so that another time it may be there.
    #[error(
        "refused by the system: {bytes} more for the {} pool, which the limit has room for; what else runs here, a \
         control group or `ulimit` leaves less",
        pool.name()
    )]
    Refused { pool: Pool, bytes: Bytes },
    #[error("the system gives no thread for loader.workers: {0}")]
    NoThread(io::Error),
    #[error("the data, or what parameters start from, changed while the sweep ran; sweep again")]
    DataChanged,
    #[error("{file} is no table of products: {error}")]
    Products { file: String, error: csv::Error },
    #[error("cannot read {file}: {error}")]
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

/// What ends training early.
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
