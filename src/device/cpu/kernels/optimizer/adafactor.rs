//! Adafactor's step: two passes over a tensor compute sums, and a third pass updates it.

use std::ops::Range;

use super::{CHUNK, gradient_scale, skip_step};
use crate::cpu::kernels::as_f64;
use crate::cpu::kernels::global_norm::sum_of_squares;
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::simd::simd;
use crate::cpu::kernels::weights::Weights;
use crate::cpu::kernels::workers::{SharedSlice, Workers};
use ops::{Adafactor, Factored, Member, OptimizerStep};

/// Columns per task of the reduction over blocks.
const COLUMNS: usize = 1 << 10;

pub(super) fn update(
    op: &OptimizerStep,
    rule: &Adafactor,
    numbers: &[f32],
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let &[learning_rate, step, new_weight, max_rate] = numbers else {
        unreachable!("the type of the step's numbers was checked")
    };
    let weights = Weights::new(op, step, operands);
    let Some(gradient_scale) = gradient_scale(&op.gradients, operands, op.numbers_input() + 1) else {
        return skip_step(&op.gradients.members, &weights, workers);
    };
    let layout = op.states()[0].layout(&op.gradients.members, *operands.output_type(0)).0;
    let variances: &mut [f32] = operands.output(1);
    for (member, state) in op.gradients.members.iter().zip(layout.iter()) {
        let factored = Factored::of(&member.shape);
        let variances = &mut variances[state.offset..][..state.elements()];
        let tensor = Tensor { member, factored, weights: &weights, gradient_scale, workers };
        let (sums, partial_columns) = scratch.split_at_mut(4 * factored.blocks());
        let (sums, partial_columns) =
            (as_f64(sums), &mut partial_columns[..factored.blocks() * factored.columns]);
        let (rows, columns) = variances.split_at_mut(factored.rows_with_variances());
        let squares = tensor.accumulate_squares(new_weight, rows, sums, partial_columns);
        tensor.update_columns(new_weight, columns, partial_columns);
        let mean = rows.iter().map(|&row| f64::from(row)).sum::<f64>() / factored.rows as f64;
        let (rows, mean) = match factored.is_matrix {
            true => (&*rows, (mean as f32).max(rule.epsilon)),
            false => (&[1.0][..], 1.0),
        };
        let variance = Variance { rows, columns, mean, min: rule.epsilon * rule.epsilon };
        let elements = member.elements() as f64;
        let scale = ((squares / elements).sqrt() as f32).max(rule.scale_epsilon);
        let direction_rms = (tensor.sum_of_squared_direction(&variance, sums) / elements).sqrt() as f32;
        let decay = if member.decay { learning_rate * rule.weight_decay } else { 0.0 };
        let rate = scale * learning_rate.min(max_rate) / clip_divisor(direction_rms / rule.clip_threshold);
        tensor.apply(&variance, 1.0 - decay, rate);
    }
}

/// The divisor that clips a direction: at least 1, or NaN, so that NaN propagates to the parameters.
fn clip_divisor(ratio: f32) -> f32 {
    if ratio < 1.0 { 1.0 } else { ratio }
}

struct Tensor<'a> {
    member: &'a Member,
    factored: Factored,
    weights: &'a Weights<'a>,
    gradient_scale: f32,
    workers: &'a Workers,
}

/// The factored second moment. An element's variance is `rows[i] * columns[j] / mean`, at least `min`.
struct Variance<'a> {
    rows: &'a [f32],
    columns: &'a [f32],
    /// Mean of `rows`.
    mean: f32,
    min: f32,
}

