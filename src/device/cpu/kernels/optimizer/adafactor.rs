//! Adafactor's step: two passes over a tensor for its sums, and one that updates it.

use std::ops::Range;

use super::{CHUNK, leave_out, share};
use crate::cpu::kernels::as_f64;
use crate::cpu::kernels::global_norm::sum_of_squares;
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::simd::simd;
use crate::cpu::kernels::weights::Weights;
use crate::cpu::kernels::workers::{Parts, Workers};
use ops::{Adafactor, Factored, Member, OptimizerStep};

/// Columns that a thread adds up at a time.
const COLUMNS: usize = 1 << 10;

pub(super) fn update(
    op: &OptimizerStep,
    rule: &Adafactor,
    numbers: &[f32],
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let &[learning_rate, step, new, most] = numbers else {
        unreachable!("the type of the step's numbers was checked")
    };
    let weights = Weights::new(op, step, operands);
    let Some(share) = share(&op.gradients, operands, op.numbers_input() + 1) else {
        return leave_out(&op.gradients.members, &weights, workers);
    };
    let kept = op.states()[0].layout(&op.gradients.members, *operands.output_type(0)).0;
    let variances: &mut [f32] = operands.output(1);
    for (member, of) in op.gradients.members.iter().zip(kept.iter()) {
        let factored = Factored::of(&member.shape);
        let variances = &mut variances[of.offset..][..of.elements()];
        let tensor = Tensor { member, factored, weights: &weights, share, workers };
        let (sums, partial_columns) = scratch.split_at_mut(4 * factored.blocks());
        let (sums, partial_columns) =
            (as_f64(sums), &mut partial_columns[..factored.blocks() * factored.columns]);
        let (rows, columns) = variances.split_at_mut(factored.rows_with_variances());
        let squares = tensor.add_up(new, rows, sums, partial_columns);
        tensor.bring_together(new, columns, partial_columns);
        let mean = rows.iter().map(|&row| f64::from(row)).sum::<f64>() / factored.rows as f64;
        let (rows, mean) = match factored.is_matrix {
            true => (&*rows, (mean as f32).max(rule.epsilon)),
            false => (&[1.0][..], 1.0),
        };
        let variance = Variance { rows, columns, mean, least: rule.epsilon * rule.epsilon };
        let elements = member.elements() as f64;
        let scale = ((squares / elements).sqrt() as f32).max(rule.scale_epsilon);
        let direction = (tensor.squares_of_direction(&variance, sums) / elements).sqrt() as f32;
        let taken = if member.decay { learning_rate * rule.weight_decay } else { 0.0 };
        let rate = scale * learning_rate.min(most) / clipped(direction / rule.clip_threshold);
        tensor.take(&variance, 1.0 - taken, rate);
    }
}

/// What a direction is divided by; one that is not a number must show in the parameters.
fn clipped(ratio: f32) -> f32 {
    if ratio < 1.0 { 1.0 } else { ratio }
}

struct Tensor<'a> {
    member: &'a Member,
    factored: Factored,
    weights: &'a Weights<'a>,
    /// What gradients count.
    share: f32,
    workers: &'a Workers,
}

/// That of each element: of its row times that of its column over the mean of all rows, but no less than the least.
struct Variance<'a> {
    rows: &'a [f32],
    columns: &'a [f32],
    mean: f32,
    least: f32,
}

