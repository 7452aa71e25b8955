//! Rotary position embedding of queries and keys.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{Operation, Rotary, TypeError};

use super::sizes::{BLOCK, by_dtype, flag, pointer, size, size_argument};

/// Maximum channel pairs, the length of the kernel's frequency table.
const PAIRS: usize = 128;

/// # Errors
/// More channels are rotated than the kernel supports.
pub(super) fn run(
    op: &Rotary,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (qkv, rotated) = (&inputs[0], &outputs[0]);
    let mut frequencies = op.frequencies.of_channels(op.channels);
    if frequencies.len() > PAIRS {
        let problem =
            format!("CUDA devices rotate at most {} channels of a head, not {}", 2 * PAIRS, op.channels);
        return Err(TypeError { operation: op.name(), problem }.into());
    }
    frequencies.resize(PAIRS, 0.0);
    let bits = frequencies.as_chunks::<2>().0.iter();
    let words = bits.map(|[a, b]| u64::from(a.to_bits()) | u64::from(b.to_bits()) << 32);
    launcher.kernel(
        by_dtype(qkv.ty.dtype, ["rotary_f32", "rotary_bf16", "rotary_f16"])?,
        [size(qkv.ty.shape.rows())?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(rotated),
            pointer(qkv),
            Argument::Words(words.collect()),
            size_argument(qkv.ty.shape.dims()[1])?,
            size_argument(qkv.ty.shape.last())?,
            size_argument(op.rotated)?,
            size_argument(op.head)?,
            size_argument(op.channels)?,
            flag(op.inverse),
        ],
    )
}
