//! Conversion of pixels to numbers.

use super::operands::Operands;
use super::workers::{SharedSlice, Workers};
use ops::CastPixels;

pub(super) fn run(op: &CastPixels, operands: &mut Operands, has_weights: bool, workers: &Workers) {
    let samples = operands.output_type(0).shape.dims()[0];
    let weights = has_weights.then(|| operands.input::<f32>(1));
    let pixels = operands.input_bytes(0);
    let output = SharedSlice::new(operands.output::<f32>(0));
    let length = pixels.len() / samples.max(1);
    let plane = (length / op.scale.channels()).max(1);
    // A task per sample: channels are not divided.
    workers.for_each_chunk(samples, 1, |range| {
        for sample in range {
            let elements = sample * length..(sample + 1) * length;
            // SAFETY: samples do not overlap.
            #[allow(unsafe_code)]
            let numbers = unsafe { output.range_mut(elements.clone()) };
            if weights.is_some_and(|weights| weights[sample] == 0.0) {
                numbers.fill(0.0);
                continue;
            }
            let planes = numbers.chunks_exact_mut(plane).zip(pixels[elements].chunks_exact(plane));
            for (channel, (numbers, pixels)) in planes.enumerate() {
                numbers
                    .iter_mut()
                    .zip(pixels)
                    .for_each(|(number, &pixel)| *number = op.scale.number(channel, pixel));
            }
        }
    });
}
