//! Optimizer steps with 16-bit parameters and gradients, compared with steps on the same numbers in f32.

use super::harness::{Data, FLOATS, LaunchOptions, launch};
use super::updates::{rules, updates};
use crate::cpu::kernels::simd::Level;
use ops::{
    DType, GradientTerms, Member, Op, OptimizerStep, Rounding, Rule, Shape, State, StateFormat, TensorType,
    UpdateFormat, WeightFormat, lay_out,
};

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

fn with_format(op: &Op, weights: WeightFormat) -> Op {
    let mut op = op.clone();
    let format = UpdateFormat { weights, ..UpdateFormat::default() };
    match &mut op {
        Op::OptimizerStep(op) => op.format = format,
        other => unreachable!("{} is not an optimizer step", other.name()),
    }
    op
}

fn options(level: Level) -> LaunchOptions {
    LaunchOptions { threads: 2, level, alias: false }
}

/// The same numbers in f32.
fn wide(data: &Data) -> Data {
    let ty = data.ty();
    Data::F32(TensorType { dtype: DType::F32, ..ty }, data.to_f64().iter().map(|&x| x as f32).collect())
}

/// Numbers rounded to nearest in a 16-bit type.
fn rounded(values: &[f32], dtype: DType) -> Vec<f32> {
    let data = Data::F32(TensorType::f32(&[values.len()]), values.to_vec()).stored_as(dtype);
    data.to_f64().iter().map(|&x| x as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every elementwise update rule, with its inputs in these types.
fn stored(parameters: DType, gradients: DType) -> Vec<(Op, Vec<Data>)> {
    let store = |(op, mut inputs): (Op, Vec<Data>)| {
        inputs[0] = inputs[0].clone().stored_as(parameters);
        inputs[1] = inputs[1].clone().stored_as(gradients);
        (op, inputs)
    };
    updates(Some(1.0), 2.0, Some(4.0)).into_iter().map(store).collect()
}

#[test]
fn updated_parameters_are_rounded_once() {
    for (parameters, gradients) in FLOATS.into_iter().flat_map(|p| FLOATS.map(|g| (p, g))) {
        for (op, inputs) in stored(parameters, gradients) {
            for level in Level::available() {
                let full: Vec<Data> = inputs.iter().map(wide).collect();
                let expected = launch(&op, &full, options(level));
                let found = launch(&op, &inputs, options(level));
                let context = format!("{} of {parameters} by {gradients} at {level:?}", op.name());
                // Padding is unchanged.
                assert_eq!(bits(&found[0]), bits(&rounded(&expected[0], parameters)), "{context}");
                for (found, expected) in found.iter().zip(&expected).skip(1) {
                    assert_eq!(bits(found), bits(expected), "{context}: states");
                }
            }
        }
    }
}

#[test]
fn master_weights_are_updated_like_f32_parameters() {
    for (half, gradients) in HALVES.into_iter().flat_map(|p| FLOATS.map(|g| (p, g))) {
        for (op, mut full) in stored(DType::F32, gradients) {
            let op = with_format(&op, WeightFormat::Master(half));
            let update = op.as_update().expect("an optimizer step");
            assert_eq!(update.kept().last().map(|state| state.name), Some(State::MASTER.name));
            // Master weights that differ from the rounded parameters.
            full[0] = full[0].clone().map(|x| x + 1e-5);
            let level = Level::best();
            let found = launch(&op, &with_master_weights(update, &full), options(level));
            full[1] = wide(&full[1]);
            let plain = with_format(&op, WeightFormat::default());
            let expected = launch(&plain, &full, options(level));
            let master = found.last().expect("master weights are the last output");
            assert_eq!(bits(master), bits(&expected[0]), "{}", op.name());
            for member in &update.gradients.members[..] {
                let part = member.offset..member.offset + member.elements();
                assert_eq!(
                    bits(&found[0][part.clone()]),
                    bits(&rounded(&master[part], half)),
                    "{}",
                    op.name()
                );
            }
        }
    }
}

/// The inputs of a step with master weights, from those of a step without: the parameters become the master weights.
fn with_master_weights(update: &OptimizerStep, inputs: &[Data]) -> Vec<Data> {
    let (master, others) = inputs.split_first().expect("parameters are the first input");
    let mut inputs = others.to_vec();
    inputs.insert(1 + update.states().len(), master.clone());
    inputs
}

/// The memory of parameters may have no contents before a step, so that a skipped step must write them too.
#[test]
fn skipped_step_writes_parameters_from_master_weights() {
    for half in HALVES {
        for (op, inputs) in updates(None, f32::INFINITY, Some(4.0)) {
            let op = with_format(&op, WeightFormat::Master(half));
            let update = op.as_update().expect("an optimizer step");
            for level in Level::available() {
                let found = launch(&op, &with_master_weights(update, &inputs), options(level));
                let Data::F32(_, master) = &inputs[0] else { unreachable!("f32 data") };
                assert_eq!(found.last(), Some(master));
                for member in &update.gradients.members[..] {
                    let part = member.offset..member.offset + member.elements();
                    let rounded = rounded(&master[part.clone()], half);
                    assert_eq!(bits(&found[0][part]), bits(&rounded), "{} at {level:?}", op.name());
                }
            }
        }
    }
}

/// The states do not depend on the type of parameters, and parameters are rounded once from the same f32 numbers.
#[test]
fn quantized_states_work_with_16_bit_parameters() {
    let formats = [StateFormat::Bf16(Rounding::Stochastic { seed: 3 }), StateFormat::Quantized];
    for (half, states) in HALVES.into_iter().flat_map(|half| formats.map(|states| (half, states))) {
        let tensor = |len| Member::new(Shape::new(&[len]), true, 5);
        let (members, ty) = lay_out([4096, 7, 300].map(tensor).into_iter(), half, states.dtype());
        let gradients = GradientTerms { members: members.clone(), clip_norm: None, scaled: false };
        let updates = |weights| {
            let update = |rule: Rule| {
                let (format, gradients) = (UpdateFormat { states, weights }, gradients.clone());
                Op::OptimizerStep(OptimizerStep { gradients, format, numbers_at: 0, rule })
            };
            rules().into_iter().filter(|rule| !rule.moments().is_empty()).map(update).collect::<Vec<_>>()
        };
        let [in_place, mastered] =
            [WeightFormat::InPlace(Rounding::Nearest), WeightFormat::Master(half)].map(updates);
        for (in_place, mastered) in in_place.into_iter().zip(mastered) {
            let update = in_place.as_update().expect("an optimizer step");
            let random = |seed| Data::random(&[ty.elements()], seed);
            let states = update.states().into_iter().enumerate().map(|(index, state)| {
                let ty = state.layout(&members, ty).1;
                let numbers = Data::random(&[ty.elements()], 7 + index as u64);
                match ty.dtype {
                    DType::U8 => {
                        let codes = numbers.map(|x| (x * 127.0 + 127.5).floor()).to_f64();
                        Data::Codes(ty, codes.into_iter().map(|code| code as u8).collect())
                    }
                    // Second moments and scales are not negative.
                    dtype => numbers.map(f32::abs).stored_as(dtype),
                }
            });
            let numbers = update.rule.numbers(5, 0.01);
            let numbers = Data::F32(TensorType::f32(&[numbers.len()]), numbers);
            let mut inputs = vec![random(1).stored_as(half), random(2).stored_as(half)];
            inputs.extend(states.chain([numbers]));
            let mut full = inputs.clone();
            full[0] = wide(&inputs[0]);
            let level = Level::best();
            let expected = launch(&in_place, &full, options(level));
            let master_inputs = with_master_weights(update, &full);
            for (op, inputs) in [(&in_place, &inputs), (&mastered, &master_inputs)] {
                let found = launch(op, inputs, options(level));
                for member in &members[..] {
                    let part = member.offset..member.offset + member.elements();
                    let parameters = rounded(&expected[0][part.clone()], half);
                    assert_eq!(bits(&found[0][part]), bits(&parameters), "{op:?}");
                }
                for (found, expected) in found[1..].iter().zip(&expected[1..]) {
                    assert_eq!(bits(found), bits(expected), "{op:?}");
                }
            }
        }
    }
}

/// Rounds up or down to a neighbour, with the right mean, and differently for another seed.
#[test]
fn parameters_are_rounded_stochastically() {
    for half in HALVES {
        for (op, inputs) in stored(half, half) {
            let level = Level::best();
            let full: Vec<Data> = inputs.iter().map(wide).collect();
            let exact = launch(&op, &full, options(level)).swap_remove(0);
            let draw = |seed| {
                let random = WeightFormat::InPlace(Rounding::Stochastic { seed });
                launch(&with_format(&op, random), &inputs, options(level)).swap_remove(0)
            };
            const DRAWS: u64 = 400;
            let draws: Vec<Vec<f32>> = (0..DRAWS).map(draw).collect();
            assert_ne!(draws[0], draws[1]);
            let members = &op.as_update().expect("an optimizer step").gradients.members;
            for i in members.iter().flat_map(|member| member.offset..member.offset + member.elements()) {
                let (exact, all) = (f64::from(exact[i]), draws.iter().map(|draw| f64::from(draw[i])));
                let unit = exact.abs() * if half == DType::BF16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
                let mean = all.clone().sum::<f64>() / DRAWS as f64;
                assert!(all.clone().all(|found| (found - exact).abs() <= unit), "{half} {exact}");
                assert!((mean - exact).abs() < 0.15 * unit, "{half}: {mean} is the mean for {exact}");
            }
        }
    }
}
