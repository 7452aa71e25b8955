//! What operations enqueue.

use super::launcher::{Launcher, Operand};
use crate::device::DeviceError;
use crate::ops::{Op, TypeError};

/// Enqueues an operation whose operands were checked. The workspace is (address, bytes), zeros where there is none.
pub(super) fn run(
    op: &Op,
    _inputs: &[Operand],
    _outputs: &[Operand],
    _workspace: (u64, u64),
    _launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    Err(TypeError { operation: op.name(), problem: "has no kernel on a CUDA device".to_owned() }.into())
}
