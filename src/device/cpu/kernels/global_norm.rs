//! The norm of all gradients.

use super::as_f64;
use super::float::{BUFFER, read, with_float};
use super::operands::Operands;
use super::runs::{in_turn, runs};
use super::simd::simd;
use super::workers::{Parts, Workers};
use ops::GlobalNorm;

pub(super) fn run(op: &GlobalNorm, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let runs = || {
        let buckets = op.buckets.iter().enumerate();
        buckets.flat_map(|(bucket, members)| {
            runs(members, GlobalNorm::ELEMENTS_PER_PARTIAL).map(move |(_, range)| (bucket, range))
        })
    };
    let partials = &mut as_f64(scratch)[..runs().count()];
    let parts = Parts::new(partials);
    workers.each(workers.threads(), |index| {
        for (partial, (bucket, range)) in in_turn(runs().enumerate(), index, workers.threads()) {
            // SAFETY: each run has a partial sum of its own.
            #[allow(unsafe_code)]
            let sum = unsafe { parts.part(partial..partial + 1) };
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
