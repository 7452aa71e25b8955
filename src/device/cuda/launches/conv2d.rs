//! Convolutions: matmuls of slices of patches.

use std::ops::Range;

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use crate::cuda::matmul::{Epilogue, Matmul, Matrix};
use ops::{
    Conv2d, Conv2dInputGradient, Conv2dWeightGradient, ConvWorkspace, Convolution, DType, Fill, Patches,
    TensorType, Transpose, Window,
};

use super::column_sums::column_sums;
use super::elementwise::{add_bias, copy};
use super::initialise::fill;
use super::linear::{unscaled, with_epilogue};
use super::sizes::{BLOCK, blocks, by_dtype, count, flag, optional, pointer, size, size_argument};

/// Edge of the tiles in which matrices are transposed.
const TILE: usize = 32;

pub(super) fn transpose(
    op: &Transpose,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let x = &inputs[0];
    let added = op.accumulate.then(|| inputs[1].address);
    let samples = x.ty.shape.dims()[0];
    transpose_samples(outputs[0].address, x, added, samples, op.sizes(), launcher)
}

fn transpose_samples(
    y: u64,
    x: &Operand,
    added: Option<u64>,
    samples: usize,
    [rows, columns]: [usize; 2],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let tiles = samples * rows.div_ceil(TILE) * columns.div_ceil(TILE);
    let name = by_dtype(x.ty.dtype, ["transpose_f32", "transpose_bf16", "transpose_f16"])?;
    let sizes = [size_argument(rows)?, size_argument(columns)?];
    let arguments = [&[Argument::Pointer(y), pointer(x), optional(added)], &sizes[..]].concat();
    launcher.kernel(name, [size(tiles)?, 1, 1], BLOCK, 0, &arguments)
}

pub(super) fn forward(
    Conv2d(convolution): &Conv2d,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (x, weight, y) = (&inputs[0], &inputs[1], &outputs[0]);
    let bias = convolution.bias.then(|| inputs[2].address);
    let patches = convolution.patches(&x.ty, y.ty.shape.last());
    let conv = Conv::new(convolution, patches, x.ty.dtype, false, workspace);
    let weights = conv.by_cells(weight, launcher)?;
    let Patches { columns, features, .. } = conv.patches;
    for rows in conv.slices() {
        let of_y = conv.rows_of(y, rows.clone());
        for group in 0..convolution.groups {
            let ty = TensorType::new(conv.dtype, &[rows.len(), features]);
            let of_group = match convolution.groups {
                1 => of_y,
                _ => Operand { address: conv.parts.group, ty },
            };
            let matmul = Matmul {
                rows: rows.len(),
                inner: columns,
                columns: features,
                left: conv.matrix(conv.gather(x, group, rows.clone(), launcher)?),
                right: Matrix { transposed: true, ..conv.matrix(conv.of_group(weights, group)) },
                output: conv.matrix(of_group.address),
                ..conv.product()
            };
            match bias {
                None => launcher.matmul(&matmul)?,
                Some(bias) => {
                    let bias = bias + conv.bytes(group * features);
                    with_epilogue(matmul, Epilogue::Bias(bias), launcher, |launcher| {
                        add_bias(&of_group, bias, launcher)
                    })?;
                }
            }
            if convolution.groups > 1 {
                let addresses = [conv.channels_of(&of_y, group), of_group.address];
                conv.copy_rows(addresses, [conv.features(), features], rows.len(), launcher)?;
            }
        }
    }
    Ok(())
}

pub(super) fn input_gradient(
    op: &Conv2dInputGradient,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (dy, weight, dx) = (&inputs[0], &inputs[1], &outputs[0]);
    let convolution = &op.convolution;
    let patches = convolution.patch_gradients(&dx.ty, dy.ty.shape.last());
    let conv = Conv::new(convolution, patches, dx.ty.dtype, false, workspace);
    let weights = conv.by_cells(weight, launcher)?;
    let Patches { columns, features, in_place, .. } = conv.patches;
    let product = Matmul { inner: features, columns, ..conv.product() };
    if in_place {
        return launcher.matmul(&Matmul {
            rows: conv.patches.rows,
            left: conv.matrix(dy.address),
            right: conv.matrix(weights),
            output: conv.matrix(dx.address),
            added: op.accumulate.then(|| unscaled(inputs[2].address)),
            ..product
        });
    }
    if !op.accumulate {
        fill(&Fill { output: dx.ty, value: 0.0 }, outputs, launcher)?;
    } else if inputs[2].address != dx.address {
        copy(dx, &inputs[2], launcher)?;
    }
    for rows in conv.slices() {
        for group in 0..convolution.groups {
            let of_dy = conv.outputs(dy, group, rows.clone(), launcher)?;
            launcher.matmul(&Matmul {
                rows: rows.len(),
                left: conv.matrix(of_dy),
                right: conv.matrix(conv.of_group(weights, group)),
                output: Matrix { address: conv.parts.patches, dtype: DType::F32, transposed: false },
                ..product
            })?;
            conv.scatter(dx, group, rows.clone(), launcher)?;
        }
    }
    Ok(())
}

