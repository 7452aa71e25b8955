//! Muon's step. For each parameter: update the momentum, orthogonalize its matrices by a Newton-Schulz iteration of
//! matmuls, and update the parameter.

use std::ops::Range;

use super::{CHUNK, for_each_chunk, gradient_scale, skip_step};
use crate::cpu::kernels::float::{BUFFER, Bf16, F16, Float, read, write};
use crate::cpu::kernels::global_norm::sum_of_squares;
use crate::cpu::kernels::matmul::{Matmul, Matrix};
use crate::cpu::kernels::operands::{Addend, Operands};
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::states::States;
use crate::cpu::kernels::weights::Weights;
use crate::cpu::kernels::workers::{SharedSlice, Workers};
use crate::cpu::kernels::{as_f64, as_floats};
use ops::{DType, Member, Muon, MuonScratch, OptimizerStep};

pub(super) fn update(
    op: &OptimizerStep,
    rule: &Muon,
    numbers: &[f32],
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    match rule.dtype {
        DType::BF16 => run::<Bf16>(op, rule, numbers, operands, scratch, workers),
        DType::F16 => run::<F16>(op, rule, numbers, operands, scratch, workers),
        _ => run::<f32>(op, rule, numbers, operands, scratch, workers),
    }
}

fn run<T: Float>(
    op: &OptimizerStep,
    rule: &Muon,
    numbers: &[f32],
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let &[learning_rate, step] = numbers else { unreachable!("the type of the step's numbers was checked") };
    let (members, level) = (&op.gradients.members, workers.level());
    let weights = Weights::new(op, step, operands);
    let Some(gradient_scale) = gradient_scale(&op.gradients, operands, op.numbers_input() + 1) else {
        return skip_step(members, &weights, workers);
    };
    let states = States::<1>::new(op, step, operands);
    let mut scratch = Scratch::<T>::new(rule.scratch(members), scratch);
    let momentum = MomentumUpdate {
        gradient_scale,
        gradient_weight: (1.0 - rule.momentum) as f32,
        nesterov: rule.nesterov,
    };
    for member in members.iter() {
        let columns = member.shape.last();
        let matrices = || member.matrices().map(|rows| rows.start * columns..rows.end * columns);
        update_momentum(member, momentum, &weights, &states, scratch.direction, workers);
        matrices().for_each(|matrix| scratch.normalize(matrix, rule.epsilon, workers));
        matrices().for_each(|matrix| scratch.orthogonalize(matrix, columns, rule, workers));
        let orthogonal = scratch.result_after(rule.steps);
        let decay = if member.decay { learning_rate * rule.weight_decay } else { 0.0 };
        for_each_chunk(std::slice::from_ref(member), workers, |member, chunk| {
            let first = chunk.start - member.offset;
            let work = |range: Range<usize>, parameters: &mut [f32], _: &[f32]| {
                let directions = &orthogonal[first + range.start..first + range.end];
                read(level, directions, &mut [0.0; BUFFER], |range, directions| {
                    update_parameters(level, 1.0 - decay, learning_rate, &mut parameters[range], directions);
                });
            };
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                weights.update(level, member, chunk, work);
            }
        });
    }
}

/// Updates the momentum of a parameter, and stores the directions that follow from it.
fn update_momentum(
    member: &Member,
    update: MomentumUpdate,
    weights: &Weights,
    states: &States<1>,
    directions: &mut [f32],
    workers: &Workers,
) {
    let (directions, level) = (SharedSlice::new(&mut directions[..member.elements()]), workers.level());
    for_each_chunk(std::slice::from_ref(member), workers, |member, chunk| {
        let work = |piece: Range<usize>, [momentum]: [&mut [f32]; 1]| {
            let first = piece.start - member.offset;
            // SAFETY: chunks do not overlap, nor do their pieces.
            #[allow(unsafe_code)]
            let directions = unsafe { directions.range_mut(first..first + piece.len()) };
            weights.read(level, piece, |range, _, gradients| {
                let (momentum, directions) = (&mut momentum[range.clone()], &mut directions[range]);
                momentum_step(level, update, gradients, momentum, directions);
            });
        };
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        unsafe {
            states.update(level, member, chunk, work);
        }
    });
}

/// The scratch memory, divided as in `MuonScratch`.
struct Scratch<'a, T> {
    /// The direction of a whole parameter; during the iteration, `x` after odd steps.
    direction: &'a mut [f32],
    /// `x` of the iteration after even steps.
    factors: &'a mut [T],
    gram: &'a mut [T],
    polynomial: &'a mut [T],
    sums: &'a mut [f64],
    product: &'a mut [f32],
}