impl Tensor<'_> {
    fn rows_of(&self, block: usize) -> Range<usize> {
        let len = self.factored.rows_per_block();
        block * len..self.factored.rows.min((block + 1) * len)
    }

    /// The elements of a row.
    fn row(&self, row: usize) -> Range<usize> {
        let begin = self.member.offset + row * self.factored.columns;
        begin..begin + self.factored.columns
    }

    /// Updates the row variances with weight `new_weight`, and sums the squared gradients of each block's columns.
    /// Returns the sum of the squared parameters.
    fn accumulate_squares(
        &self,
        new_weight: f32,
        rows: &mut [f32],
        sums: &mut [f64],
        partial_columns: &mut [f32],
    ) -> f64 {
        let (factored, level) = (self.factored, self.workers.level());
        let len = factored.columns;
        let (rows, partials) = (SharedSlice::new(rows), SharedSlice::new(partial_columns));
        let all = SharedSlice::new(&mut sums[..factored.blocks()]);
        self.workers.for_each(factored.blocks(), |block| {
            // SAFETY: each block has its own rows, sum and partial sums.
            #[allow(unsafe_code)]
            let (sum, columns, mut variances) = unsafe {
                let variances = factored.is_matrix.then(|| rows.range_mut(self.rows_of(block)));
                (
                    all.range_mut(block..block + 1),
                    partials.range_mut(block * len..(block + 1) * len),
                    variances,
                )
            };
            columns.fill(0.0);
            sum[0] = 0.0;
            for (index, row) in self.rows_of(block).enumerate() {
                let mut row_sum = 0.0;
                self.weights.read(level, self.row(row), |range, parameters, gradients| {
                    sum[0] += sum_of_squares(level, parameters);
                    row_sum += add_squares(level, self.gradient_scale, gradients, &mut columns[range]);
                });
                if let Some(variances) = &mut variances {
                    variances[index] += (row_sum / len as f32 - variances[index]) * new_weight;
                }
            }
        });
        sums[..factored.blocks()].iter().sum()
    }

    /// Updates the column variances from the partial sums of all blocks.
    fn update_columns(&self, new_weight: f32, columns: &mut [f32], partial_columns: &[f32]) {
        let (len, rows) = (columns.len(), self.factored.rows);
        let columns = SharedSlice::new(columns);
        self.workers.for_each_chunk(len, COLUMNS, |range| {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let variances = unsafe { columns.range_mut(range.clone()) };
            let mut sums = [0.0; COLUMNS];
            let sums = &mut sums[..range.len()];
            for partial in partial_columns.chunks_exact(len) {
                sums.iter_mut().zip(&partial[range.clone()]).for_each(|(sum, partial)| *sum += partial);
            }
            for (variance, sum) in variances.iter_mut().zip(sums) {
                *variance += (*sum / rows as f32 - *variance) * new_weight;
            }
        });
    }

    /// The sum of the squares of the direction, the gradients over the roots of their variances.
    fn sum_of_squared_direction(&self, variance: &Variance, sums: &mut [f64]) -> f64 {
        let level = self.workers.level();
        let sums = &mut sums[..self.factored.blocks()];
        let all = SharedSlice::new(sums);
        self.workers.for_each(self.factored.blocks(), |block| {
            // SAFETY: each block has its own sum.
            #[allow(unsafe_code)]
            let sum = unsafe { all.range_mut(block..block + 1) };
            sum[0] = 0.0;
            for row in self.rows_of(block) {
                self.weights.read(level, self.row(row), |range, _, gradients| {
                    let Variance { rows, columns, mean, min } = *variance;
                    let row = Row { gradient_scale: self.gradient_scale, variance: rows[row] / mean, min };
                    sum[0] += f64::from(row_direction_squares(level, row, gradients, &columns[range]));
                });
            }
        });
        sums.iter().sum()
    }

    /// Updates all parameters: `parameter = parameter * decay_factor - rate * direction`.
    fn apply(&self, variance: &Variance, decay_factor: f32, rate: f32) {
        let (level, width, offset) = (self.workers.level(), self.factored.columns, self.member.offset);
        self.workers.for_each_chunk(self.member.elements(), CHUNK, |chunk| {
            let first = chunk.start;
            let work = |range: Range<usize>, parameters: &mut [f32], gradients: &[f32]| {
                let mut done = 0;
                while done < range.len() {
                    let element = first + range.start + done;
                    let (row, column) = (element / width, element % width);
                    let len = (width - column).min(range.len() - done);
                    let Variance { rows, columns, mean, min } = *variance;
                    let columns = &columns[column..column + len];
                    let row = Row { gradient_scale: self.gradient_scale, variance: rows[row] / mean, min };
                    let in_row = done..done + len;
                    update_row(
                        level,
                        row,
                        decay_factor,
                        rate,
                        &mut parameters[in_row.clone()],
                        &gradients[in_row],
                        columns,
                    );
                    done += len;
                }
            };
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                self.weights.update(level, self.member, offset + chunk.start..offset + chunk.end, work);
            }
        });
    }
}

/// Values that the elements of a row share.
#[derive(Clone, Copy)]
struct Row {
    gradient_scale: f32,
    /// The row's variance over the mean of all rows.
    variance: f32,
    min: f32,
}

simd! {
    /// Adds the squared gradients to the sums of their columns, and returns their sum.
    fn add_squares(gradient_scale: f32, gradients: &[f32], columns: &mut [f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = gradients.as_chunks::<16>();
        let (whole_columns, rest_columns) = columns[..gradients.len()].as_chunks_mut::<16>();
        for (chunk, columns) in whole.iter().zip(whole_columns) {
            for ((lane, &gradient), column) in lanes.iter_mut().zip(chunk).zip(columns) {
                let square = (gradient * gradient_scale) * (gradient * gradient_scale);
                *lane += square;
                *column += square;
            }
        }
        for ((lane, &gradient), column) in lanes.iter_mut().zip(rest).zip(rest_columns) {
            let square = (gradient * gradient_scale) * (gradient * gradient_scale);
            *lane += square;
            *column += square;
        }
        lanes.iter().sum()
    }
}

simd! {
    fn row_direction_squares(row: Row, gradients: &[f32], columns: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = gradients.as_chunks::<16>();
        let (whole_columns, rest_columns) = columns[..gradients.len()].as_chunks::<16>();
        for (chunk, columns) in whole.iter().zip(whole_columns) {
            for ((lane, &gradient), &column) in lanes.iter_mut().zip(chunk).zip(columns) {
                let gradient = gradient * row.gradient_scale;
                *lane += gradient * gradient / (row.variance * column).max(row.min);
            }
        }
        for ((lane, &gradient), &column) in lanes.iter_mut().zip(rest).zip(rest_columns) {
            let gradient = gradient * row.gradient_scale;
            *lane += gradient * gradient / (row.variance * column).max(row.min);
        }
        lanes.iter().sum()
    }
}

simd! {
    fn update_row(
        row: Row,
        decay_factor: f32,
        rate: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        columns: &[f32],
    ) {
        for ((parameter, gradient), column) in parameters.iter_mut().zip(gradients).zip(columns) {
            let direction = gradient * row.gradient_scale / (row.variance * column).max(row.min).sqrt();
            *parameter = *parameter * decay_factor - rate * direction;
        }
    }
}
