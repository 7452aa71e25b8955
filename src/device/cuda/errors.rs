//! Calls into the card's libraries that fail.

use crate::device::DeviceError;

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
