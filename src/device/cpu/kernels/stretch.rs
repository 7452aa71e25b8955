//! Gathers the tokens of samples from one long row of tokens.

use super::operands::Operands;
use ops::{DType, GatherTokens};

/// Runs on one thread: copying tokens takes far less time than the operations that use them.
pub(super) fn run(op: &GatherTokens, operands: &mut Operands) {
    let output = operands.i32_output(0);
    let offsets = operands.i32_input(1).as_chunks().0;
    let dtype = operands.input_type(0).dtype;
    match dtype {
        DType::U8 => gather(op, operands.input_bytes(0), offsets, output, |&token| i32::from(token)),
        DType::U16 => {
            let row = operands.input_bytes(0).as_chunks().0;
            gather(op, row, offsets, output, |&token| i32::from(u16::from_ne_bytes(token)));
        }
        _ => gather(op, operands.i32_input(0), offsets, output, |&token| token),
    }
}

/// `offsets` are u64, each as its lower and upper half; the highest bit marks a missing sample.
fn gather<T>(
    op: &GatherTokens,
    row: &[T],
    offsets: &[[i32; 2]],
    output: &mut [i32],
    to_i32: impl Fn(&T) -> i32,
) {
    for (&[lower, upper], sample) in offsets.iter().zip(output.chunks_exact_mut(op.length)) {
        if op.masks && upper < 0 {
            sample.fill(-1);
            continue;
        }
        let upper = upper.cast_unsigned() & (u32::MAX >> 1);
        let offset = u64::from(upper) << 32 | u64::from(lower.cast_unsigned());
        let first = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(op.later).min(row.len());
        let tokens = row[first..].iter().map(&to_i32).chain(std::iter::repeat(-1));
        sample.iter_mut().zip(tokens).for_each(|(output, token)| *output = token);
    }
}
