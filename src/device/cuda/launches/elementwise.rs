//! Elementwise operations.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{Add, Cast, DType, Scale};

use super::activation::add_and_activate;
use super::sizes::{BLOCK, blocks, by_dtype, count, pointer, size_argument, vector_len};
use super::tables::{TableEntry, each_table};

/// Vectors per thread of vectorised kernels.
const VECTORS: usize = 4;
/// Elements per block of the cast kernels.
const CAST_ELEMENTS: usize = 8192;
/// Elements per thread of the kernels that process one run of elements.
pub(super) const RUN_ELEMENTS: usize = 8;

/// Columns and rows per block of the kernels that process rows.
const TILE: [usize; 2] = [256, 8];
/// The limit on the second dimension of a grid. The kernels process further rows in a loop.
const MOST_ROW_TILES: u32 = 65_535;

/// The grid of a kernel that processes the rows of a matrix.
///
/// # Errors
/// Sizes beyond a grid's limits.
pub(super) fn row_grid(rows: usize, columns: usize) -> Result<[u32; 3], DeviceError> {
    Ok([blocks(columns, TILE[0])?, blocks(rows, TILE[1])?.min(MOST_ROW_TILES), 1])
}

const ADD: [&str; 3] = ["add_f32", "add_bf16", "add_f16"];
const SCALE: [&str; 3] = ["scale_f32", "scale_bf16", "scale_f16"];

pub(super) fn add(
    op: &Add,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let dtype = outputs[0].ty.dtype;
    match op.activation {
        None => binary(by_dtype(dtype, ADD)?, [&outputs[0], &inputs[0], &inputs[1]], launcher),
        Some(activation) => add_and_activate(activation, inputs, outputs, launcher),
    }
}

pub(super) fn scale(
    op: &Scale,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let name = by_dtype(outputs[0].ty.dtype, SCALE)?;
    unary(name, [&outputs[0], &inputs[0]], &[Argument::F32(op.factor)], launcher)
}

/// Copies a floating-point tensor.
pub(super) fn copy(to: &Operand, from: &Operand, launcher: &mut Launcher) -> Result<(), DeviceError> {
    unary(by_dtype(to.ty.dtype, SCALE)?, [to, from], &[Argument::F32(1.0)], launcher)
}

/// Launches a unary elementwise kernel: output, input, further arguments, and the number of elements.
pub(super) fn unary(
    name: &str,
    [y, x]: [&Operand; 2],
    further: &[Argument],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let elements = y.ty.elements();
    let arguments = [&[pointer(y), pointer(x)], further, &[count(elements)]].concat();
    let blocks = blocks(elements, BLOCK as usize * RUN_ELEMENTS)?;
    launcher.kernel(name, [blocks, 1, 1], BLOCK, 0, &arguments)
}

/// Launches a binary elementwise kernel: output first, then the two inputs.
pub(super) fn binary(
    name: &str,
    operands: [&Operand; 3],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [out, a, b] = operands;
    let elements = out.ty.elements();
    launcher.kernel(
        name,
        [blocks(elements, BLOCK as usize * VECTORS * vector_len(out.ty.dtype))?, 1, 1],
        BLOCK,
        0,
        &[pointer(out), pointer(a), pointer(b), count(elements)],
    )
}

/// Adds a bias of y's type to each row of y.
pub(super) fn add_bias(y: &Operand, bias: u64, launcher: &mut Launcher) -> Result<(), DeviceError> {
    let (rows, columns) = (y.ty.shape.rows(), y.ty.shape.last());
    launcher.kernel(
        by_dtype(y.ty.dtype, ["add_bias_f32", "add_bias_bf16", "add_bias_f16"])?,
        row_grid(rows, columns)?,
        BLOCK,
        0,
        &[pointer(y), Argument::Pointer(bias), size_argument(rows)?, size_argument(columns)?],
    )
}

pub(super) fn cast(
    op: &Cast,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    for from in [DType::F32, DType::BF16, DType::F16] {
        let names = match from {
            DType::BF16 => ["cast_bf16_f32", "cast_bf16_bf16", "cast_bf16_f16"],
            DType::F16 => ["cast_f16_f32", "cast_f16_bf16", "cast_f16_f16"],
            _ => ["cast_f32_f32", "cast_f32_bf16", "cast_f32_f16"],
        };
        let name = by_dtype(op.to, names)?;
        let pairs = inputs.iter().zip(outputs).filter(|(input, _)| input.ty.dtype == from);
        let work = pairs.map(|(input, output)| {
            let elements = input.ty.elements();
            let fields = [input.address, output.address, elements as u64];
            TableEntry { blocks: elements.div_ceil(CAST_ELEMENTS), fields }
        });
        each_table(work, |blocks, table| launcher.kernel(name, [blocks, 1, 1], BLOCK, 0, &[table]))?;
    }
    Ok(())
}
