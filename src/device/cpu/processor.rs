//! The processor as it computes for a card, on memory of the host.

use super::kernels::{self, OPERAND_ALIGNMENT, Operand, Workers};
use crate::DeviceError;
use ops::{Op, TensorType};

/// Threads that work on one operation at a time.
pub(crate) struct HostProcessor {
    workers: Workers,
}

impl HostProcessor {
    /// Where operands have to begin, in bytes.
    pub(crate) const ALIGNMENT: u64 = OPERAND_ALIGNMENT;

    /// # Errors
    /// `Lost` if the system gives no threads.
    pub(crate) fn new(threads: usize) -> Result<HostProcessor, DeviceError> {
        Ok(HostProcessor { workers: Workers::new(threads).map_err(DeviceError::Lost)? })
    }

    /// Runs an operation and returns when it is done.
    ///
    /// # Safety
    ///
    /// As for `kernels::run`; the workspace is what the operation declares for as many threads.
    pub(crate) unsafe fn run(
        &self,
        op: &Op,
        inputs: &[(*mut u8, TensorType)],
        outputs: &[(*mut u8, TensorType)],
        workspace: Option<(*mut u8, usize)>,
    ) {
        let operand = |&(address, ty): &(*mut u8, TensorType)| Operand { address, ty };
        let [inputs, outputs] = [inputs, outputs].map(|all| all.iter().map(operand).collect::<Vec<_>>());
        // SAFETY: by the caller's promise.
        unsafe { kernels::run(op, &inputs, &outputs, workspace, &self.workers) };
    }
}
