//! Whole numbers in 32 bits.

use super::operands::Operands;
use crate::ops::{DType, Widen};

/// The ids of a batch are few beside all that is computed with them: one thread is enough.
pub(super) fn run(op: &Widen, operands: &mut Operands) {
    let output = operands.whole_numbers(0);
    let input = operands.input_bytes(0);
    let widened = |number: u32, largest: u32| {
        if op.masked && number == largest { -1 } else { number as i32 }
    };
    match operands.input_type(0).dtype {
        DType::U8 => {
            let numbers = input.iter().map(|&number| u32::from(number));
            output
                .iter_mut()
                .zip(numbers)
                .for_each(|(wide, number)| *wide = widened(number, u32::from(u8::MAX)));
        }
        _ => {
            let numbers = input.as_chunks().0.iter().map(|&bytes| u32::from(u16::from_ne_bytes(bytes)));
            output
                .iter_mut()
                .zip(numbers)
                .for_each(|(wide, number)| *wide = widened(number, u32::from(u16::MAX)));
        }
    }
}
