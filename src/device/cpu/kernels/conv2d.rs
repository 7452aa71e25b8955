//! Convolutions: matmuls of slices of patches.

use std::ops::Range;

use ops::{Conv2d, Conv2dInputGradient, Conv2dWeightGradient, ConvWorkspace, Convolution, DType, Patches};

use super::as_floats;
use super::elementwise::add_to;
use super::float::{BUFFER, Float, update, write};
use super::matmul::{Matmul, Matrix, RowSums};
use super::operands::{Addend, Operands};
use super::transpose::transpose;
use super::workers::{SharedSlice, Workers};

/// Patches per task.
const ROWS: usize = 64;

pub(super) fn forward<T: Float>(
    Conv2d(convolution): &Conv2d,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let patches = convolution.patches(operands.input_type(0), operands.output_type(0).shape.last());
    let conv = Conv { convolution, dtype: T::DTYPE, patches };
    let (x, weight) = (operands.input::<T>(0), operands.input::<T>(1));
    let bias = convolution.bias.then(|| operands.input::<T>(2));
    let y = operands.output::<T>(0);
    let Parts { weights, patches, group, rest } = conv.parts(false, scratch);
    let weights = conv.by_cells(weight, as_floats(weights), workers);
    let (patches, group) = (as_floats::<T>(patches), as_floats::<T>(group));
    let Patches { columns, features, .. } = conv.patches;
    for rows in conv.slices() {
        for number in 0..convolution.groups {
            let patches = conv.gather(x, number, rows.clone(), patches, workers);
            let weights = &weights[number * features * columns..][..features * columns];
            let bias = bias.map(|bias| &bias[number * features..][..features]);
            let matmul: Matmul<T, T, T> = Matmul {
                rows: rows.len(),
                inner: columns,
                columns: features,
                left: Matrix::new(patches, columns),
                right: Matrix::new(weights, columns).transposed(),
                addend: Addend::Zero,
                bias,
                sums: None,
            };
            let all = conv.features();
            let y = &mut y[rows.start * all..rows.end * all];
            if convolution.groups == 1 {
                matmul.run(y, None, rest, workers);
            } else {
                let group = &mut group[..rows.len() * features];
                matmul.run(group, None, rest, workers);
                for (y, group) in y.chunks_mut(all).zip(group.chunks(features)) {
                    y[number * features..][..features].copy_from_slice(group);
                }
            }
        }
    }
}

pub(super) fn input_gradient<T: Float>(
    op: &Conv2dInputGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let convolution = &op.convolution;
    let patches = convolution.patch_gradients(operands.output_type(0), operands.input_type(0).shape.last());
    let conv = Conv { convolution, dtype: T::DTYPE, patches };
    let (dy, weight) = (operands.input::<T>(0), operands.input::<T>(1));
    let addend = operands.addend::<T>(0, op.accumulate.then_some(2));
    let dx = operands.output::<T>(0);
    let Parts { weights, patches, group, rest } = conv.parts(false, scratch);
    let weights = conv.by_cells(weight, as_floats(weights), workers);
    let group = as_floats::<T>(group);
    let Patches { columns, features, in_place, .. } = conv.patches;
    if in_place {
        let matmul: Matmul<T, T, T> = gradients(&conv.patches, conv.patches.rows, dy, weights, addend);
        return matmul.run(dx, None, rest, workers);
    }
    match addend {
        Addend::Zero => dx.fill(T::default()),
        Addend::Output => {}
        Addend::Input(partial) => dx.copy_from_slice(partial),
    }
    for rows in conv.slices() {
        for number in 0..convolution.groups {
            let dy = conv.outputs(dy, number, rows.clone(), group);
            let weights = &weights[number * features * columns..][..features * columns];
            let patches = &mut patches[..rows.len() * columns];
            let matmul: Matmul<T, f32, f32> = gradients(&conv.patches, rows.len(), dy, weights, Addend::Zero);
            matmul.run(patches, None, rest, workers);
            conv.scatter(patches, number, rows.clone(), dx, workers);
        }
    }
}

/// The gradients of `rows` patches.
fn gradients<'a, T: Float, C: Float>(
    &Patches { features, columns, .. }: &Patches,
    rows: usize,
    dy: &'a [T],
    weights: &'a [T],
    addend: Addend<'a, C>,
) -> Matmul<'a, T, C, C> {
    Matmul {
        rows,
        inner: features,
        columns,
        left: Matrix::new(dy, features),
        right: Matrix::new(weights, columns),
        addend,
        bias: None,
        sums: None,
    }
}

