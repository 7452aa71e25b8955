//! Products with what is fused to them, by the library or by kernels after it.

use runner::device::{Choice, Source};
use runner::ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Op};

use super::harness::{Devices, Exactness, HalfUnit, TOLERANCE, beyond, half_unit, of_tensor_cores};
use super::numbers::{Data, NUMBERS};

/// Rows, K and M: single elements, sizes that the library finishes itself, odd ones, and many rows to sum.
const SHAPES: [[usize; 3]; 6] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [64, 40, 96], [130, 801, 40], [300, 32, 64]];

/// Every shape, and one with more products to sum, each with every combination of as many flags.
fn cases(long: [usize; 3], flags: usize) -> impl Iterator<Item = ([usize; 3], usize)> {
    SHAPES.into_iter().chain([long]).flat_map(move |shape| (0..1 << flags).map(move |set| (shape, set)))
}

/// The steepest that GELU is.
const STEEPEST: f64 = 1.13;

/// Kernels that finish a product round what the library has rounded. 16-bit factors are multiplied by tensor cores.
fn twice(dtype: DType, products: usize) -> Exactness {
    Exactness { roundings: 2.5, tolerance: sums(dtype, products) }
}

fn sums(dtype: DType, products: usize) -> f64 {
    let tensor_cores = if dtype == DType::F32 { 0.0 } else { of_tensor_cores(products) };
    TOLERANCE + tensor_cores
}

#[test]
fn linear() {
    let mut devices = Devices::new();
    for ([rows, inner, out], flags) in cases([16, 2048, 24], 3) {
        let (bias, residual) = (flags & 1 > 0, flags & 2 > 0);
        let activation = (flags & 4 > 0).then_some(Activation::GeluTanh);
        let op = Op::Linear(Linear { bias, activation, residual, tf32: false });
        for dtype in NUMBERS {
            let sum = if residual { DType::F32 } else { dtype };
            let mut inputs =
                vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
            inputs.extend(bias.then(|| Data::random(sum, &[out], 1.0, 3)));
            inputs.extend(residual.then(|| Data::random(sum, &[rows, out], 1.0, 4)));
            match (activation, half_unit(dtype)) {
                (Some(_), Some(unit)) => {
                    let bias = bias.then(|| inputs[2].numbers.clone());
                    devices.check_outputs(&op, &op, &inputs, |output, expected, found, _| {
                        wrong_activation(output, found, expected, bias.as_deref(), unit, inner)
                    });
                }
                _ => devices.check_within(twice(dtype, inner), &op, &op, &inputs),
            }
        }
    }
}

/// What is wrong with an output of a 16-bit product with an activation: 0 is y = gelu(x), to which a residual may be
/// added in f32, 1 is x = product + bias.
///
/// Which way it goes is the library's choice, on which nothing is documented, and the bound holds for all. It stores x
/// rounded, and takes GELU of x before or after that: the argument is off by half a unit of x. Or it refuses, where x has
/// odd rows, say: then it rounds the product alone, which is at most |x| + |bias|, and kernels go on from there; x itself
/// is rounded once more. y is off by as much as its argument times the slope, and is rounded itself.
fn wrong_activation(
    output: usize,
    found: &Data,
    expected: &[Data],
    bias: Option<&[f32]>,
    unit: HalfUnit,
    inner: usize,
) -> Option<String> {
    let [y, x] = [0, 1].map(|output| &expected[output].numbers);
    let mean_square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let noise = (TOLERANCE + of_tensor_cores(inner)) * mean_square.sqrt();
    let argument = |index: usize| {
        let bias = bias.map_or(0.0, |bias| f64::from(bias[index % bias.len()]).abs());
        unit.of(f64::from(x[index]).abs() + bias) + noise
    };
    if output == 1 {
        return beyond(found, x, |index| {
            let product = argument(index);
            product + unit.of(f64::from(x[index]).abs() + product)
        });
    }
    let stored = half_unit(found.ty.dtype);
    beyond(found, y, |index| {
        let before = STEEPEST * argument(index);
        let most = f64::from(y[index]).abs() + before;
        // With a residual it is f32.
        before + stored.map_or(TOLERANCE * most, |unit| unit.of(most))
    })
}

