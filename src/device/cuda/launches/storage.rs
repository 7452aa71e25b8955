//! Quantization and dequantization of weights.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{CodeFormat, Dequantize, NF4_BLOCK, QUANTIZED_BLOCK, Quantize};

use super::elementwise::{RUN_ELEMENTS, row_grid};
use super::sizes::{BLOCK, blocks, by_dtype, count, pointer, size, size_argument};

/// Numbers per block of the quantization kernels: one NF4 block per warp.
const QUANTIZED: usize = NF4_BLOCK * BLOCK as usize / 32;

const DEQUANTIZE_ROWS: [&str; 3] = ["dequantize_rows_f32", "dequantize_rows_bf16", "dequantize_rows_f16"];
const DEQUANTIZE_BLOCKS: [&str; 3] =
    ["dequantize_blocks_f32", "dequantize_blocks_bf16", "dequantize_blocks_f16"];
const DEQUANTIZE_TWICE: [&str; 3] = ["dequantize_twice_f32", "dequantize_twice_bf16", "dequantize_twice_f16"];

pub(super) fn quantize(
    op: &Quantize,
    inputs: &[Operand],
    outputs: &[Operand],
    (scratch, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let weight = &inputs[0];
    if op.format == CodeFormat::Int8 {
        let rows = size(weight.ty.shape.rows())?;
        let columns = size_argument(weight.ty.shape.last())?;
        let arguments = [pointer(&outputs[0]), pointer(&outputs[1]), pointer(weight), columns];
        return launcher.kernel("quantize_rows", [rows, 1, 1], BLOCK, 0, &arguments);
    }
    let double = op.format == CodeFormat::Nf4 { double: true };
    let scales = if double { Argument::Pointer(scratch) } else { pointer(&outputs[1]) };
    let elements = weight.ty.elements();
    launcher.kernel(
        "quantize_blocks",
        [blocks(elements, QUANTIZED)?, 1, 1],
        BLOCK,
        0,
        &[pointer(&outputs[0]), scales.clone(), pointer(weight), count(elements)],
    )?;
    if !double {
        return Ok(());
    }
    let [codes, of_scales] = [&outputs[1], &outputs[2]];
    let scale_count = codes.ty.elements();
    let arguments = [pointer(of_scales), scales.clone(), count(scale_count)];
    launcher.kernel("mean_of_scales", [1, 1, 1], 1024, 0, &arguments)?;
    let arguments = [pointer(codes), pointer(of_scales), scales, count(scale_count)];
    launcher.kernel("quantize_scales", [blocks(scale_count, QUANTIZED_BLOCK)?, 1, 1], BLOCK, 0, &arguments)
}

pub(super) fn dequantize(
    op: &Dequantize,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let shape = outputs[0].ty.shape;
    let operands = std::iter::once(&outputs[0]).chain(inputs).map(pointer);
    let (names, grid, extents) = match op.format {
        CodeFormat::Int8 => {
            let [rows, columns] = [shape.rows(), shape.last()];
            let extents = vec![size_argument(rows)?, size_argument(columns)?];
            (DEQUANTIZE_ROWS, row_grid(rows, columns)?, extents)
        }
        CodeFormat::Nf4 { double } => {
            let names = if double { DEQUANTIZE_TWICE } else { DEQUANTIZE_BLOCKS };
            let blocks = blocks(shape.elements(), BLOCK as usize * RUN_ELEMENTS)?;
            (names, [blocks, 1, 1], vec![count(shape.elements())])
        }
    };
    let arguments: Vec<Argument> = operands.chain(extents).collect();
    launcher.kernel(by_dtype(op.to, names)?, grid, BLOCK, 0, &arguments)
}
