//! placeholder
use crate::ops::{Op, TensorType};
pub(super) const PRODUCT_WORKSPACE_PER_THREAD: usize = 1 << 20;
#[derive(Clone, Copy)]
pub(super) struct Operand { pub(super) address: *mut u8, pub(super) ty: TensorType }
pub(super) struct Workers {}
impl Workers { pub(super) fn new(_threads: usize) -> Result<Workers, String> { Ok(Workers {}) } }
pub(super) unsafe fn run(_op: &Op, _inputs: &[Operand], _outputs: &[Operand], _workspace: Option<(*mut u8, usize)>, _workers: &Workers) {}