/// The matmuls sum in f32 in the workspace; the bias gradient is summed from dy in f32.
pub(super) fn weight_gradient(
    op: &Conv2dWeightGradient,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (x, dy) = (&inputs[0], &inputs[1]);
    let convolution = &op.convolution;
    let patches = convolution.patches(&x.ty, dy.ty.shape.last());
    let conv = Conv::new(convolution, patches, x.ty.dtype, true, workspace);
    let Patches { columns, features, channels, .. } = conv.patches;
    let of_group = (features * columns) as u64 * DType::F32.bytes();
    for rows in conv.slices() {
        for group in 0..convolution.groups {
            let sums = conv.parts.weights + group as u64 * of_group;
            let of_dy = conv.outputs(dy, group, rows.clone(), launcher)?;
            let patches = conv.gather(x, group, rows.clone(), launcher)?;
            launcher.matmul(&Matmul {
                rows: features,
                inner: rows.len(),
                columns,
                left: Matrix { transposed: true, ..conv.matrix(of_dy) },
                right: conv.matrix(patches),
                output: Matrix { address: sums, dtype: DType::F32, transposed: false },
                added: (rows.start > 0).then(|| unscaled(sums)),
                ..conv.product()
            })?;
        }
    }
    let cells = convolution.window.cells();
    let store = |gradient: &Operand, sums: u64, sizes: [usize; 2], launcher: &mut Launcher| {
        let names = ["store_weight_gradient_f32", "store_weight_gradient_bf16", "store_weight_gradient_f16"];
        let elements = gradient.ty.elements();
        let arguments = [
            pointer(gradient),
            Argument::Pointer(sums),
            size_argument(sizes[0])?,
            size_argument(sizes[1])?,
            flag(op.accumulate),
            count(elements),
        ];
        let grid = [blocks(elements, BLOCK as usize)?, 1, 1];
        launcher.kernel(by_dtype(op.gradients, names)?, grid, BLOCK, 0, &arguments)
    };
    store(&outputs[0], conv.parts.weights, [channels, cells], launcher)?;
    if convolution.bias {
        let sums = conv.parts.weights + convolution.groups as u64 * of_group;
        column_sums(dy, sums, false, conv.parts.rest, launcher)?;
        store(&outputs[1], sums, [1, 1], launcher)?;
    }
    Ok(())
}

/// A convolution with the sizes of its operands and the parts of its workspace.
struct Conv<'a> {
    convolution: &'a Convolution,
    patches: Patches,
    dtype: DType,
    parts: Parts,
}

/// The addresses of the parts of the workspace, and the matmuls' part.
struct Parts {
    weights: u64,
    patches: u64,
    group: u64,
    rest: (u64, u64),
}

