//! Casts between floating-point types.

use super::float::{BUFFER, Float, with_float, write};
use super::operands::Operands;
use super::workers::{SharedSlice, Workers};

/// Elements per task.
const CHUNK: usize = 1 << 14;

/// Casts all inputs in one parallel loop, because most are too small for more than one thread.
pub(super) fn run<To: Float>(operands: &mut Operands, count: usize, workers: &Workers) {
    let outputs: Vec<SharedSlice<To>> =
        (0..count).map(|index| SharedSlice::new(operands.output(index))).collect();
    let operands = &*operands;
    let chunks = || {
        outputs.iter().enumerate().flat_map(|(index, output)| {
            let len = output.len();
            (0..len).step_by(CHUNK).map(move |start| (index, start..len.min(start + CHUNK)))
        })
    };
    workers.for_each(workers.threads(), |first| {
        for (index, range) in chunks().skip(first).step_by(workers.threads()) {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let output = unsafe { outputs[index].range_mut(range.clone()) };
            with_float!(operands.input_type(index).dtype, From => {
                cast::<From, To>(&operands.input(index)[range], output, workers);
            });
        }
    });
}

fn cast<From: Float, To: Float>(from: &[From], to: &mut [To], workers: &Workers) {
    let level = workers.level();
    if let Some(from) = From::as_f32(from) {
        return To::narrow(level, from, to);
    }
    write(level, to, &mut [0.0; BUFFER], |run, wide| From::widen(level, &from[run], wide));
}
