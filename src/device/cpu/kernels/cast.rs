//! Numbers in another precision.

use super::float::{BUFFER, Float, with_float, write};
use super::operands::Operands;
use super::workers::{Parts, Workers};

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// Casts all inputs at once: most are too small for more than one thread.
pub(super) fn run<To: Float>(operands: &mut Operands, count: usize, workers: &Workers) {
    let outputs: Vec<Parts<To>> = (0..count).map(|index| Parts::new(operands.output(index))).collect();
    let operands = &*operands;
    let chunks = || {
        outputs.iter().enumerate().flat_map(|(index, output)| {
            let len = output.len();
            (0..len).step_by(CHUNK).map(move |start| (index, start..len.min(start + CHUNK)))
        })
    };
    workers.each(workers.threads(), |share| {
        for (index, range) in chunks().skip(share).step_by(workers.threads()) {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let output = unsafe { outputs[index].part(range.clone()) };
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