impl<'a> Conv<'a> {
    /// A convolution of x of this type or its weight gradient.
    fn new(
        convolution: &'a Convolution,
        patches: Patches,
        dtype: DType,
        of_weight_gradient: bool,
        (address, bytes): (u64, u64),
    ) -> Conv<'a> {
        let workspace = convolution.workspace(dtype, &patches, of_weight_gradient);
        let ConvWorkspace { weights, patches: of_patches, .. } = workspace;
        let own = workspace.bytes();
        let parts = Parts {
            weights: address,
            patches: address + weights,
            group: address + weights + of_patches,
            rest: (address + own, bytes - own),
        };
        Conv { convolution, patches, dtype, parts }
    }

    /// M.
    fn features(&self) -> usize {
        self.patches.features * self.convolution.groups
    }

    /// The slices of patches.
    fn slices(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Patches { rows, rows_per_slice, .. } = self.patches;
        (0..rows).step_by(rows_per_slice).map(move |start| start..rows.min(start + rows_per_slice))
    }

    fn matrix(&self, address: u64) -> Matrix {
        Matrix { address, dtype: self.dtype, transposed: false }
    }

    /// A matmul whose sizes and operands are still to be set.
    fn product(&self) -> Matmul {
        let none = self.matrix(0);
        Matmul {
            rows: 0,
            columns: 0,
            inner: 0,
            left: none,
            right: none,
            output: none,
            scale: 1.0,
            added: None,
            epilogue: Epilogue::None,
            tf32: self.convolution.tf32,
            workspace: self.parts.rest,
        }
    }

    fn bytes(&self, elements: usize) -> u64 {
        self.dtype.bytes_of(elements)
    }

    /// The weights of a group.
    fn of_group(&self, weights: u64, group: usize) -> u64 {
        weights + self.bytes(group * self.patches.features * self.patches.columns)
    }

    /// The output channels of a group in the first row of y.
    fn channels_of(&self, y: &Operand, group: usize) -> u64 {
        y.address + self.bytes(group * self.patches.features)
    }

    /// Some places of y or dy.
    fn rows_of(&self, y: &Operand, rows: Range<usize>) -> Operand {
        let address = y.address + self.bytes(rows.start * self.features());
        Operand { address, ty: TensorType::new(self.dtype, &[rows.len(), self.features()]) }
    }

    /// The weights num[M,C/G,KH,KW] as [M,KH,KW,C/G], in the workspace if the kernel has several cells.
    fn by_cells(&self, weight: &Operand, launcher: &mut Launcher) -> Result<u64, DeviceError> {
        let cells = self.convolution.window.cells();
        if cells == 1 {
            return Ok(weight.address);
        }
        let sizes = [self.patches.channels, cells];
        transpose_samples(self.parts.weights, weight, None, self.features(), sizes, launcher)?;
        Ok(self.parts.weights)
    }

    /// The output channels of a group, dy num[..,M/G] for some places; copied to the workspace if there are several groups.
    fn outputs(
        &self,
        dy: &Operand,
        group: usize,
        rows: Range<usize>,
        launcher: &mut Launcher,
    ) -> Result<u64, DeviceError> {
        let count = rows.len();
        let dy = self.rows_of(dy, rows);
        if self.convolution.groups == 1 {
            return Ok(dy.address);
        }
        let strides = [self.patches.features, self.features()];
        self.copy_rows([self.parts.group, self.channels_of(&dy, group)], strides, count, launcher)?;
        Ok(self.parts.group)
    }

    /// Copies a group's features of each row.
    fn copy_rows(
        &self,
        [to, from]: [u64; 2],
        [to_stride, from_stride]: [usize; 2],
        rows: usize,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let name = by_dtype(self.dtype, ["copy_rows_f32", "copy_rows_bf16", "copy_rows_f16"])?;
        let arguments = [
            Argument::Pointer(to),
            Argument::Pointer(from),
            size_argument(to_stride)?,
            size_argument(from_stride)?,
            size_argument(self.patches.features)?,
        ];
        launcher.kernel(name, [size(rows)?, 1, 1], threads(self.patches.features), 0, &arguments)
    }

    /// The sizes that the kernels of patches take.
    fn sizes(&self) -> Result<Vec<Argument>, DeviceError> {
        let Patches { image: [height, width, all], output, channels, .. } = self.patches;
        let Window { kernel: [kernel_height, kernel_width], stride, padding } = self.convolution.window;
        let [down, across] = output;
        let sizes =
            [height, width, all, channels, down, across, kernel_height, kernel_width, stride, padding];
        sizes.into_iter().map(size_argument).collect()
    }

    /// The patches of a group of channels of x for some places: in the workspace, or x itself if the kernel is a pixel.
    fn gather(
        &self,
        x: &Operand,
        group: usize,
        rows: Range<usize>,
        launcher: &mut Launcher,
    ) -> Result<u64, DeviceError> {
        let Patches { columns, channels, in_place, .. } = self.patches;
        if in_place {
            return Ok(x.address + self.bytes(rows.start * columns));
        }
        let names = ["gather_patches_f32", "gather_patches_bf16", "gather_patches_f16"];
        let mut arguments = vec![
            Argument::Pointer(self.parts.patches),
            Argument::Pointer(x.address + self.bytes(group * channels)),
        ];
        arguments.extend(self.sizes()?);
        arguments.push(size_argument(rows.start)?);
        let grid = [size(rows.len())?, 1, 1];
        launcher.kernel(by_dtype(self.dtype, names)?, grid, threads(columns), 0, &arguments)?;
        Ok(self.parts.patches)
    }

    /// Adds the patches of some places to a group of channels of dx.
    fn scatter(
        &self,
        dx: &Operand,
        group: usize,
        rows: Range<usize>,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let Patches { channels, image: [height, width, _], output, .. } = self.patches;
        let names = ["scatter_patches_f32", "scatter_patches_bf16", "scatter_patches_f16"];
        // All pixels of the samples that have a patch in the slice.
        let places = output[0] * output[1];
        let samples = rows.start / places..(rows.end - 1) / places + 1;
        let pixels = height * width;
        let mut arguments = vec![
            Argument::Pointer(dx.address + self.bytes(group * channels)),
            Argument::Pointer(self.parts.patches),
        ];
        arguments.extend(self.sizes()?);
        arguments.push(size_argument(rows.start)?);
        arguments.push(size_argument(rows.len())?);
        arguments.push(size_argument(samples.start * pixels)?);
        let grid = [size(samples.len() * pixels)?, 1, 1];
        launcher.kernel(by_dtype(self.dtype, names)?, grid, threads(channels), 0, &arguments)
    }
}

/// Threads of a block that processes a row.
fn threads(columns: usize) -> u32 {
    (columns.next_power_of_two() as u32).clamp(32, BLOCK)
}
