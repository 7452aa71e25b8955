//! Failed calls into the card's libraries.

use super::calls::{NO_SUCH_FUNCTION, Status};
use crate::DeviceError;

/// A failed library call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallError {
    pub(super) call: String,
    /// The library's name for the code.
    pub(super) name: String,
    pub(super) code: u32,
    /// Whether the device is lost: every later call fails too.
    pub(super) lost: bool,
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
            code => Err(CallError { call: call.to_owned(), name: name(code), code, lost: false }),
        }
    }

    /// The loaded library has no function of that name.
    pub(super) fn missing_function(call: &'static str) -> CallError {
        let name = "this version of the library does not have the function".to_owned();
        CallError { call: call.to_owned(), name, code: NO_SUCH_FUNCTION, lost: false }
    }

    /// Adds the kernel's name to the call.
    pub(super) fn with_kernel(self, kernel: &str) -> CallError {
        CallError { call: format!("{} of {kernel}", self.call), ..self }
    }
}

impl From<CallError> for DeviceError {
    fn from(failed: CallError) -> DeviceError {
        let CallError { call, name, code, lost } = failed;
        if lost {
            DeviceError::Lost(format!("{call} failed: {name} ({code})"))
        } else {
            DeviceError::Call { call, name, code }
        }
    }
}
