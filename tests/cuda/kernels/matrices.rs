//! Optimizer rules that update whole matrices: Adafactor and Muon.

use ops::{
    Adafactor, Adjust, Arithmetic, DType, GradientTerms, Member, Members, Muon, Op, OptimizerStep, Rounding,
    Rule, Shape, StackedRows, StateFormat, TensorType, UpdateFormat, WeightFormat, lay_out,
};

use super::harness::Devices;
use super::modes::Mode;
use super::numbers::{Data, NUMBERS};
use super::optimizer::{assert_near, stored_operands};

/// An early step, so that old states and new gradients have similar weights.
const LEARNING_RATE_AND_STEP: [f32; 2] = [0.01, 5.0];

/// The rules, with matmuls of a type.
fn rules(dtype: DType) -> Vec<Rule> {
    let adafactor = |clip_threshold, weight_decay| Adafactor {
        beta2_decay: -0.8,
        epsilon: 1e-3,
        scale_epsilon: 1e-3,
        clip_threshold,
        weight_decay,
    };
    let muon = Muon {
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.1,
        steps: 5,
        epsilon: 1e-7,
        adjust: Adjust::Original,
        dtype: DType::F32,
        tf32: false,
    };
    let slow = Muon { nesterov: false, steps: 2, adjust: Adjust::MatchRmsAdamW, ..muon.clone() };
    let rules = [muon, slow].map(Rule::Muon).into_iter();
    let mut rules: Vec<Rule> =
        rules.chain([adafactor(1.0, 0.1), adafactor(0.3, 0.0)].map(Rule::Adafactor)).collect();
    let arithmetic = Arithmetic { matrices: dtype, accumulators: DType::F32, tf32: false };
    rules.iter_mut().for_each(|rule| rule.set_arithmetic(arithmetic));
    rules
}

/// Wide and tall matrices of odd and even sizes, stacked matrices, and vectors for rules that support them.
fn bucket(rule: &Rule, dtype: DType, narrowest: DType) -> (Members, TensorType) {
    let matrices: [(&[usize], &[usize]); 6] = [
        (&[37, 50], &[]),
        (&[300, 3], &[]),
        (&[64, 64], &[]),
        (&[96, 40], &[64, 16, 16]),
        (&[140, 33], &[70, 70]),
        (&[130, 257], &[]),
    ];
    let vectors: [(&[usize], &[usize]); 3] = [(&[1], &[]), (&[5000], &[]), (&[33], &[])];
    let takes_vectors = matches!(rule, Rule::Adafactor(_));
    let all = matrices.into_iter().chain(vectors.into_iter().filter(|_| takes_vectors));
    let member = |(index, (dims, rows)): (usize, (&[usize], &[usize]))| Member {
        stacked: StackedRows::new(rows),
        ..Member::new(Shape::new(dims), index % 2 == 0, 5 + index as u32)
    };
    lay_out(all.enumerate().map(member), dtype, narrowest)
}

/// An update with clipping and loss scale, for the given types, with its operands and a gradient norm of 2.
fn update(
    rule: Rule,
    format: UpdateFormat,
    [clip_norm, loss_scale]: [Option<f32>; 2],
    [parameter_dtype, gradient_dtype]: [DType; 2],
) -> (OptimizerStep, Members, Vec<Data>) {
    let narrowest = [parameter_dtype, gradient_dtype, format.states.dtype()];
    let narrowest = narrowest.into_iter().min_by_key(|dtype| dtype.bits()).unwrap();
    let (members, ty) = bucket(&rule, parameter_dtype, narrowest);
    let gradients = GradientTerms { members: members.clone(), clip_norm, scaled: loss_scale.is_some() };
    let update = OptimizerStep { gradients, format, numbers_at: 0, rule };
    let mut inputs = stored_operands(&update, ty, [parameter_dtype, gradient_dtype]);
    let numbers = inputs.len() - 2;
    inputs[numbers].numbers[..2].copy_from_slice(&LEARNING_RATE_AND_STEP);
    if !update.gradients.need_norm() {
        inputs.pop();
    }
    inputs.extend(loss_scale.map(Data::scalar));
    (update, members, inputs)
}

/// An f32 update without clipping and loss scale.
fn plain(rule: Rule) -> (OptimizerStep, Members, Vec<Data>) {
    update(rule, UpdateFormat::default(), [None, None], [DType::F32; 2])
}