pub(super) fn weight_gradient<T: Float, G: Float>(
    op: &Conv2dWeightGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let convolution = &op.convolution;
    let patches = convolution.patches(operands.input_type(0), operands.input_type(1).shape.last());
    let conv = Conv { convolution, dtype: T::DTYPE, patches };
    let (x, dy) = (operands.input::<T>(0), operands.input::<T>(1));
    let Parts { weights: sums, patches, group, rest } = conv.parts(true, scratch);
    let (patches, group) = (as_floats::<T>(patches), as_floats::<T>(group));
    let Patches { columns, features, channels, .. } = conv.patches;
    let all = conv.features();
    let (sums, bias_sums) = sums.split_at_mut(all * columns);
    for rows in conv.slices() {
        let accumulate = rows.start > 0;
        for number in 0..convolution.groups {
            let dy = conv.outputs(dy, number, rows.clone(), group);
            let patches = conv.gather(x, number, rows.clone(), patches, workers);
            let of_bias = convolution.bias.then(|| &mut bias_sums[number * features..][..features]);
            let matmul: Matmul<T, f32, f32> = Matmul {
                rows: features,
                inner: rows.len(),
                columns,
                left: Matrix::new(dy, features).transposed(),
                right: Matrix::new(patches, columns),
                addend: if accumulate { Addend::Output } else { Addend::Zero },
                bias: None,
                sums: of_bias.map(|sums| RowSums { sums: SharedSlice::new(sums), accumulate }),
            };
            let sums = &mut sums[number * features * columns..][..features * columns];
            matmul.run(sums, None, rest, workers);
        }
    }
    // From cells of channels to channels of cells.
    let (dweight, level) = (SharedSlice::new(operands.output::<G>(0)), workers.level());
    let cells = convolution.window.cells();
    workers.for_each(all, |feature| {
        // SAFETY: each task has its own feature.
        #[allow(unsafe_code)]
        let dweight = unsafe { dweight.range_mut(feature * columns..(feature + 1) * columns) };
        let sums = &sums[feature * columns..][..columns];
        let mut store = |range: Range<usize>, dweight: &mut [f32]| {
            for (index, dweight) in range.zip(dweight) {
                let sum = sums[index % cells * channels + index / cells];
                *dweight = if op.accumulate { *dweight + sum } else { sum };
            }
        };
        let buffer = &mut [0.0; BUFFER];
        if op.accumulate {
            update(level, dweight, buffer, &mut store);
        } else {
            write(level, dweight, buffer, &mut store);
        }
    });
    if convolution.bias {
        let (dbias, buffer) = (operands.output::<G>(1), &mut [0.0; BUFFER]);
        if op.accumulate {
            update(level, dbias, buffer, |range, dbias| add_to(level, dbias, &bias_sums[range]));
        } else {
            write(level, dbias, buffer, |range, dbias| dbias.copy_from_slice(&bias_sums[range]));
        }
    }
}

/// A convolution with the sizes of its operands.
struct Conv<'a> {
    convolution: &'a Convolution,
    /// The type of x and y.
    dtype: DType,
    patches: Patches,
}

/// The parts of the workspace.
struct Parts<'a> {
    weights: &'a mut [f32],
    patches: &'a mut [f32],
    group: &'a mut [f32],
    /// The matmuls'.
    rest: &'a mut [f32],
}

