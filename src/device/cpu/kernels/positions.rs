//! Learned positions.

use ops::PositionsGradient;

use super::elementwise::add_to;
use super::float::{BUFFER, Float, update};
use super::operands::Operands;
use super::workers::{SharedSlice, Workers};

/// Elements of a table per task, of a sum.
const CHUNK: usize = 1 << 10;

pub(super) fn add<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (source, table) = (operands.input_unless_aliased::<T>(0, 0), operands.input::<T>(1));
    let (y, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    let samples = y.len() / table.len();
    let parts = table.len().div_ceil(CHUNK);
    workers.for_each(samples * parts, |task| {
        let (sample, part) = (task / parts, task % parts);
        let of_table = part * CHUNK..table.len().min((part + 1) * CHUNK);
        let start = sample * table.len();
        let elements = start + of_table.start..start + of_table.end;
        // SAFETY: tasks write different elements.
        #[allow(unsafe_code)]
        let y = unsafe { y.range_mut(elements.clone()) };
        if let Some(source) = source {
            y.copy_from_slice(&source[elements]);
        }
        let (table, mut read) = (&table[of_table], [0.0; BUFFER]);
        update(level, y, &mut [0.0; BUFFER], |run, y| {
            add_to(level, y, T::widened(level, &table[run], &mut read));
        });
    });
}

pub(super) fn gradient<T: Float, G: Float>(
    op: &PositionsGradient,
    operands: &mut Operands,
    workers: &Workers,
) {
    let dy = operands.input::<T>(0);
    let (dtable, level) = (SharedSlice::new(operands.output::<G>(0)), workers.level());
    let len = dtable.len();
    workers.for_each_chunk(len, BUFFER, |elements| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let dtable = unsafe { dtable.range_mut(elements.clone()) };
        if !op.accumulate {
            dtable.fill(G::default());
        }
        let (mut sum, mut read) = ([0.0; BUFFER], [0.0; BUFFER]);
        update(level, dtable, &mut [0.0; BUFFER], |run, dtable| {
            // The sum of all samples is added at once, as a matmul adds its products.
            let sum = &mut sum[..dtable.len()];
            sum.fill(0.0);
            for of_sample in dy.chunks(len) {
                let run = elements.start + run.start..elements.start + run.end;
                add_to(level, sum, T::widened(level, &of_sample[run], &mut read));
            }
            add_to(level, dtable, sum);
        });
    });
}