fn assert_same(devices: &mut Devices, update: &OptimizerStep, members: &Members, inputs: &[Data]) {
    let op = Op::OptimizerStep(update.clone());
    let expected = devices.cpu(&op, inputs);
    let found = devices.cuda(&op, inputs);
    assert_eq!(found.len(), 1 + update.kept().len());
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let members = match index {
            0 => members.clone(),
            index => update.kept()[index - 1].layout(members, TensorType { dtype: DType::F32, ..found.ty }).0,
        };
        assert_near(found, expected, &members, &format!("{op:?}: output {index}"));
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn matrix_updates_match_the_cpu() {
    let mut devices = Devices::new();
    for rule in rules(DType::F32) {
        for terms in
            [[None, None], [Some(9.0), None], [Some(0.5), None], [None, Some(8.0)], [Some(0.5), Some(8.0)]]
        {
            let (update, members, inputs) =
                update(rule.clone(), UpdateFormat::default(), terms, [DType::F32; 2]);
            assert_same(&mut devices, &update, &members, &inputs);
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn matrix_updates_with_low_precision_states_match_the_cpu() {
    let mut devices = Devices::new();
    let formats = [
        StateFormat::Bf16(Rounding::Nearest),
        StateFormat::Bf16(Rounding::Stochastic { seed: 0x1234_5678_9abc }),
        StateFormat::Quantized,
    ];
    for (format, rule) in
        formats.into_iter().flat_map(|format| rules(DType::F32).into_iter().map(move |rule| (format, rule)))
    {
        let format = UpdateFormat::of_states(format);
        let (update, members, inputs) = update(rule, format, [Some(0.5), None], [DType::F32; 2]);
        assert_same(&mut devices, &update, &members, &inputs);
    }
}

/// With a master copy, or rounded to nearest or stochastically.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn matrix_updates_in_16_bits_match_the_cpu() {
    let mut devices = Devices::new();
    let seed = 0x9abc_1234_5678;
    for half in [DType::BF16, DType::F16] {
        let weights = [
            WeightFormat::InPlace(Rounding::Nearest),
            WeightFormat::InPlace(Rounding::Stochastic { seed }),
            WeightFormat::Master(half),
        ];
        for (weights, gradients) in
            weights.into_iter().flat_map(|weights| [(weights, half), (weights, DType::F32)])
        {
            for rule in rules(DType::F32) {
                let format = UpdateFormat { states: StateFormat::F32, weights };
                let (update, members, inputs) = update(rule, format, [Some(0.5), None], [half, gradients]);
                assert_same(&mut devices, &update, &members, &inputs);
            }
        }
    }
}

/// With 16-bit matmuls, both devices agree approximately: they sum in different orders. In f32 an H100 differs by 1.2e-5.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn orthogonalisation_in_16_bits_agrees_approximately() {
    let mut devices = Devices::new();
    let types = NUMBERS.into_iter().zip([3e-5, 3e-2, 4e-3]);
    for ((dtype, tolerance), mode) in types.flat_map(|case| Mode::SUMS.map(|mode| (case, mode))) {
        devices.fix_mode(mode);
        for rule in rules(dtype).into_iter().filter(|rule| matches!(rule, Rule::Muon(_))) {
            let (update, members, inputs) = plain(rule);
            let op = Op::OptimizerStep(update);
            let (expected, found) = (devices.cpu(&op, &inputs), devices.cuda(&op, &inputs));
            let began = &inputs[0].numbers;
            let (mut off, mut moved) = (0.0, 0.0);
            for i in members.iter().flat_map(|member| member.offset..member.offset + member.elements()) {
                off += f64::from(found[0].numbers[i] - expected[0].numbers[i]).powi(2);
                moved += f64::from(expected[0].numbers[i] - began[i]).powi(2);
            }
            let error = (off / moved).sqrt();
            assert!(error < tolerance, "{op:?} has an error of {error:e}");
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn skipped_step_leaves_matrices_unchanged() {
    let mut devices = Devices::new();
    for half in [DType::BF16, DType::F16] {
        for rule in rules(half) {
            let format = UpdateFormat { states: StateFormat::F32, weights: WeightFormat::Master(half) };
            let (update, members, mut inputs) = update(rule, format, [None, Some(1024.0)], [half; 2]);
            let norm = inputs.len() - 2;
            inputs[norm] = Data::scalar(f32::NAN);
            let op = Op::OptimizerStep(update.clone());
            let found = devices.cuda(&op, &inputs);
            for (index, kept) in found[1..].iter().enumerate() {
                assert_eq!(kept.numbers, inputs[1 + index].numbers, "{op:?}: state {index}");
            }
            let rounded = inputs[1 + update.states().len()].stored_as(half);
            for i in members.iter().flat_map(|member| member.offset..member.offset + member.elements()) {
                assert_eq!(found[0].numbers[i], rounded.numbers[i], "{op:?} at {i}");
            }
        }
    }
}

/// A single NaN gradient makes the whole tensor NaN, because its elements share statistics.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn nan_gradient_spreads_over_its_matrix() {
    let mut devices = Devices::new();
    for rule in rules(DType::F32) {
        let (update, members, mut inputs) = plain(rule);
        inputs[1].numbers[members[0].offset] = f32::NAN;
        let found = devices.cuda(&Op::OptimizerStep(update), &inputs);
        let last = found[0].numbers[members[0].offset + members[0].elements() - 1];
        assert!(last.is_nan(), "{last}");
    }
}

/// Zero gradients, e.g. of unused parameters, must not cause a division by 0.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn zero_gradients_leave_matrices_finite() {
    let mut devices = Devices::new();
    for rule in rules(DType::F32) {
        let (update, members, mut inputs) = plain(rule);
        for begins in &mut inputs[1..3] {
            begins.numbers.fill(0.0);
        }
        assert_same(&mut devices, &update, &members, &inputs);
        let found = devices.cuda(&Op::OptimizerStep(update), &inputs);
        for member in members.iter() {
            let all = &found[0].numbers[member.offset..member.offset + member.elements()];
            assert!(all.iter().all(|number| number.is_finite()), "{member:?}");
        }
    }
}