impl Tensor<'_> {
    fn rows_of(&self, block: usize) -> Range<usize> {
        let each = self.factored.rows_per_block();
        block * each..self.factored.rows.min((block + 1) * each)
    }

    /// The elements of a row.
    fn row(&self, row: usize) -> Range<usize> {
        let begin = self.member.offset + row * self.factored.columns;
        begin..begin + self.factored.columns
    }

    /// Moves the rows' variances, and adds up each block's columns. Returns the sum of the parameters' squares.
    fn add_up(&self, new: f32, rows: &mut [f32], sums: &mut [f64], partial_columns: &mut [f32]) -> f64 {
        let (factored, level) = (self.factored, self.workers.level());
        let len = factored.columns;
        let (rows, partials) = (Parts::new(rows), Parts::new(partial_columns));
        let all = Parts::new(&mut sums[..factored.blocks()]);
        self.workers.each(factored.blocks(), |block| {
            // SAFETY: each block has rows, a sum and partial sums of its own.
            #[allow(unsafe_code)]
            let (sum, columns, mut variances) = unsafe {
                let variances = factored.is_matrix.then(|| rows.part(self.rows_of(block)));
                (all.part(block..block + 1), partials.part(block * len..(block + 1) * len), variances)
            };
            columns.fill(0.0);
            sum[0] = 0.0;
            for (index, row) in self.rows_of(block).enumerate() {
                let mut of_row = 0.0;
                self.weights.read(level, self.row(row), |part, parameters, gradients| {
                    sum[0] += sum_of_squares(level, parameters);
                    of_row += add_squares(level, self.share, gradients, &mut columns[part]);
                });
                if let Some(variances) = &mut variances {
                    variances[index] += (of_row / len as f32 - variances[index]) * new;
                }
            }
        });
        sums[..factored.blocks()].iter().sum()
    }

    /// Moves the columns' variances by what each block has added up.
    fn bring_together(&self, new: f32, columns: &mut [f32], partial_columns: &[f32]) {
        let (len, rows) = (columns.len(), self.factored.rows);
        let columns = Parts::new(columns);
        self.workers.chunks(len, COLUMNS, |range| {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let variances = unsafe { columns.part(range.clone()) };
            let mut sums = [0.0; COLUMNS];
            let sums = &mut sums[..range.len()];
            for partial in partial_columns.chunks_exact(len) {
                sums.iter_mut().zip(&partial[range.clone()]).for_each(|(sum, partial)| *sum += partial);
            }
            for (variance, sum) in variances.iter_mut().zip(sums) {
                *variance += (*sum / rows as f32 - *variance) * new;
            }
        });
    }

    /// The sum of the squares of what gradients become.
    fn squares_of_direction(&self, variance: &Variance, sums: &mut [f64]) -> f64 {
        let level = self.workers.level();
        let sums = &mut sums[..self.factored.blocks()];
        let all = Parts::new(sums);
        self.workers.each(self.factored.blocks(), |block| {
            // SAFETY: each block has a sum of its own.
            #[allow(unsafe_code)]
            let sum = unsafe { all.part(block..block + 1) };
            sum[0] = 0.0;
            for row in self.rows_of(block) {
                self.weights.read(level, self.row(row), |part, _, gradients| {
                    let Variance { rows, columns, mean, least } = *variance;
                    let row = Row { share: self.share, variance: rows[row] / mean, least };
                    sum[0] += f64::from(squares_of_row(level, row, gradients, &columns[part]));
                });
            }
        });
        sums.iter().sum()
    }

    /// Updates all parameters: what remains of each, less the rate times its direction.
    fn take(&self, variance: &Variance, kept: f32, rate: f32) {
        let (level, width, offset) = (self.workers.level(), self.factored.columns, self.member.offset);
        self.workers.chunks(self.member.elements(), CHUNK, |run| {
            let first = run.start;
            let work = |part: Range<usize>, parameters: &mut [f32], gradients: &[f32]| {
                let mut done = 0;
                while done < part.len() {
                    let element = first + part.start + done;
                    let (row, column) = (element / width, element % width);
                    let len = (width - column).min(part.len() - done);
                    let Variance { rows, columns, mean, least } = *variance;
                    let columns = &columns[column..column + len];
                    let row = Row { share: self.share, variance: rows[row] / mean, least };
                    let of_row = done..done + len;
                    take_row(
                        level,
                        row,
                        kept,
                        rate,
                        &mut parameters[of_row.clone()],
                        &gradients[of_row],
                        columns,
                    );
                    done += len;
                }
            };
            // SAFETY: runs do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                self.weights.update(level, self.member, offset + run.start..offset + run.end, work);
            }
        });
    }
}

/// What elements of a row have in common.
#[derive(Clone, Copy)]
struct Row {
    share: f32,
    /// Over the mean of all rows.
    variance: f32,
    least: f32,
}

simd! {
    /// Adds the squares to those of the columns, and up.
    fn add_squares(share: f32, gradients: &[f32], columns: &mut [f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = gradients.as_chunks::<16>();
        let (of_whole, of_rest) = columns[..gradients.len()].as_chunks_mut::<16>();
        for (chunk, columns) in whole.iter().zip(of_whole) {
            for ((lane, &gradient), column) in lanes.iter_mut().zip(chunk).zip(columns) {
                let square = (gradient * share) * (gradient * share);
                *lane += square;
                *column += square;
            }
        }
        for ((lane, &gradient), column) in lanes.iter_mut().zip(rest).zip(of_rest) {
            let square = (gradient * share) * (gradient * share);
            *lane += square;
            *column += square;
        }
        lanes.iter().sum()
    }
}

simd! {
    fn squares_of_row(row: Row, gradients: &[f32], columns: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = gradients.as_chunks::<16>();
        let (of_whole, of_rest) = columns[..gradients.len()].as_chunks::<16>();
        for (chunk, columns) in whole.iter().zip(of_whole) {
            for ((lane, &gradient), &column) in lanes.iter_mut().zip(chunk).zip(columns) {
                let gradient = gradient * row.share;
                *lane += gradient * gradient / (row.variance * column).max(row.least);
            }
        }
        for ((lane, &gradient), &column) in lanes.iter_mut().zip(rest).zip(of_rest) {
            let gradient = gradient * row.share;
            *lane += gradient * gradient / (row.variance * column).max(row.least);
        }
        lanes.iter().sum()
    }
}

simd! {
    fn take_row(
        row: Row,
        kept: f32,
        rate: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        columns: &[f32],
    ) {
        for ((parameter, gradient), column) in parameters.iter_mut().zip(gradients).zip(columns) {
            let direction = gradient * row.share / (row.variance * column).max(row.least).sqrt();
            *parameter = *parameter * kept - rate * direction;
        }
    }
}
