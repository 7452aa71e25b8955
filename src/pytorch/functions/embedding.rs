//! `torch.nn.functional.embedding`

use crate::rules::EmbeddingScratch;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// Up to this many look-ups, one kernel adds the gradients of rows; beyond it, ids are sorted first.
const UNSORTED: usize = 3072;

/// Elements per tile of CUB's scan.
const SCAN_TILE: usize = 896;

/// Gradients summed per partial sum.
const PER_PARTIAL: usize = 10;

/// weight [V, C], ids [B, T] or [T].
pub(crate) fn embedding(torch: &Torch, weight: &Tensor, ids: &Tensor) -> Tensor {
    let &[vocabulary, channels] = weight.shape().dims() else { unreachable!("a table is a matrix") };
    let mut dims = ids.shape().dims().to_vec();
    dims.push(channels);
    let looked_up = ids.elements();
    torch.output((Shape::new(&dims), weight.dtype()), None, &[weight], &[ids], move |torch, backward| {
        vec![gradient(torch, backward.gradient().dtype(), looked_up, vocabulary, channels).into()]
    })
}

/// The gradient of the table. Many look-ups are sorted, and runs of equal ids are summed in parts.
fn gradient(torch: &Torch, dtype: DType, looked_up: usize, vocabulary: usize, channels: usize) -> Tensor {
    let table = |torch: &Torch| torch.empty(&[vocabulary, channels], dtype);
    if looked_up <= UNSORTED {
        return table(torch);
    }
    let indices = |count: usize| torch.empty(&[count], DType::I64);
    let runs = looked_up.min(vocabulary);
    let (_order, _original) = (indices(looked_up), indices(looked_up));
    {
        let _positions = indices(looked_up);
        torch.scratch(sort_scratch(torch, looked_up, vocabulary));
    }
    let gradient = table(torch);
    let (_starts, _parts) = (indices(looked_up), indices(1));
    {
        let _runs = indices(looked_up);
        torch.scratch(select_scratch(torch, looked_up));
    }
    let (_per_run, _offsets) = (indices(runs), indices(runs));
    scan_scratch(torch, runs);
    let _part_count = indices(1);
    let parts = runs + looked_up / PER_PARTIAL;
    let _begins = indices(parts);
    // Few long runs are summed by thread blocks of their own, which need a second list instead of partial sums, and an
    // fp32 table for 16-bit gradients.
    let is_long = torch.rules.embedding_scratch.sums_long_runs
        && looked_up / PER_PARTIAL > 3 * vocabulary
        && vocabulary < 4 * torch.card.multiprocessors;
    if is_long {
        let _ends = indices(parts);
        let _sums = dtype.is_half().then(|| torch.empty(&[vocabulary, channels], DType::F32));
    } else {
        let _sums = torch.empty(&[parts, channels], DType::F32);
    }
    gradient
}

/// Scratch of CUB's radix sort: alternate buffers if there are several passes, a look-back per tile, bins per pass.
fn sort_scratch(torch: &Torch, looked_up: usize, vocabulary: usize) -> u64 {
    let bits = (torch.rules.embedding_scratch.sorted_bits)(vocabulary);
    let passes = u64::from(bits.div_ceil(8));
    let buffers = if passes > 1 { 2 * (8 * looked_up as u64).next_multiple_of(256) } else { 0 };
    buffers + 1024 * looked_up.div_ceil(torch.card.sort_tile()) as u64 + 2048 * passes + 256 + 255
}

/// Scratch of CUB's selection: a state for each tile, and two parts of one alignment.
fn select_scratch(torch: &Torch, elements: usize) -> u64 {
    let EmbeddingScratch { select_tile, select, .. } = torch.rules.embedding_scratch;
    select(elements.div_ceil(select_tile(&torch.card)) as u64) + 256 + 255
}

/// Requests the scratch of CUB's scan, likewise.
pub(crate) fn scan_scratch(torch: &Torch, elements: usize) {
    let states = (torch.rules.embedding_scratch.scan)(elements.div_ceil(SCAN_TILE) as u64);
    torch.scratch(states + 256 + 255);
}
