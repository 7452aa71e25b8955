//! Weights as codes, and back.

use std::ops::Range;

use super::float::{BUFFER, Float, write};
use super::operands::Operands;
use super::quantize::{Codes, largest};
use super::simd::{Level, simd};
use super::workers::{Parts, Workers};
use ops::{CodeFormat, Dequantize, DynamicMap, NF4, NF4_BLOCK, QUANTIZED_BLOCK, Quantize};

/// Elements that a thread takes at a time, or a row where that is longer: whole blocks, which a block of scales is of.
const CHUNK: usize = NF4_BLOCK * QUANTIZED_BLOCK;

/// Bytes of the codes of a block.
const NF4_BYTES: usize = NF4_BLOCK / 2;

pub(super) fn quantize(op: &Quantize, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    match op.format {
        CodeFormat::Int8 => quantize_rows(operands, workers),
        CodeFormat::Nf4 { double: false } => {
            let scales = operands.output(1);
            quantize_blocks(operands, scales, workers);
        }
        CodeFormat::Nf4 { double: true } => {
            let blocks = operands.input_type(0).elements().div_ceil(NF4_BLOCK);
            let scales = &mut scratch[..blocks];
            quantize_blocks(operands, scales, workers);
            quantize_scales(scales, operands.codes(1), operands.output(2), workers);
        }
    }
}

pub(super) fn dequantize<T: Float>(op: &Dequantize, operands: &mut Operands, workers: &Workers) {
    match op.format {
        CodeFormat::Int8 => dequantize_rows::<T>(operands, workers),
        CodeFormat::Nf4 { double: false } => {
            let scales = operands.input::<f32>(1);
            dequantize_blocks::<T>(operands, workers, |blocks, of_blocks| {
                of_blocks.copy_from_slice(&scales[blocks]);
            });
        }
        CodeFormat::Nf4 { double: true } => {
            let (codes, scales) = (operands.input_codes(1), operands.input::<f32>(2));
            let level = workers.level();
            dequantize_blocks::<T>(operands, workers, |blocks, of_blocks| {
                // A chunk's scales are one block of them.
                let scale = scales[1 + blocks.start / QUANTIZED_BLOCK];
                Codes::of(DynamicMap::Signed).decode(level, &codes[blocks], scale, of_blocks);
                of_blocks.iter_mut().for_each(|scale| *scale += scales[0]);
            });
        }
    }
}

/// Calls `work` for runs of whole rows.
fn rows(operands: &Operands, workers: &Workers, work: impl Fn(usize, Range<usize>) + Sync) {
    let shape = operands.input_type(0).shape;
    let (rows, columns) = (shape.rows(), shape.last());
    workers.chunks(rows, (CHUNK / columns).max(1), |run| {
        run.for_each(|row| work(row, row * columns..(row + 1) * columns));
    });
}

fn quantize_rows(operands: &mut Operands, workers: &Workers) {
    let (weight, level) = (operands.input::<f32>(0), workers.level());
    let (codes, steps) = (Parts::new(operands.codes(0)), Parts::new(operands.output::<f32>(1)));
    rows(operands, workers, |row, place| {
        // SAFETY: rows do not overlap.
        #[allow(unsafe_code)]
        let (codes, step) = unsafe { (codes.part(place.clone()), &mut steps.part(row..row + 1)[0]) };
        *step = scale(level, &weight[place.clone()]) / 127.0;
        count_steps(level, &weight[place], *step, codes);
    });
}

fn dequantize_rows<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (codes, steps, level) = (operands.input_codes(0), operands.input::<f32>(1), workers.level());
    let output = Parts::new(operands.output::<T>(0));
    rows(operands, workers, |row, place| {
        // SAFETY: rows do not overlap.
        #[allow(unsafe_code)]
        let output = unsafe { output.part(place.clone()) };
        let codes = &codes[place];
        write(level, output, &mut [0.0; BUFFER], |run, wide| {
            take_steps(level, &codes[run], steps[row], wide)
        });
    });
}

fn quantize_blocks(operands: &mut Operands, scales: &mut [f32], workers: &Workers) {
    let (weight, level) = (operands.input::<f32>(0), workers.level());
    let (codes, scales) = (Parts::new(operands.codes(0)), Parts::new(scales));
    workers.chunks(weight.len(), CHUNK, |place| {
        let (bytes, blocks) = (bytes(&place), blocks(&place));
        // SAFETY: chunks do not overlap, and begin with a block.
        #[allow(unsafe_code)]
        let (codes, scales) = unsafe { (codes.part(bytes), scales.part(blocks)) };
        let blocks = weight[place].chunks(NF4_BLOCK).zip(codes.chunks_mut(NF4_BYTES));
        for ((weight, codes), scale) in blocks.zip(scales) {
            *scale = self::scale(level, weight);
            encode_block(level, weight, *scale, codes);
        }
    });
}

