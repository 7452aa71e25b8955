//! QK-norm: RMS normalization of the heads of queries and keys.

use ops::{QkNorm, QkNormBackward, QkNormHeads};

use super::elementwise::add_to;
use super::float::{BUFFER, Float, update};
use super::operands::Operands;
use super::rms_norm::{differentiate_row, normalise_row};
use super::workers::{SharedSlice, Workers};

const ROWS: usize = QkNormBackward::ROWS_PER_PARTIAL;

/// The index of a head's weight: 0 for queries, 1 for keys, `None` for values.
fn weight_of(heads: QkNormHeads, head: usize) -> Option<usize> {
    (head < heads.count()).then_some(usize::from(head >= heads.queries))
}

pub(super) fn forward<T: Float>(op: &QkNorm, operands: &mut Operands, workers: &Workers) {
    let (qkv, row) = (operands.input::<T>(0), operands.input_type(0).shape.last());
    let weights = [1, 2].map(|index| operands.input::<f32>(index));
    let (channels, normed) = (weights[0].len(), op.heads.count());
    let (y, rrms) = (SharedSlice::new(operands.output::<T>(0)), SharedSlice::new(operands.output::<f32>(1)));
    workers.for_each_chunk(qkv.len() / row, ROWS, |rows| {
        let elements = rows.start * row..rows.end * row;
        // SAFETY: chunks of rows do not overlap.
        #[allow(unsafe_code)]
        let (y, rrms) = unsafe {
            (y.range_mut(elements.clone()), rrms.range_mut(rows.start * normed..rows.end * normed))
        };
        let level = workers.level();
        let all = qkv[elements].chunks_exact(row).zip(y.chunks_exact_mut(row));
        for ((x, y), rrms) in all.zip(rrms.chunks_exact_mut(normed)) {
            let heads = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
            for (head, (x, y)) in heads.enumerate() {
                match weight_of(op.heads, head) {
                    Some(which) => {
                        rrms[head] = normalise_row(level, x, (weights[which], op.offset), op.epsilon, y);
                    }
                    None => y.copy_from_slice(x),
                }
            }
        }
    });
}

pub(super) fn backward<T: Float, G: Float>(
    op: &QkNormBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (dy, qkv) = (operands.input::<T>(0), operands.input::<T>(1));
    let row = operands.input_type(1).shape.last();
    let [queries, keys, rrms] = [2, 3, 4].map(|index| operands.input::<f32>(index));
    let weights = [queries, keys];
    let (channels, normed) = (queries.len(), op.heads.count());
    let dqkv = SharedSlice::new(operands.output::<T>(0));
    let rows = qkv.len() / row;
    let scratch = &mut scratch[..rows.div_ceil(ROWS) * 2 * channels];
    let partials = SharedSlice::new(scratch);
    workers.for_each_chunk(rows, ROWS, |rows| {
        let partial = rows.start / ROWS * 2 * channels;
        // SAFETY: chunks of rows have their own partial sums.
        #[allow(unsafe_code)]
        let sums = unsafe { partials.range_mut(partial..partial + 2 * channels) };
        let level = workers.level();
        sums.fill(0.0);
        for index in rows {
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let dx = unsafe { dqkv.range_mut(index * row..(index + 1) * row) };
            for (head, dx) in dx.chunks_exact_mut(channels).enumerate() {
                let start = index * row + head * channels;
                let (dy, x) = (&dy[start..start + channels], &qkv[start..start + channels]);
                let Some(which) = weight_of(op.heads, head) else {
                    dx.copy_from_slice(dy);
                    continue;
                };
                dx.fill(T::default());
                let dweight = &mut sums[which * channels..(which + 1) * channels];
                let rrms = rrms[index * normed + head];
                differentiate_row(level, (dy, x), (weights[which], op.offset, rrms), dx, dweight);
            }
        }
    });
    for which in 0..2 {
        let sums = operands.output::<G>(1 + which);
        if !op.accumulate {
            sums.fill(G::default());
        }
        update(workers.level(), sums, &mut [0.0; BUFFER], |run, sums| {
            for partial in scratch.chunks_exact(channels).skip(which).step_by(2) {
                add_to(workers.level(), sums, &partial[run.clone()]);
            }
        });
    }
}
