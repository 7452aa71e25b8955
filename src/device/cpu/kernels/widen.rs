//! Whole numbers in 32 bits.

use super::operands::Operands;
use ops::{CastIds, DType};

/// The ids of a batch are few beside all that is computed with them: one thread is enough.
pub(super) fn run(op: &CastIds, operands: &mut Operands) {
    let (output, input) = (operands.whole_numbers(0), operands.input_bytes(0));
    match operands.input_type(0).dtype {
        DType::U8 => widen(op, input.iter().map(|&number| u32::from(number)), u8::MAX.into(), output),
        _ => {
            let numbers = input.as_chunks().0.iter().map(|&bytes| u16::from_ne_bytes(bytes).into());
            widen(op, numbers, u16::MAX.into(), output);
        }
    }
}

fn widen(op: &CastIds, numbers: impl Iterator<Item = u32>, largest: u32, output: &mut [i32]) {
    for (wide, number) in output.iter_mut().zip(numbers) {
        *wide = if op.masked && number == largest { -1 } else { number as i32 };
    }
}
