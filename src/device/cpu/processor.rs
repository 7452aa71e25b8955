//! The host processor of a card: runs operations on host memory.

use super::kernels::{self, OPERAND_ALIGNMENT, Operand, Workers};
use crate::DeviceError;
use ops::{Op, TensorType};

/// A thread pool that runs one operation at a time.
pub(crate) struct HostProcessor {
    workers: Workers,
}

impl HostProcessor {
    /// Required alignment of operands, in bytes.
    pub(crate) const ALIGNMENT: u64 = OPERAND_ALIGNMENT;

    /// # Errors
    /// `Lost` if no thread can be started.
    pub(crate) fn new(threads: usize) -> Result<HostProcessor, DeviceError> {
        Ok(HostProcessor { workers: Workers::new(threads).map_err(DeviceError::Lost)? })
    }

    /// Runs an operation and returns when it is done.
    ///
    /// # Safety
    ///
    /// As for `kernels::run`; the workspace has the size that the operation declares for this number of threads.
    pub(crate) unsafe fn run(
        &self,
        op: &Op,
        inputs: &[(*mut u8, TensorType)],
        outputs: &[(*mut u8, TensorType)],
        workspace: Option<(*mut u8, usize)>,
    ) {
        let operand = |&(address, ty): &(*mut u8, TensorType)| Operand { address, ty };
        let [inputs, outputs] = [inputs, outputs].map(|all| all.iter().map(operand).collect::<Vec<_>>());
        // SAFETY: guaranteed by the caller.
        unsafe { kernels::run(op, &inputs, &outputs, workspace, &self.workers) };
    }
}
