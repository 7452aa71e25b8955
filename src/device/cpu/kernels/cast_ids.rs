//! Conversion of u8 and u16 ids to i32.

use super::operands::Operands;
use ops::{CastIds, DType};

/// Runs on one thread: converting the ids of a batch takes far less time than the operations that use them.
pub(super) fn run(op: &CastIds, operands: &mut Operands) {
    let (output, input) = (operands.i32_output(0), operands.input_bytes(0));
    match operands.input_type(0).dtype {
        DType::U8 => cast(op, input.iter().map(|&id| u32::from(id)), u8::MAX.into(), output),
        _ => {
            let ids = input.as_chunks().0.iter().map(|&bytes| u16::from_ne_bytes(bytes).into());
            cast(op, ids, u16::MAX.into(), output);
        }
    }
}

fn cast(op: &CastIds, ids: impl Iterator<Item = u32>, largest: u32, output: &mut [i32]) {
    for (output, id) in output.iter_mut().zip(ids) {
        *output = if op.masked && id == largest { -1 } else { id as i32 };
    }
}
