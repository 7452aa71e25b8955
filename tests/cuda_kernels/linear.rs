//! Products with what is fused to them, by the library or by kernels after it.

use runner::ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Op};

use super::harness::{Devices, Exactness};
use super::numbers::{Data, NUMBERS};

/// Rows, K and M: single elements, sizes that the library finishes itself, odd ones, and many rows to sum.
const SHAPES: [[usize; 3]; 6] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [64, 40, 96], [130, 801, 40], [300, 32, 64]];

/// Kernels that finish a product round what the library has rounded.
const TWICE: Exactness = Exactness { roundings: 2.5, tolerance: 4e-6 };

/// An activation is taken of 16-bit numbers.
const ROUNDED_BEFORE: Exactness = Exactness { roundings: 2.5, tolerance: 1e-2 };

#[test]
fn linear() {
    let mut devices = Devices::new();
    for ([rows, inner, out], flags) in SHAPES.into_iter().flat_map(|shape| (0..8).map(move |f| (shape, f))) {
        let (bias, residual) = (flags & 1 > 0, flags & 2 > 0);
        let activation = (flags & 4 > 0).then_some(Activation::GeluTanh);
        let op = Op::Linear(Linear { bias, activation, residual, tf32: false });
        for dtype in NUMBERS {
            let sum = if residual { DType::F32 } else { dtype };
            let mut inputs =
                vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
            inputs.extend(bias.then(|| Data::random(sum, &[out], 1.0, 3)));
            inputs.extend(residual.then(|| Data::random(sum, &[rows, out], 1.0, 4)));
            // Where kernels take the activation, they take it of what the library has rounded, and the activation
            // of a negative number is further off than the number.
            let unfused = residual || !(out * 2).is_multiple_of(16);
            let rounded = activation.is_some() && unfused && dtype != DType::F32;
            let exactness = if rounded { ROUNDED_BEFORE } else { TWICE };
            devices.check_within(exactness, &op, &op, &inputs);
        }
    }
}

#[test]
fn input_gradients() {
    let mut devices = Devices::new();
    for ([rows, inner, out], flags) in SHAPES.into_iter().flat_map(|shape| (0..4).map(move |f| (shape, f))) {
        let accumulate = flags & 1 > 0;
        let activation = (flags & 2 > 0).then_some(Activation::GeluTanh);
        let op = Op::LinearInputGradient(LinearInputGradient { accumulate, activation, tf32: false });
        for dtype in NUMBERS {
            let mut inputs =
                vec![Data::random(dtype, &[rows, out], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
            inputs.extend(accumulate.then(|| Data::random(dtype, &[rows, inner], 1.0, 3)));
            inputs.extend(activation.map(|_| Data::random(dtype, &[rows, inner], 2.0, 4)));
            devices.check_within(TWICE, &op, &op, &inputs);
        }
    }
}

#[test]
fn weight_gradients() {
    let mut devices = Devices::new();
    for ([rows, inner, out], flags) in SHAPES.into_iter().flat_map(|shape| (0..4).map(move |f| (shape, f))) {
        let (bias, accumulate) = (flags & 1 > 0, flags & 2 > 0);
        let op = Op::LinearWeightGradient(LinearWeightGradient { bias, accumulate, tf32: false });
        for dtype in NUMBERS {
            let mut inputs =
                vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[rows, out], 1.0, 2)];
            if accumulate {
                inputs.push(Data::random(DType::F32, &[out, inner], 1.0, 3));
                inputs.extend(bias.then(|| Data::random(DType::F32, &[out], 1.0, 4)));
            }
            devices.check(&op, &op, &inputs);
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
        let stored = devices.cuda(&op(false), &inputs);
        for dims in [&[out, inner][..], &[out]] {
            inputs.push(Data::new(DType::F32, dims, vec![0.0; dims.iter().product()]));
        }
        let added = devices.cuda(&op(true), &inputs);
        for (stored, added) in stored.iter().zip(&added) {
            let same = stored.bits() == added.bits();
            assert!(same, "{dtype}, {rows} rows, {inner} to {out}: other bits");
        }
        let product = format!("product {out}x{inner}x{rows} {dtype}^T {dtype} to f32");
        let fused = [", added to", ""].map(|added| {
            let choices = devices.choices();
            choices.iter().any(|line| line.starts_with(&format!("{product}{added}, bgradb:")))
        });
        let can = dtype != DType::F32 && inner.is_multiple_of(8) && out.is_multiple_of(8);
        assert_eq!(fused, [can; 2], "{:?}", devices.choices());
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
