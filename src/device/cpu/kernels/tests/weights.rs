//! Updates of parameters and gradients in 16 bits, against those of the same numbers in f32.

use super::harness::{Data, How, NUMBERS, launch};
use super::others::updates;
use crate::device::cpu::kernels::simd::Level;
use crate::ops::{DType, Op, Rounding, State, UpdateFormat, WeightFormat};

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

fn with_format(op: &Op, weights: WeightFormat) -> Op {
    let mut op = op.clone();
    let format = UpdateFormat { weights, ..UpdateFormat::default() };
    match &mut op {
        Op::AdamW(op) => op.format = format,
        Op::Sgd(op) => op.format = format,
        other => unreachable!("{} is no update", other.name()),
    }
    op
}

fn how(level: Level) -> How {
    How { threads: 2, level, share: false }
}

/// The same numbers in f32.
fn wide(data: &Data) -> Data {
    let ty = data.ty();
    Data::F32(
        crate::ops::TensorType { dtype: DType::F32, ..ty },
        data.to_f64().iter().map(|&x| x as f32).collect(),
    )
}

/// A tensor's numbers, rounded to the nearest of 16 bits.
fn rounded(values: &[f32], dtype: DType) -> Vec<f32> {
    let data = Data::F32(crate::ops::TensorType::f32(&[values.len()]), values.to_vec()).stored_as(dtype);
    data.to_f64().iter().map(|&x| x as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every update, with its inputs in these types.
fn stored(parameters: DType, gradients: DType) -> Vec<(Op, Vec<Data>)> {
    let store = |(op, mut inputs): (Op, Vec<Data>)| {
        inputs[0] = inputs[0].clone().stored_as(parameters);
        inputs[1] = inputs[1].clone().stored_as(gradients);
        (op, inputs)
    };
    updates(Some(1.0), 2.0, Some(4.0)).into_iter().map(store).collect()
}

#[test]
fn parameters_are_rounded_once_from_what_they_are_updated_to() {
    for (parameters, gradients) in NUMBERS.into_iter().flat_map(|p| NUMBERS.map(|g| (p, g))) {
        for (op, inputs) in stored(parameters, gradients) {
            for level in Level::available() {
                let full: Vec<Data> = inputs.iter().map(wide).collect();
                let expected = launch(&op, &full, how(level));
                let found = launch(&op, &inputs, how(level));
                let place = format!("{} of {parameters} by {gradients} at {level:?}", op.name());
                // Padding holds what it held.
                assert_eq!(bits(&found[0]), bits(&rounded(&expected[0], parameters)), "{place}");
                for (found, expected) in found.iter().zip(&expected).skip(1) {
                    assert_eq!(bits(found), bits(expected), "{place}: states");
                }
            }
        }
    }
}

#[test]
fn a_copy_is_updated_as_parameters_in_f32_are() {
    for (half, gradients) in HALVES.into_iter().flat_map(|p| NUMBERS.map(|g| (p, g))) {
        for (op, mut inputs) in stored(half, gradients) {
            let op = with_format(&op, WeightFormat::Master);
            let update = op.as_update().expect("it is one");
            let place = 2 + update.states().len();
            assert_eq!(update.kept().last().map(|state| state.name), Some(State::MASTER.name));
            // More exact than what was rounded from it.
            let master = Data::random(inputs[0].ty().shape.dims(), 0).map(|x| x + 1e-5);
            inputs.insert(place, master.clone());
            let level = Level::best();
            let found = launch(&op, &inputs, how(level));
            let mut full: Vec<Data> = inputs.iter().map(wide).collect();
            full.remove(place);
            full[0] = master;
            let plain = with_format(&op, WeightFormat::default());
            let expected = launch(&plain, &full, how(level));
            let master = found.last().expect("it is an output");
            assert_eq!(bits(master), bits(&expected[0]), "{}", op.name());
            for member in &update.gradients().members[..] {
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

/// Up or down to a neighbour, with the right mean, and other bits for another seed.
#[test]
fn parameters_are_rounded_at_random() {
    for half in HALVES {
        for (op, inputs) in stored(half, half) {
            let level = Level::best();
            let full: Vec<Data> = inputs.iter().map(wide).collect();
            let exact = launch(&op, &full, how(level)).swap_remove(0);
            let draw = |seed| {
                let random = WeightFormat::InPlace(Rounding::Stochastic { seed });
                launch(&with_format(&op, random), &inputs, how(level)).swap_remove(0)
            };
            const DRAWS: u64 = 400;
            let draws: Vec<Vec<f32>> = (0..DRAWS).map(draw).collect();
            assert_ne!(draws[0], draws[1]);
            let members = &op.as_update().expect("it is one").gradients().members;
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
