//! Muon's step: for each parameter, its momentum, the matrices of it made orthogonal by products, and its update.

use std::ops::Range;

use super::{CHUNK, each_run, leave_out, share};
use crate::cpu::kernels::float::{BUFFER, Bf16, F16, Float, read, write};
use crate::cpu::kernels::global_norm::sum_of_squares;
use crate::cpu::kernels::operands::{Operands, Start};
use crate::cpu::kernels::product::{Matrix, Product};
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::states::States;
use crate::cpu::kernels::weights::Weights;
use crate::cpu::kernels::workers::{Parts, Workers};
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
    let Some(share) = share(&op.gradients, operands, op.numbers_input() + 1) else {
        return leave_out(members, &weights, workers);
    };
    let states = States::<1>::new(op, step, operands);
    let mut scratch = Scratch::<T>::new(rule.scratch(members), scratch);
    let turn = Turn { share, added: (1.0 - rule.momentum) as f32, nesterov: rule.nesterov };
    for member in members.iter() {
        let columns = member.shape.last();
        let matrices = || member.matrices().map(|rows| rows.start * columns..rows.end * columns);
        turn_all(member, turn, &weights, &states, scratch.direction, workers);
        matrices().for_each(|matrix| scratch.normalise(matrix, rule.epsilon, workers));
        matrices().for_each(|matrix| scratch.orthogonalise(matrix, columns, rule, workers));
        let orthogonal = scratch.after(rule.steps);
        let taken = if member.decay { learning_rate * rule.weight_decay } else { 0.0 };
        each_run(std::slice::from_ref(member), workers, |member, run| {
            let first = run.start - member.offset;
            let work = |part: Range<usize>, parameters: &mut [f32], _: &[f32]| {
                let own = &orthogonal[first + part.start..first + part.end];
                read(level, own, &mut [0.0; BUFFER], |run, directions| {
                    take(level, 1.0 - taken, learning_rate, &mut parameters[run], directions);
                });
            };
            // SAFETY: runs do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                weights.update(level, member, run, work);
            }
        });
    }
}

/// Moves the momentum of a parameter, and stores the directions that it gives.
fn turn_all(
    member: &Member,
    turn: Turn,
    weights: &Weights,
    states: &States<1>,
    directions: &mut [f32],
    workers: &Workers,
) {
    let (directions, level) = (Parts::new(&mut directions[..member.elements()]), workers.level());
    each_run(std::slice::from_ref(member), workers, |member, run| {
        let work = |piece: Range<usize>, [momentum]: [&mut [f32]; 1]| {
            let first = piece.start - member.offset;
            // SAFETY: runs do not overlap, nor do their pieces.
            #[allow(unsafe_code)]
            let directions = unsafe { directions.part(first..first + piece.len()) };
            weights.read(level, piece, |part, _, gradients| {
                turn_momentum(level, turn, gradients, &mut momentum[part.clone()], &mut directions[part]);
            });
        };
        // SAFETY: runs do not overlap.
        #[allow(unsafe_code)]
        unsafe {
            states.update(level, member, run, work);
        }
    });
}

/// The scratch memory, as `MuonScratch` divides it.
struct Scratch<'a, T> {
    /// The direction of a whole parameter; later every other `x`.
    direction: &'a mut [f32],
    factors: &'a mut [T],
    gram: &'a mut [T],
    polynomial: &'a mut [T],
    sums: &'a mut [f64],
    product: &'a mut [f32],
}