impl<'a, T: Float> Scratch<'a, T> {
    fn new(layout: MuonScratch, mut scratch: &'a mut [f32]) -> Scratch<'a, T> {
        let MuonScratch { direction, factors, gram, polynomial, sums, product } = layout;
        let mut next = |begin: u64, end: u64| {
            let len = (end - begin) as usize / size_of::<f32>();
            scratch.split_off_mut(..len).expect("the workspace is large enough")
        };
        Scratch {
            direction: next(direction, factors),
            factors: as_floats(next(factors, gram)),
            gram: as_floats(next(gram, polynomial)),
            polynomial: as_floats(next(polynomial, sums)),
            sums: as_f64(next(sums, product)),
            product: scratch,
        }
    }

    /// Divides a matrix of the direction by its norm, at least `min`, and writes it to `factors`.
    fn normalize(&mut self, matrix: Range<usize>, min: f32, workers: &Workers) {
        let level = workers.level();
        let (direction, factors) = (&self.direction[matrix.clone()], &mut self.factors[matrix]);
        let sums = SharedSlice::new(&mut self.sums[..Muon::SUMS]);
        workers.for_each(Muon::SUMS, |index| {
            // SAFETY: each task has its own sum.
            #[allow(unsafe_code)]
            let sum = unsafe { sums.range_mut(index..index + 1) };
            let values = &direction[Muon::summed(index, direction.len())];
            sum[0] = sum_of_squares(level, values);
        });
        let norm = self.sums[..Muon::SUMS].iter().sum::<f64>().sqrt() as f32;
        // NaN must propagate to the parameters.
        let norm = if norm < min { min } else { norm };
        let (len, factors) = (direction.len(), SharedSlice::new(factors));
        workers.for_each_chunk(len, CHUNK, |chunk| {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let factors = unsafe { factors.range_mut(chunk.clone()) };
            let direction = &direction[chunk];
            write(level, factors, &mut [0.0; BUFFER], |range, factors| {
                divide(level, norm, &direction[range], factors);
            });
        });
    }

    /// Runs the Newton-Schulz iteration on a matrix in `factors`.
    fn orthogonalize(&mut self, matrix: Range<usize>, columns: usize, rule: &Muon, workers: &Workers) {
        let [a, b, c] = Muon::COEFFICIENTS;
        let level = workers.level();
        let rows = matrix.len() / columns;
        let (is_tall, short, long) = (rows > columns, rows.min(columns), rows.max(columns));
        let gram = &mut self.gram[..short * short];
        let polynomial = &mut self.polynomial[..short * short];
        let workspace = &mut *self.product;
        let mut x = &mut self.factors[matrix.clone()];
        let mut next = &mut as_floats(self.direction)[matrix];
        for step in 0..rule.steps {
            let matrix = Matrix::new(&*x, columns);
            let (left, right) =
                if is_tall { (matrix.transposed(), matrix) } else { (matrix, matrix.transposed()) };
            plain_matmul([short, long, short], left, right).run(gram, None, workspace, workers);
            let square = Matrix::new(&*gram, short);
            let epilogue =
                |range: Range<usize>, result: &mut [f32]| combine(level, [c, b], result, &gram[range]);
            plain_matmul([short; 3], square, square).run(polynomial, Some(&epilogue), workspace, workers);
            let square = Matrix::new(&*polynomial, short);
            let (left, right) = if is_tall { (matrix, square) } else { (square, matrix) };
            let scale = rule.scale_of(step, rows, columns);
            let epilogue = |range: Range<usize>, result: &mut [f32]| {
                combine(level, [scale, scale * a], result, &x[range])
            };
            plain_matmul([rows, short, columns], left, right).run(next, Some(&epilogue), workspace, workers);
            std::mem::swap(&mut x, &mut next);
        }
    }

    /// `x` after this number of steps.
    fn result_after(&mut self, steps: usize) -> &[T] {
        if steps.is_multiple_of(2) { self.factors } else { as_floats(self.direction) }
    }
}

/// A matmul without addend, bias and row sums.
fn plain_matmul<'a, T: Float>(
    [rows, inner, columns]: [usize; 3],
    left: Matrix<'a, T>,
    right: Matrix<'a, T>,
) -> Matmul<'a, T, T, T> {
    Matmul { rows, inner, columns, left, right, addend: Addend::Zero, bias: None, sums: None }
}

/// `result = scale * result + other_scale * other`
fn combine<T: Float>(level: Level, [scale, other_scale]: [f32; 2], result: &mut [f32], other: &[T]) {
    read(level, other, &mut [0.0; BUFFER], |range, other| {
        scale_and_add(level, scale, other_scale, &mut result[range], other)
    });
}

/// The constants of one update of the momentum.
#[derive(Clone, Copy)]
struct MomentumUpdate {
    gradient_scale: f32,
    /// Weight of the gradient in the moving average.
    gradient_weight: f32,
    nesterov: bool,
}

simd! {
    fn momentum_step(
        update: MomentumUpdate, gradients: &[f32], momentum: &mut [f32], directions: &mut [f32],
    ) {
        let MomentumUpdate { gradient_scale, gradient_weight, nesterov } = update;
        let ahead = if nesterov { gradient_weight } else { 0.0 };
        for ((gradient, momentum), direction) in gradients.iter().zip(momentum).zip(directions) {
            let gradient = gradient * gradient_scale;
            *momentum += gradient_weight * (gradient - *momentum);
            *direction = *momentum + ahead * (gradient - *momentum);
        }
    }
}

simd! {
    fn divide(norm: f32, values: &[f32], results: &mut [f32]) {
        results.iter_mut().zip(values).for_each(|(result, value)| *result = value / norm);
    }
}

simd! {
    fn scale_and_add(scale: f32, other_scale: f32, result: &mut [f32], other: &[f32]) {
        result.iter_mut().zip(other).for_each(|(result, other)| *result = scale * *result + other_scale * other);
    }
}

simd! {
    fn update_parameters(decay_factor: f32, rate: f32, parameters: &mut [f32], directions: &[f32]) {
        for (parameter, direction) in parameters.iter_mut().zip(directions) {
            *parameter = *parameter * decay_factor - rate * direction;
        }
    }
}
