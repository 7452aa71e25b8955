//! Sums, with the scratch memory of PyTorch's reduction kernel.

use crate::coverage::NotCovered;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// The sum over the rows of a matrix, [columns]. Where several thread blocks share an output (`Reduce.cuh`), their
/// partial sums and semaphores are temporaries.
pub(crate) fn sum_rows(torch: &Torch, rows: usize, columns: usize, dtype: DType) -> Tensor {
    let output = torch.empty(&[columns], dtype);
    scratch_of_rows(torch, rows, columns, vector_of(columns));
    output
}

/// The same where a thread reads one number of a row: those of a matrix that repeats one number are not neighbours.
pub(super) fn sum_rows_one_by_one(torch: &Torch, rows: usize, columns: usize, dtype: DType) -> Tensor {
    let output = torch.empty(&[columns], dtype);
    scratch_of_rows(torch, rows, columns, 1);
    output
}

/// The numbers of a row that a thread reads at once.
fn vector_of(row: usize) -> usize {
    [4, 2, 1].into_iter().find(|vector| row.is_multiple_of(*vector)).unwrap_or(1)
}

/// The temporaries of the sums over the rows of matrices with this number of columns together.
fn scratch_of_rows(torch: &Torch, rows: usize, columns: usize, vector: usize) {
    let most = 512 / vector;
    let power = |n: usize| 1 << n.max(1).ilog2();
    let (wide, high) = (most.min(power(columns / vector)), most.min(power(rows)));
    let width = wide.min(32);
    let height = high.min(most / width);
    let width = wide.min(most / height);
    if rows < height * 16 && rows < 256 {
        return;
    }
    let values = rows.div_ceil(height);
    let grid = (columns / vector).div_ceil(width);
    let target = torch.card.multiprocessors * (torch.card.threads / (width * height));
    if values >= 256 && grid <= target {
        let blocks = target.div_ceil(grid).min(values.div_ceil(16)).max(values.div_ceil(256));
        if blocks > 1 {
            let _sums = torch.storage(4 * (columns * blocks * width * vector) as u64);
            let _semaphores = torch.storage(4 * grid as u64);
        }
    }
}

/// The number of true elements, `x.sum()` in i64, which the kernel sums after a cast.
pub(crate) fn count(torch: &Torch, x: &Tensor) -> Tensor {
    let output = torch.scalar(DType::I64);
    let _cast = torch.tensor(x.shape(), DType::I64);
    scratch_of_all(torch, x.elements(), DType::I64);
    output
}

/// Whether all elements are true, `x.all()`.
pub(crate) fn all(torch: &Torch, x: &Tensor) {
    let _output = torch.scalar(DType::Bool);
    scratch_of_all(torch, x.elements(), DType::Bool);
}

/// The sum of this number of elements.
pub(super) fn sum_of_all(torch: &Torch, elements: usize, dtype: DType) -> Tensor {
    reduced(torch, elements, dtype)
}

/// The mean of all elements.
pub(super) fn mean_of_all(torch: &Torch, x: &Tensor) -> Tensor {
    reduced(torch, x.elements(), x.dtype())
}

/// The mean of one number for each row of a matrix.
pub(crate) fn mean_of_rows(torch: &Torch, x: &Tensor) -> Tensor {
    reduced(torch, x.shape().rows(), x.dtype())
}

/// One number of all elements. Partial results are fp32.
fn reduced(torch: &Torch, elements: usize, dtype: DType) -> Tensor {
    let output = torch.scalar(dtype);
    scratch_of_all(torch, elements, DType::F32);
    output
}

/// `x.norm(2)`
pub(crate) fn norm_of_all(torch: &Torch, x: &Tensor) -> Tensor {
    check_index(torch, x);
    reduced(torch, x.elements(), x.dtype())
}

/// The norm of each column of a matrix, [1, columns].
pub(crate) fn norm_of_columns(torch: &Torch, x: &Tensor) -> Tensor {
    sum_rows(torch, x.shape().rows(), x.shape().last(), x.dtype())
}

/// The norm of each row of a matrix, [rows, 1].
pub(crate) fn norm_of_rows(torch: &Torch, x: &Tensor) -> Tensor {
    // From this length on, thread blocks share a row.
    const SHARED: usize = 256 * 512;
    if x.shape().last() >= SHARED {
        torch.refuse(NotCovered(format!("norms of rows of {SHARED} numbers and more (Adafactor)")));
    }
    torch.tensor(x.shape().with_last(1), x.dtype())
}

/// Checks that one kernel reduces a tensor: its offsets have 32 bits.
fn check_index(torch: &Torch, x: &Tensor) {
    if x.elements() as u64 * x.dtype().bytes() > i32::MAX as u64 {
        torch.refuse(NotCovered("norms of parameters of 2 GiB and more (Adafactor, Muon)".to_owned()));
    }
}

/// The temporaries of a sum of all elements: where thread blocks share it, their partial sums and a semaphore.
pub(super) fn scratch_of_all(torch: &Torch, elements: usize, dtype: DType) {
    // Threads of a block, and their least number of values if several blocks share the sum.
    const THREADS: usize = 512;
    const SHARED: usize = 256;
    let values = elements.div_ceil(THREADS);
    if values >= SHARED {
        let target = torch.card.multiprocessors * (torch.card.threads / THREADS);
        let blocks = target.min(values.div_ceil(16)).max(values.div_ceil(SHARED));
        let _sums = torch.storage(dtype.bytes() * blocks as u64);
        let _semaphore = torch.storage(4);
    }
}

