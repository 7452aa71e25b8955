//! Muon against its definition in f64.

use super::harness::{Data, LaunchOptions, check, launch, relative_error};
use crate::cpu::kernels::simd::Level;
use ops::{
    Adjust, Arithmetic, DType, GradientTerms, Member, Members, Muon, Op, OptimizerStep, Rounding, Rule,
    Shape, StackedRows, StateFormat, TensorType, UpdateFormat, UpdateRule, lay_out,
};

const LEARNING_RATE: f32 = 0.3;

fn muon(nesterov: bool, steps: usize, adjust: Adjust) -> Muon {
    let (dtype, tf32) = (DType::F32, false);
    Muon { momentum: 0.9, nesterov, weight_decay: 0.1, steps, epsilon: 1e-7, adjust, dtype, tf32 }
}

/// Wide and tall matrices, and stacks of several matrices; every other tensor decays.
fn bucket() -> (Members, TensorType) {
    let shapes: [([usize; 2], &[usize]); 5] = [
        ([37, 50], &[]),
        ([300, 3], &[]),
        ([64, 64], &[]),
        ([96, 40], &[64, 16, 16]),
        ([140, 33], &[70, 70]),
    ];
    let member = |(index, (dims, rows)): (usize, &([usize; 2], &[usize]))| Member {
        stacked: StackedRows::new(rows),
        ..Member::new(Shape::new(dims), index % 2 == 0, index as u32)
    };
    lay_out(shapes.iter().enumerate().map(member), DType::F32, DType::F32)
}

/// An optimizer step with its inputs.
fn update(rule: Muon, clip_norm: Option<f32>, loss_scale: Option<f32>) -> (OptimizerStep, Vec<Data>) {
    let (members, ty) = bucket();
    let gradients = GradientTerms { members, clip_norm, scaled: loss_scale.is_some() };
    let op =
        OptimizerStep { gradients, format: UpdateFormat::default(), numbers_at: 0, rule: Rule::Muon(rule) };
    let numbers = op.rule.numbers(5, LEARNING_RATE);
    let mut inputs: Vec<Data> = (0..3).map(|seed| Data::random(&[ty.elements()], seed)).collect();
    inputs.push(Data::F32(TensorType::f32(&[numbers.len()]), numbers));
    inputs.extend((clip_norm.is_some() || loss_scale.is_some()).then(|| Data::scalar(2.0)));
    inputs.extend(loss_scale.map(Data::scalar));
    (op, inputs)
}

/// A step with usual settings.
pub(super) fn usual(clip_norm: Option<f32>, loss_scale: Option<f32>) -> (Op, Vec<Data>) {
    let (op, inputs) = update(muon(true, 5, Adjust::Original), clip_norm, loss_scale);
    (Op::OptimizerStep(op), inputs)
}

/// `[rows, inner] [inner, columns]`
fn product(left: &[f64], right: &[f64], inner: usize) -> Vec<f64> {
    let columns = right.len() / inner;
    let product_row = |row: &[f64]| {
        let mut sums = vec![0.0; columns];
        for (&factor, right) in row.iter().zip(right.chunks(columns)) {
            sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += factor * right);
        }
        sums
    };
    left.chunks(inner).flat_map(product_row).collect()
}

fn transposed(matrix: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|column| matrix.iter().skip(column).step_by(columns).copied()).collect()
}

/// The Newton-Schulz iteration.
fn orthogonal(x: &[f64], columns: usize, steps: usize) -> Vec<f64> {
    let rows = x.len() / columns;
    if rows > columns {
        return transposed(&orthogonal(&transposed(x, columns), rows, steps), rows);
    }
    let [a, b, c] = Muon::COEFFICIENTS.map(f64::from);
    (0..steps).fold(x.to_vec(), |x, _| {
        let gram = product(&x, &transposed(&x, columns), columns);
        let square = product(&gram, &gram, rows);
        let polynomial: Vec<f64> = gram.iter().zip(square).map(|(y, yy)| b * y + c * yy).collect();
        product(&polynomial, &x, rows).iter().zip(&x).map(|(product, x)| a * x + product).collect()
    })
}

/// The updated parameters and momenta of a bucket.
fn expected(rule: &Muon, op: &OptimizerStep, gradient_scale: f64, inputs: &[Data]) -> [Vec<f64>; 2] {
    let [mut parameters, gradients, mut momenta] = [0, 1, 2].map(|index| inputs[index].to_f64());
    let rate = f64::from(LEARNING_RATE);
    for member in op.gradients.members.iter() {
        let columns = member.shape.last();
        for rows in member.matrices() {
            let all = member.offset + rows.start * columns..member.offset + rows.end * columns;
            let direction: Vec<f64> = gradients[all.clone()]
                .iter()
                .zip(&mut momenta[all.clone()])
                .map(|(gradient, momentum)| {
                    let gradient = gradient * gradient_scale;
                    *momentum += (1.0 - rule.momentum) * (gradient - *momentum);
                    if rule.nesterov { gradient + rule.momentum * (*momentum - gradient) } else { *momentum }
                })
                .collect();
            let norm = direction.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::from(rule.epsilon));
            let direction: Vec<f64> = direction.iter().map(|x| x / norm).collect();
            let (long, ratio) = (rows.len().max(columns) as f64, rows.len() as f64 / columns as f64);
            let factor = match rule.adjust {
                Adjust::Original => ratio.max(1.0).sqrt(),
                Adjust::MatchRmsAdamW => 0.2 * long.sqrt(),
            };
            let decay_factor = if member.decay { 1.0 - rate * f64::from(rule.weight_decay) } else { 1.0 };
            let direction = orthogonal(&direction, columns, rule.steps);
            for (parameter, direction) in parameters[all].iter_mut().zip(direction) {
                *parameter = *parameter * decay_factor - rate * factor * direction;
            }
        }
    }
    [parameters, momenta]
}

