//! Gathers samples from all samples of a data set.

use super::operands::Operands;
use ops::GatherSamples;

/// Runs on one thread: copying the samples of a batch takes far less time than the operations that use them.
pub(super) fn run(op: &GatherSamples, operands: &mut Operands) {
    let places = operands.i32_input(1).as_chunks().0;
    let (output, samples) = (operands.output_bytes(0), operands.input_bytes(0));
    let bytes = (output.len() / places.len().max(1)).max(1);
    for (&[lower, upper], output) in places.iter().zip(output.chunks_exact_mut(bytes)) {
        let index = u64::from(upper.cast_unsigned()) << 32 | u64::from(lower.cast_unsigned());
        // The mark of a missing sample exceeds any index.
        let sample = usize::try_from(index).ok().and_then(|index| samples.chunks_exact(bytes).nth(index));
        match sample {
            Some(sample) => output.copy_from_slice(sample),
            None => output.fill(if op.masks { u8::MAX } else { 0 }),
        }
    }
}
