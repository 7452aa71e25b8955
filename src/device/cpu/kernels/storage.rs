//! Quantization of weights to codes (int8 rows, NF4 blocks), and dequantization.

use std::ops::Range;

use super::float::{BUFFER, Float, write};
use super::operands::Operands;
use super::quantize::{Codebook, largest};
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};
use ops::{CodeFormat, Dequantize, DynamicMap, NF4, NF4_BLOCK, QUANTIZED_BLOCK, Quantize};

/// Elements per task, or one row if that is longer. These are the elements of one block of quantized scales.
const CHUNK: usize = NF4_BLOCK * QUANTIZED_BLOCK;

/// Bytes of codes per block.
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
            quantize_scales(scales, operands.output_codes(1), operands.output(2), workers);
        }
    }
}

pub(super) fn dequantize<T: Float>(op: &Dequantize, operands: &mut Operands, workers: &Workers) {
    match op.format {
        CodeFormat::Int8 => dequantize_rows::<T>(operands, workers),
        CodeFormat::Nf4 { double: false } => {
            let scales = operands.input::<f32>(1);
            dequantize_blocks::<T>(operands, workers, |blocks, block_scales| {
                block_scales.copy_from_slice(&scales[blocks]);
            });
        }
        CodeFormat::Nf4 { double: true } => {
            let (codes, scales) = (operands.input_codes(1), operands.input::<f32>(2));
            let level = workers.level();
            dequantize_blocks::<T>(operands, workers, |blocks, block_scales| {
                // The scales of a chunk are one quantized block.
                let scale = scales[1 + blocks.start / QUANTIZED_BLOCK];
                Codebook::for_map(DynamicMap::Signed).decode(level, &codes[blocks], scale, block_scales);
                block_scales.iter_mut().for_each(|scale| *scale += scales[0]);
            });
        }
    }
}

/// Calls `work(row, elements)` for each row.
fn for_each_row(operands: &Operands, workers: &Workers, work: impl Fn(usize, Range<usize>) + Sync) {
    let shape = operands.input_type(0).shape;
    let (rows, columns) = (shape.rows(), shape.last());
    workers.for_each_chunk(rows, (CHUNK / columns).max(1), |chunk| {
        chunk.for_each(|row| work(row, row * columns..(row + 1) * columns));
    });
}

fn quantize_rows(operands: &mut Operands, workers: &Workers) {
    let (weight, level) = (operands.input::<f32>(0), workers.level());
    let (codes, steps) =
        (SharedSlice::new(operands.output_codes(0)), SharedSlice::new(operands.output::<f32>(1)));
    for_each_row(operands, workers, |row, elements| {
        // SAFETY: rows do not overlap.
        #[allow(unsafe_code)]
        let (codes, step) =
            unsafe { (codes.range_mut(elements.clone()), &mut steps.range_mut(row..row + 1)[0]) };
        *step = scale(level, &weight[elements.clone()]) / 127.0;
        encode_int8(level, &weight[elements], *step, codes);
    });
}

fn dequantize_rows<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (codes, steps, level) = (operands.input_codes(0), operands.input::<f32>(1), workers.level());
    let output = SharedSlice::new(operands.output::<T>(0));
    for_each_row(operands, workers, |row, elements| {
        // SAFETY: rows do not overlap.
        #[allow(unsafe_code)]
        let output = unsafe { output.range_mut(elements.clone()) };
        let codes = &codes[elements];
        write(level, output, &mut [0.0; BUFFER], |run, wide| {
            decode_int8(level, &codes[run], steps[row], wide)
        });
    });
}

fn quantize_blocks(operands: &mut Operands, scales: &mut [f32], workers: &Workers) {
    let (weight, level) = (operands.input::<f32>(0), workers.level());
    let (codes, scales) = (SharedSlice::new(operands.output_codes(0)), SharedSlice::new(scales));
    workers.for_each_chunk(weight.len(), CHUNK, |elements| {
        let (bytes, blocks) = (bytes(&elements), blocks(&elements));
        // SAFETY: chunks do not overlap and begin at a block.
        #[allow(unsafe_code)]
        let (codes, scales) = unsafe { (codes.range_mut(bytes), scales.range_mut(blocks)) };
        let blocks = weight[elements].chunks(NF4_BLOCK).zip(codes.chunks_mut(NF4_BYTES));
        for ((weight, codes), scale) in blocks.zip(scales) {
            *scale = self::scale(level, weight);
            encode_block(level, weight, *scale, codes);
        }
    });
}

/// `scales_of` writes the scales of some blocks to a slice.
fn dequantize_blocks<T: Float>(
    operands: &mut Operands,
    workers: &Workers,
    scales_of: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let (codes, level) = (operands.input_codes(0), workers.level());
    let output = SharedSlice::new(operands.output::<T>(0));
    workers.for_each_chunk(output.len(), CHUNK, |elements| {
        let (codes, blocks) = (&codes[bytes(&elements)], blocks(&elements));
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let output = unsafe { output.range_mut(elements) };
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

/// The largest magnitude, or NaN if any element is NaN, so that it propagates.
fn scale(level: Level, weight: &[f32]) -> f32 {
    if weight.iter().any(|number| number.is_nan()) { f32::NAN } else { largest(level, weight) }
}

/// Quantizes the scales of blocks less their mean. Writes to `outer` the mean, then the scale of each block of scales.
fn quantize_scales(scales: &[f32], codes: &mut [u8], outer: &mut [f32], workers: &Workers) {
    let mean = (scales.iter().map(|&scale| f64::from(scale)).sum::<f64>() / scales.len() as f64) as f32;
    outer[0] = mean;
    let blocks = scales.chunks(QUANTIZED_BLOCK).zip(codes.chunks_mut(QUANTIZED_BLOCK));
    for ((scales, codes), outer) in blocks.zip(&mut outer[1..]) {
        let mut centered = [0.0; QUANTIZED_BLOCK];
        let centered = &mut centered[..scales.len()];
        centered.iter_mut().zip(scales).for_each(|(centered, scale)| *centered = scale - mean);
        *outer = Codebook::for_map(DynamicMap::Signed).encode(workers.level(), centered, codes);
    }
}

/// The bytes of the NF4 codes of some elements.
fn bytes(elements: &Range<usize>) -> Range<usize> {
    elements.start / 2..elements.end.div_ceil(2)
}

/// The NF4 blocks of some elements.
fn blocks(elements: &Range<usize>) -> Range<usize> {
    elements.start / NF4_BLOCK..elements.end.div_ceil(NF4_BLOCK)
}

simd! {
    fn encode_int8(weight: &[f32], step: f32, codes: &mut [u8]) {
        // Adding it rounds to an integer, which the low bits of the sum then hold: code 128 stands for 0.
        const MAGIC: f32 = 12_582_912.0 + 128.0;
        for (code, &number) in codes.iter_mut().zip(weight) {
            let steps = if step > 0.0 { number / step } else { 0.0 };
            // A subnormal step has few bits, so that the quotient may exceed 127.
            let steps = if steps > 127.0 { 127.0 } else { steps };
            let steps = if steps < -127.0 { -127.0 } else { steps };
            *code = (steps + MAGIC).to_bits() as u8;
        }
    }
}

simd! {
    fn decode_int8(codes: &[u8], step: f32, to: &mut [f32]) {
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
                // Ties go to the lower code.
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
