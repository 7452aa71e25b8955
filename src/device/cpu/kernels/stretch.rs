//! Stretches of a long row of tokens.

use super::operands::Operands;
use ops::{DType, Stretch};

/// Samples' tokens are few beside all that is computed with them: one thread is enough.
pub(super) fn run(op: &Stretch, operands: &mut Operands) {
    let output = operands.whole_numbers(0);
    let places = operands.tokens(1).as_chunks().0;
    let dtype = operands.input_type(0).dtype;
    match dtype {
        DType::U8 => stretch(op, operands.input_bytes(0), places, output, |&token| i32::from(token)),
        DType::U16 => {
            let row = operands.input_bytes(0).as_chunks().0;
            stretch(op, row, places, output, |&token| i32::from(u16::from_ne_bytes(token)));
        }
        _ => stretch(op, operands.tokens(0), places, output, |&token| token),
    }
}

fn stretch<T>(op: &Stretch, row: &[T], places: &[[i32; 2]], output: &mut [i32], widened: impl Fn(&T) -> i32) {
    for (&[lower, upper], sample) in places.iter().zip(output.chunks_exact_mut(op.length)) {
        if op.masks && upper < 0 {
            sample.fill(-1);
            continue;
        }
        let upper = upper.cast_unsigned() & (u32::MAX >> 1);
        let place = u64::from(upper) << 32 | u64::from(lower.cast_unsigned());
        let first = usize::try_from(place).unwrap_or(usize::MAX).saturating_add(op.later).min(row.len());
        let tokens = row[first..].iter().map(&widened).chain(std::iter::repeat(-1));
        sample.iter_mut().zip(tokens).for_each(|(token, found)| *token = found);
    }
}