impl Conv<'_> {
    /// M.
    fn features(&self) -> usize {
        self.patches.features * self.convolution.groups
    }

    fn parts<'s>(&self, of_weight_gradient: bool, scratch: &'s mut [f32]) -> Parts<'s> {
        let ConvWorkspace { weights, patches, group } =
            self.convolution.workspace(self.dtype, &self.patches, of_weight_gradient);
        let len = |bytes: u64| bytes as usize / size_of::<f32>();
        let (weights, scratch) = scratch.split_at_mut(len(weights));
        let (patches, scratch) = scratch.split_at_mut(len(patches));
        let (group, rest) = scratch.split_at_mut(len(group));
        Parts { weights, patches, group, rest }
    }

    /// The slices of patches.
    fn slices(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Patches { rows, rows_per_slice, .. } = self.patches;
        (0..rows).step_by(rows_per_slice).map(move |start| start..rows.min(start + rows_per_slice))
    }

    /// The weights num[M,C/G,KH,KW] as [M,KH,KW,C/G], in `buffer` if the kernel has several cells.
    fn by_cells<'w, T: Float>(&self, weight: &'w [T], buffer: &'w mut [T], workers: &Workers) -> &'w [T] {
        let (cells, Patches { columns, channels, .. }) = (self.convolution.window.cells(), self.patches);
        if cells == 1 {
            return weight;
        }
        let buffer = &mut buffer[..weight.len()];
        let to = SharedSlice::new(buffer);
        workers.for_each(self.features(), |feature| {
            let range = feature * columns..(feature + 1) * columns;
            // SAFETY: each task has its own feature.
            #[allow(unsafe_code)]
            let to = unsafe { to.range_mut(range.clone()) };
            transpose(&weight[range], [channels, cells], 0, to);
        });
        buffer
    }

    /// The output channels of a group, dy num[..,M/G] for some places; copied to `buffer` if there are several groups.
    fn outputs<'d, T: Float>(
        &self,
        dy: &'d [T],
        group: usize,
        rows: Range<usize>,
        buffer: &'d mut [T],
    ) -> &'d [T] {
        let (all, features) = (self.features(), self.patches.features);
        let dy = &dy[rows.start * all..rows.end * all];
        if all == features {
            return dy;
        }
        let buffer = &mut buffer[..rows.len() * features];
        for (to, dy) in buffer.chunks_mut(features).zip(dy.chunks(all)) {
            to.copy_from_slice(&dy[group * features..][..features]);
        }
        buffer
    }

    /// The sample and the place of a patch.
    fn place(&self, row: usize) -> (usize, [usize; 2]) {
        let [height, width] = self.patches.output;
        (row / (height * width), [row / width % height, row % width])
    }

    /// The patches of a group of channels of x for some places; x itself if the kernel is a pixel.
    fn gather<'p, T: Float>(
        &self,
        x: &'p [T],
        group: usize,
        rows: Range<usize>,
        patches: &'p mut [T],
        workers: &Workers,
    ) -> &'p [T] {
        let Patches { columns, channels, image: [height, width, all], in_place, .. } = self.patches;
        if in_place {
            return &x[rows.start * columns..rows.end * columns];
        }
        let window = self.convolution.window;
        let patches = &mut patches[..rows.len() * columns];
        let shared = SharedSlice::new(patches);
        workers.for_each_chunk(rows.len(), ROWS, |chunk| {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let patches = unsafe { shared.range_mut(chunk.start * columns..chunk.end * columns) };
            for (row, patch) in chunk.zip(patches.chunks_mut(columns)) {
                let (sample, place) = self.place(rows.start + row);
                let run = window.kernel[1] * channels;
                for (cell, patch) in patch.chunks_mut(run).enumerate() {
                    let y = (place[0] * window.stride + cell).wrapping_sub(window.padding);
                    if y >= height {
                        patch.fill(T::default());
                        continue;
                    }
                    let line = &x[(sample * height + y) * width * all..][..width * all];
                    let start = (place[1] * window.stride).wrapping_sub(window.padding);
                    if all == channels && start < width && start + window.kernel[1] <= width {
                        patch.copy_from_slice(&line[start * all..][..run]);
                        continue;
                    }
                    for (cell, patch) in patch.chunks_mut(channels).enumerate() {
                        let x = start.wrapping_add(cell);
                        if x < width {
                            patch.copy_from_slice(&line[x * all + group * channels..][..channels]);
                        } else {
                            patch.fill(T::default());
                        }
                    }
                }
            }
        });
        patches
    }

    /// Adds the patches of some places to the pixels of a group of channels. Each pixel's terms are added in the order of their
    /// places, so that the sums do not depend on slices, except for rounding in 16 bits.
    fn scatter<T: Float>(
        &self,
        patches: &[f32],
        group: usize,
        rows: Range<usize>,
        dx: &mut [T],
        workers: &Workers,
    ) {
        let Patches { columns, channels, image: [height, width, all], output, .. } = self.patches;
        let (level, window) = (workers.level(), self.convolution.window);
        let samples = self.place(rows.start).0..self.place(rows.end - 1).0 + 1;
        let lines = samples.start * height..samples.end * height;
        let dx = SharedSlice::new(dx);
        workers.for_each(lines.len(), |line| {
            let line = lines.start + line;
            let (sample, y) = (line / height, line % height);
            // SAFETY: each task has its own line of an image.
            #[allow(unsafe_code)]
            let pixels = unsafe { dx.range_mut(line * width * all..(line + 1) * width * all) };
            let mut sums = [0.0; BUFFER];
            for (x, pixel) in pixels.chunks_mut(all).enumerate() {
                let pixel = &mut pixel[group * channels..][..channels];
                update(level, pixel, &mut sums, |channels_of_run, sums| {
                    for place_y in window.covering(0, y, output[0]) {
                        let first = (sample * output[0] + place_y) * output[1];
                        for place_x in window.covering(1, x, output[1]) {
                            let row = first + place_x;
                            if !rows.contains(&row) {
                                continue;
                            }
                            let cell = [(y, place_y), (x, place_x)]
                                .map(|(pixel, place)| pixel + window.padding - place * window.stride);
                            let cell = cell[0] * window.kernel[1] + cell[1];
                            let term = &patches[(row - rows.start) * columns + cell * channels..][..channels];
                            add_to(level, sums, &term[channels_of_run.clone()]);
                        }
                    }
                });
            }
        });
    }
}
