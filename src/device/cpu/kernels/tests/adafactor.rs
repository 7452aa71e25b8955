//! Adafactor against its definition in f64.

use super::harness::{Data, cases, check_variants};
use ops::{
    Adafactor, DType, Factored, GradientTerms, Member, Members, Op, OptimizerStep, Rule, Shape, StateFormat,
    TensorType, UpdateFormat, lay_out,
};

fn rule(clip_threshold: f32, weight_decay: f32) -> Adafactor {
    Adafactor { beta2_decay: -0.8, epsilon: 1e-3, scale_epsilon: 1e-3, clip_threshold, weight_decay }
}

/// Matrices with few and many rows, and vectors; every other tensor decays.
fn bucket() -> (Members, TensorType) {
    let shapes: [&[usize]; 6] = [&[37, 50], &[100], &[300, 3], &[1, 70], &[130, 257], &[1]];
    let member =
        |(index, dims): (usize, &&[usize])| Member::new(Shape::new(dims), index % 2 == 0, index as u32);
    lay_out(shapes.iter().enumerate().map(member), DType::F32, DType::F32)
}

/// An optimizer step with its inputs. The variances are random squares times `variance_scale`.
fn update(
    rule: Adafactor,
    terms: (Option<f32>, Option<f32>),
    step: usize,
    variance_scale: f32,
) -> (OptimizerStep, Members, Vec<Data>) {
    let ((members, ty), (clip_norm, loss_scale)) = (bucket(), terms);
    let gradients = GradientTerms { members: members.clone(), clip_norm, scaled: loss_scale.is_some() };
    let op = OptimizerStep {
        gradients,
        format: UpdateFormat::default(),
        numbers_at: 0,
        rule: Rule::Adafactor(rule),
    };
    let (layout, state) = op.states()[0].layout(&members, ty);
    let numbers = op.rule.numbers(step, 0.01);
    let mut inputs: Vec<Data> = (0..2).map(|seed| Data::random(&[ty.elements()], seed)).collect();
    inputs.push(Data::random(&[state.elements()], 2).map(|x| x * x * variance_scale));
    inputs.push(Data::F32(TensorType::f32(&[numbers.len()]), numbers));
    inputs.extend((clip_norm.is_some() || loss_scale.is_some()).then(|| Data::scalar(2.0)));
    inputs.extend(loss_scale.map(Data::scalar));
    (op, layout, inputs)
}

/// A step with usual settings.
pub(super) fn usual(clip_norm: Option<f32>, loss_scale: Option<f32>) -> (Op, Vec<Data>) {
    let (op, _, inputs) = update(rule(1.0, 0.1), (clip_norm, loss_scale), 5, 1.0);
    (Op::OptimizerStep(op), inputs)
}

/// Updates a tensor and its variances as defined.
fn expected(
    rule: &Adafactor,
    factored: Factored,
    decays: bool,
    numbers: &[f64],
    (parameters, gradients, variances): (&mut [f64], &[f64], &mut [f64]),
) {
    let [learning_rate, _, new_weight, max_rate] = numbers.try_into().unwrap();
    let Factored { is_matrix, rows, columns } = factored;
    let rms = |values: &[f64]| (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt();
    let scale = rms(parameters).max(f64::from(rule.scale_epsilon));
    let square = |row: usize, column: usize| gradients[row * columns + column].powi(2);
    let (row_variances, column_variances) = variances.split_at_mut(if is_matrix { rows } else { 0 });
    for (row, variance) in row_variances.iter_mut().enumerate() {
        let mean = (0..columns).map(|column| square(row, column)).sum::<f64>() / columns as f64;
        *variance += (mean - *variance) * new_weight;
    }
    for (column, variance) in column_variances.iter_mut().enumerate() {
        let mean = (0..rows).map(|row| square(row, column)).sum::<f64>() / rows as f64;
        *variance += (mean - *variance) * new_weight;
    }
    let epsilon = f64::from(rule.epsilon);
    let mean = (row_variances.iter().sum::<f64>() / rows as f64).max(epsilon);
    let direction: Vec<f64> = (0..rows * columns)
        .map(|element| {
            let row_factor = if is_matrix { row_variances[element / columns] / mean } else { 1.0 };
            gradients[element] / (row_factor * column_variances[element % columns]).sqrt().max(epsilon)
        })
        .collect();
    let clip_divisor = (rms(&direction) / f64::from(rule.clip_threshold)).max(1.0);
    let decay_factor = if decays { 1.0 - learning_rate * f64::from(rule.weight_decay) } else { 1.0 };
    for (parameter, direction) in parameters.iter_mut().zip(direction) {
        *parameter =
            *parameter * decay_factor - learning_rate.min(max_rate) * scale / clip_divisor * direction;
    }
}

#[test]
fn adafactor_matches_its_definition() {
    let clips =
        [((None, None), 1.0), ((Some(0.5), None), 0.5 / (2.0 + 1e-6)), ((None, Some(3.0)), 1.0 / 3.0)];
    let begins = [(1, 0.0), (5, 1.0), (40_000, 1.0)];
    let large = Adafactor { epsilon: 2.0, ..rule(1.0, 0.0) };
    let rules = [rule(1.0, 0.1), rule(0.3, 0.0), rule(100.0, 0.1), large];
    for ([clip, begin, rule], variants) in cases(2, [clips.len(), begins.len(), rules.len()]) {
        let ((terms, gradient_scale), (step, variance_scale), rule) =
            (clips[clip], begins[begin], &rules[rule]);
        let (op, layout, inputs) = update(rule.clone(), terms, step, variance_scale);
        let [mut parameters, gradients, mut variances, numbers] =
            [0, 1, 2, 3].map(|index| inputs[index].to_f64());
        let gradients: Vec<f64> = gradients.iter().map(|gradient| gradient * gradient_scale).collect();
        for (member, state) in op.gradients.members.iter().zip(layout.iter()) {
            let all = member.offset..member.offset + member.elements();
            let tensor = (
                &mut parameters[all.clone()],
                &gradients[all],
                &mut variances[state.offset..state.offset + state.elements()],
            );
            expected(rule, Factored::of(&member.shape), member.decay, &numbers, tensor);
        }
        check_variants(variants, Op::OptimizerStep(op), &inputs, &[parameters, variances]);
    }
}

/// For any parameter dtype and requested state format.
#[test]
fn variances_are_factored_and_in_f32() {
    let (members, ty) = bucket();
    for format in [StateFormat::F32, StateFormat::Quantized] {
        let states = Rule::Adafactor(rule(1.0, 0.0)).states(format);
        let [state] = states.as_slice() else { panic!("Adafactor has one state") };
        let (layout, state) = state.layout(&members, TensorType { dtype: DType::BF16, ..ty });
        let counts: Vec<usize> = layout.iter().map(Member::elements).collect();
        assert_eq!(counts, [37 + 50, 100, 300 + 3, 1 + 70, 130 + 257, 1]);
        // Each tensor's variances begin at a multiple of 64.
        assert_eq!((state.dtype, state.elements()), (DType::F32, 128 + 128 + 320 + 128 + 448 + 1));
    }
}