/// `scales_of` gives the scales of some blocks.
fn dequantize_blocks<T: Float>(
    operands: &mut Operands,
    workers: &Workers,
    scales_of: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let (codes, level) = (operands.input_codes(0), workers.level());
    let output = Parts::new(operands.output::<T>(0));
    workers.chunks(output.len(), CHUNK, |place| {
        let (codes, blocks) = (&codes[bytes(&place)], blocks(&place));
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let output = unsafe { output.part(place) };
        let mut scales = [0.0; QUANTIZED_BLOCK];
        let scales = &mut scales[..blocks.len()];
        scales_of(blocks, scales);
        let mut wide = [0.0; NF4_BLOCK];
        let blocks = output.chunks_mut(NF4_BLOCK).zip(codes.chunks(NF4_BYTES));
        for ((output, codes), &scale) in blocks.zip(&*scales) {
            let wide = &mut wide[..output.len()];
            decode_block(level, codes, scale, wide);
            T::narrow(level, wide, output);
        }
    });
}

/// The largest magnitude; of what has no number among it none, so that it shows.
fn scale(level: Level, weight: &[f32]) -> f32 {
    if weight.iter().any(|number| number.is_nan()) { f32::NAN } else { largest(level, weight) }
}

/// The mean goes before the scales of the scales.
fn quantize_scales(scales: &[f32], codes: &mut [u8], of_scales: &mut [f32], workers: &Workers) {
    let mean = (scales.iter().map(|&scale| f64::from(scale)).sum::<f64>() / scales.len() as f64) as f32;
    of_scales[0] = mean;
    let blocks = scales.chunks(QUANTIZED_BLOCK).zip(codes.chunks_mut(QUANTIZED_BLOCK));
    for ((scales, codes), of_scales) in blocks.zip(&mut of_scales[1..]) {
        let mut left = [0.0; QUANTIZED_BLOCK];
        let left = &mut left[..scales.len()];
        left.iter_mut().zip(scales).for_each(|(left, scale)| *left = scale - mean);
        *of_scales = Codes::of(DynamicMap::Signed).encode(workers.level(), left, codes);
    }
}

/// Where the codes of a chunk lie.
fn bytes(elements: &Range<usize>) -> Range<usize> {
    elements.start / 2..elements.end.div_ceil(2)
}

fn blocks(elements: &Range<usize>) -> Range<usize> {
    elements.start / NF4_BLOCK..elements.end.div_ceil(NF4_BLOCK)
}

simd! {
    fn count_steps(weight: &[f32], step: f32, codes: &mut [u8]) {
        // What is added to it is rounded to a whole number, which its last bits then are: of no step, that of 0.
        const MAGNET: f32 = 12_582_912.0 + 128.0;
        for (code, &number) in codes.iter_mut().zip(weight) {
            let steps = if step > 0.0 { number / step } else { 0.0 };
            // Of subnormal numbers, a step is rounded far down.
            let steps = if steps > 127.0 { 127.0 } else { steps };
            let steps = if steps < -127.0 { -127.0 } else { steps };
            *code = (steps + MAGNET).to_bits() as u8;
        }
    }
}

simd! {
    fn take_steps(codes: &[u8], step: f32, to: &mut [f32]) {
        for (to, &code) in to.iter_mut().zip(codes) {
            *to = (f32::from(code) - 128.0) * step;
        }
    }
}

simd! {
    fn encode_block(weight: &[f32], scale: f32, codes: &mut [u8]) {
        let mut nearest = [0u8; NF4_BLOCK];
        for (code, &number) in nearest.iter_mut().zip(weight) {
            let share = if scale > 0.0 { number / scale } else { 0.0 };
            for pair in NF4.windows(2) {
                // Half way, the lower one.
                *code += u8::from(share > 0.5 * (pair[0] + pair[1]));
            }
        }
        for (byte, pair) in codes.iter_mut().zip(nearest.as_chunks::<2>().0) {
            *byte = pair[0] | pair[1] << 4;
        }
    }
}

simd! {
    fn decode_block(codes: &[u8], scale: f32, to: &mut [f32]) {
        for (to, &byte) in to.chunks_mut(2).zip(codes) {
            for (to, code) in to.iter_mut().zip([byte & 15, byte >> 4]) {
                *to = NF4[usize::from(code)] * scale;
            }
        }
    }
}
