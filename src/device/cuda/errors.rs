//! Calls into the card's libraries that fail.

use super::calls::{NO_SUCH_FUNCTION, Status};
use crate::DeviceError;

/// A call that did not succeed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failed {
    pub(super) call: String,
    /// The library's name for the code.
    pub(super) name: String,
    pub(super) code: u32,
    /// Whether nothing more can be done with the device: every later call fails too.
    pub(super) lost: bool,
}

impl Failed {
    /// Success, or which call failed and how. `name` is how the library calls a code.
    pub(super) fn check(
        call: &'static str,
        status: Status,
        name: impl FnOnce(Status) -> String,
    ) -> Result<(), Failed> {
        match status {
            0 => Ok(()),
            NO_SUCH_FUNCTION => Err(Failed::absent(call)),
            code => Err(Failed { call: call.to_owned(), name: name(code), code, lost: false }),
        }
    }

    /// The library is loaded, and has no function of that name.
    pub(super) fn absent(call: &'static str) -> Failed {
        let name = "this version of the library has no such function".to_owned();
        Failed { call: call.to_owned(), name, code: NO_SUCH_FUNCTION, lost: false }
    }

    /// Names the kernel that was to be launched.
    pub(super) fn of_kernel(self, kernel: &str) -> Failed {
        Failed { call: format!("{} of {kernel}", self.call), ..self }
    }
}

impl From<Failed> for DeviceError {
    fn from(failed: Failed) -> DeviceError {
        let Failed { call, name, code, lost } = failed;
        if lost {
            DeviceError::Lost(format!("{call} failed: {name} ({code})"))
        } else {
            DeviceError::Call { call, name, code }
        }
    }
}