/// The sum of each channel of images [B, C, H, W] over samples and pixels, [C].
pub(super) fn sum_channels(torch: &Torch, images: Shape, dtype: DType) -> Tensor {
    let &[samples, channels, height, width] = images.dims() else { unreachable!("images") };
    let pixels = height * width;
    if pixels == 1 && channels > 1 {
        return sum_rows(torch, samples, channels, dtype);
    }
    let images = match channels {
        // One dimension.
        1 => Images { samples: 1, channels, pixels: samples * pixels },
        _ => Images { samples, channels, pixels },
    };
    images.reduce(torch, Shape::new(&[channels]), dtype)
}

/// The mean of each channel of each image, x [B, C, H, W], [B, C, 1, 1].
pub(super) fn mean_of_images(torch: &Torch, x: &Tensor) -> Tensor {
    let &[samples, channels, height, width] = x.shape().dims() else { unreachable!("images") };
    let images = Images { samples: 1, channels: samples * channels, pixels: height * width };
    images.reduce(torch, Shape::new(&[samples, channels, 1, 1]), x.dtype())
}

/// The mean of each channel of each sequence, x [B, T, C], [B, C].
pub(super) fn mean_of_sequences(torch: &Torch, x: &Tensor) -> Tensor {
    let &[samples, length, channels] = x.shape().dims() else { unreachable!("sequences") };
    let output = torch.empty(&[samples, channels], x.dtype());
    scratch_of_rows(torch, length, samples * channels, vector_of(channels));
    output
}

/// Numbers of which each channel is reduced to one.
#[derive(Clone, Copy)]
struct Images {
    samples: usize,
    channels: usize,
    pixels: usize,
}

impl Images {
    fn reduce(self, torch: &Torch, output: Shape, dtype: DType) -> Tensor {
        let output = torch.tensor(output, dtype);
        let parts = self.parts(dtype);
        // Partial results of several kernels are fp32.
        let _sums = (parts.len() > 1 && dtype.is_half()).then(|| torch.tensor(output.shape(), DType::F32));
        parts.into_iter().for_each(|part| part.scratch(torch));
        output
    }

    /// The parts that a kernel reduces: offsets have 32 bits.
    fn parts(self, dtype: DType) -> Vec<Images> {
        let Images { samples, channels, pixels } = self;
        let last = (samples * channels * pixels - 1) as u64 * dtype.bytes();
        if last < i32::MAX as u64 {
            return vec![self];
        }
        let halves = |n: usize| [n / 2, n - n / 2];
        let [first, second] = if samples > 1 {
            halves(samples).map(|samples| Images { samples, ..self })
        } else if channels > 1 {
            halves(channels).map(|channels| Images { channels, ..self })
        } else {
            halves(pixels).map(|pixels| Images { pixels, ..self })
        };
        [first.parts(dtype), second.parts(dtype)].concat()
    }

    /// The temporaries of a kernel whose threads of a warp read neighbouring pixels: where thread blocks share a channel,
    /// their partial sums and semaphores.
    fn scratch(self, torch: &Torch) {
        const THREADS: usize = 512;
        let (inputs, channels) = (self.samples * self.pixels, self.channels);
        // One row of numbers is read in vectors of four.
        let across = if channels == 1 && inputs > 128 { inputs / 4 } else { inputs };
        let [across, outputs] = [across, channels].map(|n| THREADS.min(1 << n.max(1).ilog2()));
        let height = outputs.min(THREADS / across.min(32));
        let width = across.min(THREADS / height);
        let values = inputs.div_ceil(width);
        // Fewer values are not divided between the warps of a block.
        if values < (height * 16).min(256) {
            return;
        }
        let values = inputs.div_ceil(width * height);
        let target = torch.card.multiprocessors * (torch.card.threads / (width * height));
        if values < 256 || channels > target {
            return;
        }
        let blocks = target.div_ceil(channels).min(values.div_ceil(16)).max(values.div_ceil(256));
        if blocks > 1 {
            let _sums = torch.storage(4 * (channels * blocks) as u64);
            let _semaphores = torch.storage(4 * channels as u64);
        }
    }
}

/// The temporaries of batch norm of a matrix: where thread blocks share a column, `numbers` partial results for each, and
/// semaphores.
pub(super) fn batch_norm_scratch(torch: &Torch, [rows, columns]: [usize; 2], numbers: usize) {
    // Threads of a block, rows that a thread reads, and the most blocks that share a column.
    const THREADS: usize = 512;
    const ROWS: usize = 16;
    const BLOCKS: usize = 128;
    let power = |n: usize| 1 << n.max(1).ilog2();
    let width = power(columns).min(32);
    let height = power(rows.div_ceil(ROWS)).min(THREADS / width);
    let width = if width * height == THREADS { width } else { power(columns).min(THREADS / height) };
    let blocks = rows.div_ceil(height * ROWS).min(BLOCKS);
    // Fewer are not worth it.
    if blocks >= 8 {
        let _results = torch.storage(4 * (numbers * columns * blocks) as u64);
        let _semaphores = torch.storage(4 * columns.div_ceil(width) as u64);
    }
}

/// Sums a gradient to the shape of a broadcast input.
pub(crate) fn sum_to(torch: &Torch, gradient: Tensor, shape: Shape) -> Tensor {
    if gradient.shape() == shape {
        return gradient;
    }
    if shape.elements() == shape.last() {
        return sum_rows(torch, gradient.elements() / shape.last(), shape.last(), gradient.dtype());
    }
    torch.tensor(shape, gradient.dtype())
}
