//! QK-norm: RMS normalization of the heads of queries and keys.

use std::ops::Range;

use ops::{QkNorm, QkNormBackward, QkNormHeads};

use super::elementwise::add_to;
use super::float::{BUFFER, Float, update};
use super::operands::Operands;
use super::rms_norm::{differentiate_row, normalise_row};
use super::workers::{SharedSlice, Workers};

const ROWS: usize = QkNormBackward::ROWS_PER_PARTIAL;

/// The heads of a row: the index of each one's weight, 0 for queries, 1 for keys, `None` for values; and its channels.
/// `channels` are those of a query head and of a key or value head.
fn heads_of(heads: QkNormHeads, channels: [usize; 2]) -> impl Iterator<Item = (Option<usize>, Range<usize>)> {
    let QkNormHeads { queries, keys } = heads;
    let first_key = queries * channels[0];
    let query = move |head| (Some(0), head * channels[0]..(head + 1) * channels[0]);
    let other = move |head| {
        let start = first_key + head * channels[1];
        ((head < keys).then_some(1), start..start + channels[1])
    };
    (0..queries).map(query).chain((0..2 * keys).map(other))
}

pub(super) fn forward<T: Float>(op: &QkNorm, operands: &mut Operands, workers: &Workers) {
    let (qkv, row) = (operands.input::<T>(0), operands.input_type(0).shape.last());
    let weights = [1, 2].map(|index| operands.input::<f32>(index));
    let (channels, normed) = (weights.map(<[f32]>::len), op.heads.count());
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
            for (head, (weight, range)) in heads_of(op.heads, channels).enumerate() {
                let (x, y) = (&x[range.clone()], &mut y[range]);
                match weight {
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
    let (channels, normed) = (weights.map(<[f32]>::len), op.heads.count());
    // Partial sums of the queries' weight, then of the keys'.
    let width = channels[0] + channels[1];
    let sums_of = [0..channels[0], channels[0]..width];
    let dqkv = SharedSlice::new(operands.output::<T>(0));
    let rows = qkv.len() / row;
    let scratch = &mut scratch[..rows.div_ceil(ROWS) * width];
    let partials = SharedSlice::new(scratch);
    workers.for_each_chunk(rows, ROWS, |rows| {
        let partial = rows.start / ROWS * width;
        // SAFETY: chunks of rows have their own partial sums.
        #[allow(unsafe_code)]
        let sums = unsafe { partials.range_mut(partial..partial + width) };
        let level = workers.level();
        sums.fill(0.0);
        for index in rows {
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let dx = unsafe { dqkv.range_mut(index * row..(index + 1) * row) };
            let elements = index * row..(index + 1) * row;
            let (dy, x) = (&dy[elements.clone()], &qkv[elements]);
            for (head, (weight, range)) in heads_of(op.heads, channels).enumerate() {
                let (dy, x, dx) = (&dy[range.clone()], &x[range.clone()], &mut dx[range]);
                let Some(which) = weight else {
                    dx.copy_from_slice(dy);
                    continue;
                };
                dx.fill(T::default());
                let dweight = &mut sums[sums_of[which].clone()];
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
            for partial in scratch.chunks_exact(width) {
                add_to(workers.level(), sums, &partial[sums_of[which].clone()][run.clone()]);
            }
        });
    }
}
