//! Failed calls into the card's libraries.

use super::calls::{NO_SUCH_FUNCTION, Status};
use crate::{DeviceError, Pool};

/// A failed library call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallError {
    pub(super) call: String,
    /// The library's name for the code.
    pub(super) name: String,
    pub(super) code: u32,
    pub(super) effect: Effect,
}

/// The effect of a failed call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Effect {
    None,
    /// The call needed card memory that is not free; later calls may succeed.
    OutOfMemory,
    /// The device is lost: every later call fails too.
    Lost,
}

impl CallError {
    /// An error if the call failed. `name` returns the library's name for a code.
    pub(super) fn check(
        call: &'static str,
        status: Status,
        name: impl FnOnce(Status) -> String,
    ) -> Result<(), CallError> {
        match status {
            0 => Ok(()),
            NO_SUCH_FUNCTION => Err(CallError::missing_function(call)),
            code => Err(CallError { call: call.to_owned(), name: name(code), code, effect: Effect::None }),
        }
    }

    /// The loaded library has no function of that name.
    pub(super) fn missing_function(call: &'static str) -> CallError {
        let name = "this version of the library does not have the function".to_owned();
        CallError { call: call.to_owned(), name, code: NO_SUCH_FUNCTION, effect: Effect::None }
    }

    /// Adds the kernel's name to the call.
    pub(super) fn with_kernel(self, kernel: &str) -> CallError {
        CallError { call: format!("{} of {kernel}", self.call), ..self }
    }

    pub(super) fn is_out_of_memory(&self) -> bool {
        self.effect == Effect::OutOfMemory
    }
}

impl From<CallError> for DeviceError {
    fn from(failed: CallError) -> DeviceError {
        let CallError { call, name, code, effect } = failed;
        match effect {
            Effect::None => DeviceError::Call { call, name, code },
            // The libraries do not report the size of the request.
            Effect::OutOfMemory => DeviceError::OutOfMemory { pool: Pool::Device, bytes: 0 },
            Effect::Lost => DeviceError::Lost(format!("{call} failed: {name} ({code})")),
        }
    }
}