#[test]
fn input_gradients() {
    let mut devices = Devices::new();
    for ([rows, inner, out], flags) in cases([16, 24, 2048], 2) {
        let accumulate = flags & 1 > 0;
        let activation = (flags & 2 > 0).then_some(Activation::GeluTanh);
        let op = Op::LinearInputGradient(LinearInputGradient { accumulate, activation, tf32: false });
        for dtype in NUMBERS {
            let mut inputs =
                vec![Data::random(dtype, &[rows, out], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
            inputs.extend(accumulate.then(|| Data::random(dtype, &[rows, inner], 1.0, 3)));
            inputs.extend(activation.map(|_| Data::random(dtype, &[rows, inner], 2.0, 4)));
            devices.check_within(twice(dtype, out), &op, &op, &inputs);
        }
    }
}

#[test]
fn weight_gradients() {
    let mut devices = Devices::new();
    for ([rows, inner, out], flags) in cases([2048, 24, 16], 2) {
        let (bias, accumulate) = (flags & 1 > 0, flags & 2 > 0);
        let op = Op::LinearWeightGradient(LinearWeightGradient { bias, accumulate, tf32: false });
        for dtype in NUMBERS {
            let mut inputs =
                vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[rows, out], 1.0, 2)];
            if accumulate {
                inputs.push(Data::random(DType::F32, &[out, inner], 1.0, 3));
                inputs.extend(bias.then(|| Data::random(DType::F32, &[out], 1.0, 4)));
            }
            // Numbers of 16 bits the library may sum on tensor cores, for the bias's gradient too.
            let exactness = Exactness { tolerance: sums(dtype, rows), ..Exactness::default() };
            devices.check_within(exactness, &op, &op, &inputs);
        }
    }
}

/// Gradients that are kept and zeroed are those that are not, whoever sums dy: the library, if it has 16 bits and rows
/// of whole vectors, kernels otherwise.
#[test]
fn weight_gradients_added_to_zeros_are_those_stored() {
    let mut devices = Devices::new();
    for ([rows, inner, out], dtype) in SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|n| (shape, n))) {
        let op = |accumulate| {
            Op::LinearWeightGradient(LinearWeightGradient { bias: true, accumulate, tf32: false })
        };
        let mut inputs =
            vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[rows, out], 1.0, 2)];
        let choices = devices.choose(&op(false), &inputs, &[]);
        if devices.are_emulated() {
            // Where a card's library has bias gradients is not written down.
            let product = format!("{out}x{inner}x{rows} {dtype}^T {dtype} to f32, bgradb, ");
            let fused = choices.iter().any(|choice| choice.product.starts_with(&product));
            let can = dtype != DType::F32 && inner.is_multiple_of(8) && out.is_multiple_of(8);
            assert_eq!(fused, can, "{product} in {choices:?}");
        }
        let stored = devices.cuda(&op(false), &inputs);
        for dims in [&[out, inner][..], &[out]] {
            inputs.push(Data::new(DType::F32, dims, vec![0.0; dims.iter().product()]));
        }
        assert_eq!(devices.choose(&op(true), &inputs, &[]), choices, "one choice for both");
        let added = devices.cuda(&op(true), &inputs);
        for (stored, added) in stored.iter().zip(&added) {
            let same = stored.bits() == added.bits();
            assert!(same, "{dtype}, {rows} rows, {inner} to {out}: other bits");
        }
    }
}

/// A run that is repeated computes its products as it did, with whatever is fused to them.
#[test]
fn what_was_chosen_is_taken_again() {
    let (mut first, mut second) = (Devices::new(), Devices::new());
    let data = |dims: &[usize]| Data::random(DType::BF16, dims, 1.0, 1);
    for (bias, activation) in
        [(true, None), (true, Some(Activation::GeluTanh)), (false, Some(Activation::GeluTanh))]
    {
        let op = Op::Linear(Linear { bias, activation, residual: false, tf32: false });
        let mut inputs = vec![data(&[64, 96]), data(&[40, 96])];
        inputs.extend(bias.then(|| data(&[40])));
        let chosen = first.choose(&op, &inputs, &[]);
        let again = second.choose(&op, &inputs, &chosen);
        assert!(again.iter().all(|choice| choice.source == Source::Stored), "{again:?}");
        let ways =
            |choices: &[Choice]| choices.iter().map(|choice| choice.algorithm.clone()).collect::<Vec<_>>();
        assert_eq!(ways(&again), ways(&chosen));
    }
}

/// Factors of 11 bits: the product is as near as they are.
#[test]
fn the_short_format_of_tensor_cores() {
    let mut devices = Devices::new();
    let op = |tf32| Op::Linear(Linear { bias: true, activation: None, residual: false, tf32 });
    let shapes: [&[usize]; 3] = [&[64, 128], &[96, 128], &[96]];
    let inputs = [0, 1, 2].map(|i| Data::random(DType::F32, shapes[i], 1.0, i as u64));
    let exactness = Exactness { tolerance: 2e-3, ..Exactness::default() };
    devices.check_within(exactness, &op(true), &op(false), &inputs);
}