impl<'a, T: Float> Scratch<'a, T> {
    fn new(places: MuonScratch, mut scratch: &'a mut [f32]) -> Scratch<'a, T> {
        let MuonScratch { direction, factors, gram, polynomial, sums, product } = places;
        let mut next = |begin: u64, end: u64| {
            let len = (end - begin) as usize / size_of::<f32>();
            scratch.split_off_mut(..len).expect("the workspace holds all parts of it")
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

    /// Puts a matrix of the direction over its norm among the factors.
    fn normalise(&mut self, matrix: Range<usize>, least: f32, workers: &Workers) {
        let level = workers.level();
        let (direction, factors) = (&self.direction[matrix.clone()], &mut self.factors[matrix]);
        let sums = Parts::new(&mut self.sums[..Muon::SUMS]);
        workers.each(Muon::SUMS, |run| {
            // SAFETY: each run has a sum of its own.
            #[allow(unsafe_code)]
            let sum = unsafe { sums.part(run..run + 1) };
            let values = &direction[Muon::summed(run, direction.len())];
            sum[0] = sum_of_squares(level, values);
        });
        let norm = self.sums[..Muon::SUMS].iter().sum::<f64>().sqrt() as f32;
        // What is not a number must show in the parameters.
        let norm = if norm < least { least } else { norm };
        let (len, factors) = (direction.len(), Parts::new(factors));
        workers.chunks(len, CHUNK, |run| {
            // SAFETY: chunks do not overlap.
            #[allow(unsafe_code)]
            let factors = unsafe { factors.part(run.clone()) };
            let direction = &direction[run];
            write(level, factors, &mut [0.0; BUFFER], |run, factors| {
                divide(level, norm, &direction[run], factors);
            });
        });
    }

    /// Goes through the products of a matrix among the factors.
    fn orthogonalise(&mut self, matrix: Range<usize>, columns: usize, rule: &Muon, workers: &Workers) {
        let [a, b, c] = Muon::COEFFICIENTS;
        let level = workers.level();
        let rows = matrix.len() / columns;
        let (is_tall, short, long) = (rows > columns, rows.min(columns), rows.max(columns));
        let gram = &mut self.gram[..short * short];
        let polynomial = &mut self.polynomial[..short * short];
        let product = &mut *self.product;
        let mut x = &mut self.factors[matrix.clone()];
        let mut next = &mut as_floats(self.direction)[matrix];
        for step in 0..rule.steps {
            let along = Matrix::new(&*x, columns);
            let (left, right) =
                if is_tall { (along.transposed(), along) } else { (along, along.transposed()) };
            plain([short, long, short], left, right).run(gram, None, product, workers);
            let square = Matrix::new(&*gram, short);
            let finish = |place: Range<usize>, made: &mut [f32]| combine(level, [c, b], made, &gram[place]);
            plain([short; 3], square, square).run(polynomial, Some(&finish), product, workers);
            let square = Matrix::new(&*polynomial, short);
            let (left, right) = if is_tall { (along, square) } else { (square, along) };
            let scale = rule.scale_of(step, rows, columns);
            let finish =
                |place: Range<usize>, made: &mut [f32]| combine(level, [scale, scale * a], made, &x[place]);
            plain([rows, short, columns], left, right).run(next, Some(&finish), product, workers);
            std::mem::swap(&mut x, &mut next);
        }
    }

    /// Where `x` is after that many steps.
    fn after(&mut self, steps: usize) -> &[T] {
        if steps.is_multiple_of(2) { self.factors } else { as_floats(self.direction) }
    }
}

/// Rows, inner dimension and columns, and nothing but a product.
fn plain<'a, T: Float>(
    [rows, inner, columns]: [usize; 3],
    left: Matrix<'a, T>,
    right: Matrix<'a, T>,
) -> Product<'a, T, T, T> {
    Product { rows, inner, columns, left, right, start: Start::Zero, bias: None, sums: None }
}

/// `made = scale * made + of_other * other`
fn combine<T: Float>(level: Level, [scale, of_other]: [f32; 2], made: &mut [f32], other: &[T]) {
    read(level, other, &mut [0.0; BUFFER], |run, other| add(level, scale, of_other, &mut made[run], other));
}

/// What a momentum does in one step.
#[derive(Clone, Copy)]
struct Turn {
    /// What gradients count.
    share: f32,
    /// The share of a gradient in the mean.
    added: f32,
    nesterov: bool,
}

simd! {
    fn turn_momentum(turn: Turn, gradients: &[f32], momentum: &mut [f32], directions: &mut [f32]) {
        let Turn { share, added, nesterov } = turn;
        let ahead = if nesterov { added } else { 0.0 };
        for ((gradient, momentum), direction) in gradients.iter().zip(momentum).zip(directions) {
            let gradient = gradient * share;
            *momentum += added * (gradient - *momentum);
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
    fn add(scale: f32, of_other: f32, made: &mut [f32], other: &[f32]) {
        made.iter_mut().zip(other).for_each(|(made, other)| *made = scale * *made + of_other * other);
    }
}

simd! {
    fn take(kept: f32, rate: f32, parameters: &mut [f32], directions: &[f32]) {
        for (parameter, direction) in parameters.iter_mut().zip(directions) {
            *parameter = *parameter * kept - rate * direction;
        }
    }
}