#[test]
fn muon_matches_its_definition() {
    let clips =
        [((None, None), 1.0), ((Some(0.5), None), 0.5 / (2.0 + 1e-6)), ((None, Some(3.0)), 1.0 / 3.0)];
    for ((clip_norm, loss_scale), gradient_scale) in clips {
        for rule in [muon(true, 5, Adjust::Original), muon(false, 2, Adjust::MatchRmsAdamW)] {
            let (op, inputs) = update(rule.clone(), clip_norm, loss_scale);
            let expected = expected(&rule, &op, gradient_scale, &inputs);
            check(Op::OptimizerStep(op), &inputs, &expected);
        }
    }
}

/// The relative error of an update, compared with f64.
fn update_error(op: &OptimizerStep, inputs: &[Data], expected: &[f64], level: Level) -> f64 {
    let found =
        &launch(&Op::OptimizerStep(op.clone()), inputs, LaunchOptions { threads: 2, level, alias: false })[0];
    let initial = inputs[0].to_f64();
    let change: Vec<f32> =
        found.iter().zip(&initial).map(|(found, initial)| (f64::from(*found) - initial) as f32).collect();
    let expected: Vec<f64> =
        expected.iter().zip(&initial).map(|(expected, initial)| expected - initial).collect();
    relative_error(&change, &expected)
}

/// Every matmul rounds its operands, and later iterations correct only part of the error.
#[test]
fn updates_with_16_bit_matmuls_are_near_f64() {
    for (dtype, max_error) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let arithmetic = Arithmetic { matrices: dtype, accumulators: DType::F32, tf32: false };
        let mut rule = muon(true, 5, Adjust::Original);
        rule.set_arithmetic(arithmetic);
        let (op, inputs) = update(rule.clone(), None, None);
        let [expected, _] = expected(&rule, &op, 1.0, &inputs);
        for level in Level::available() {
            let error = update_error(&op, &inputs, &expected, level);
            assert!(error < max_error, "{dtype} at {level:?} is off by {error:e}");
            assert!(dtype == DType::F32 || error > max_error / 100.0, "{dtype} at {level:?} is not used");
        }
    }
}

/// A nearly orthogonal matrix has singular values near 1, and so have the norms of the rows of a wide matrix and of the
/// columns of a tall one.
#[test]
fn updates_are_nearly_orthogonal() {
    let rule = Muon { weight_decay: 0.0, ..muon(true, 5, Adjust::Original) };
    let (op, mut inputs) = update(rule, None, None);
    inputs[0] = inputs[0].clone().map(|_| 0.0);
    let options = LaunchOptions { threads: 2, level: Level::best(), alias: false };
    let updated = &launch(&Op::OptimizerStep(op.clone()), &inputs, options)[0];
    for member in op.gradients.members.iter() {
        let columns = member.shape.last();
        for rows in member.matrices() {
            let adjust = (rows.len() as f64 / columns as f64).max(1.0).sqrt() * f64::from(LEARNING_RATE);
            let x = &updated[member.offset + rows.start * columns..member.offset + rows.end * columns];
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x) / adjust).collect();
            let x = if rows.len() > columns { transposed(&x, columns) } else { x };
            let long = rows.len().max(columns);
            for (index, row) in product(&x, &transposed(&x, long), long).chunks(x.len() / long).enumerate() {
                assert!((0.4..1.6).contains(&row[index]), "{rows:?} of {columns}: {}", row[index]);
            }
        }
    }
}

#[test]
fn momentum_size_follows_the_state_format() {
    let rule = Rule::Muon(muon(true, 5, Adjust::Original));
    let (members, ty) = bucket();
    let bytes = |format| {
        let states = rule.states(format);
        states.iter().map(|state| state.layout(&members, ty).1.bytes()).collect::<Vec<_>>()
    };
    let len = ty.elements() as u64;
    assert_eq!(bytes(StateFormat::F32), [4 * len]);
    assert_eq!(bytes(StateFormat::Bf16(Rounding::Nearest)), [2 * len]);
}

/// Computed by hand for a matrix [300, 3] and a stack [96, 40] of three matrices: the largest parameter has 3,840
/// elements, the largest Gram matrix belongs to [64, 40].
#[test]
fn scratch_memory_fits_the_largest_parameter() {
    let stacked =
        Member { stacked: StackedRows::new(&[64, 16, 16]), ..Member::new(Shape::new(&[96, 40]), true, 0) };
    let members: Members = [Member::new(Shape::new(&[300, 3]), true, 1), stacked].into();
    let mut rule = muon(true, 5, Adjust::Original);
    let square = (40 * 40 * 4u64).next_multiple_of(256);
    assert_eq!(rule.scratch(&members).product, 2 * 3840 * 4 + 2 * square + 128 * 8);
    rule.set_arithmetic(Arithmetic { matrices: DType::BF16, accumulators: DType::F32, tf32: false });
    let square = (40 * 40 * 2u64).next_multiple_of(256);
    assert_eq!(rule.scratch(&members).product, 3840 * 6 + 2 * square + 128 * 8);
    // The three matmuls of each step, for all four matrices.
    let step_flops = |short: u64, long: u64| 2 * short * short * long * 2 + 2 * short * short * short;
    assert_eq!(rule.flops(&members), 5 * (step_flops(3, 300) + step_flops(40, 64) + 2 * step_flops(16, 40)));
}
