//! The norm of all gradients.

use super::as_f64;
use super::bucket_chunks::{member_chunks, round_robin};
use super::float::{BUFFER, read, with_float};
use super::operands::Operands;
use super::simd::simd;
use super::workers::{SharedSlice, Workers};
use ops::GlobalNorm;

pub(super) fn run(op: &GlobalNorm, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let chunks = || {
        let buckets = op.buckets.iter().enumerate();
        buckets.flat_map(|(bucket, members)| {
            member_chunks(members, GlobalNorm::ELEMENTS_PER_PARTIAL).map(move |(_, range)| (bucket, range))
        })
    };
    let partials = &mut as_f64(scratch)[..chunks().count()];
    let sums = SharedSlice::new(partials);
    workers.for_each(workers.threads(), |index| {
        for (partial, (bucket, range)) in round_robin(chunks().enumerate(), index, workers.threads()) {
            // SAFETY: each chunk has its own partial sum.
            #[allow(unsafe_code)]
            let sum = unsafe { sums.range_mut(partial..partial + 1) };
            sum[0] = 0.0;
            with_float!(operands.input_type(bucket).dtype, G => {
                read(workers.level(), &operands.input::<G>(bucket)[range], &mut [0.0; BUFFER], |_, numbers| {
                    sum[0] += sum_of_squares(workers.level(), numbers);
                });
            });
        }
    });
    let scale = if op.scaled { operands.input::<f32>(op.buckets.len())[0] } else { 1.0 };
    operands.output(0)[0] = (partials.iter().sum::<f64>().sqrt() / f64::from(scale)) as f32;
}

simd! {
    pub(super) fn sum_of_squares(values: &[f32]) -> f64 {
        let mut lanes = [0.0f64; 16];
        let (whole, rest) = values.as_chunks::<16>();
        for chunk in whole {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(value) * f64::from(value);
        }
        lanes.iter().sum()
    }
}
