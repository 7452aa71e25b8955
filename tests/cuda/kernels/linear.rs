//! Linear layers: matmuls with epilogues, fused by the library or as separate kernels.

use device::{Choice, Source};
use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Op};

use super::harness::{
    Devices, Exactness, HalfUnit, RowOffset, TOLERANCE, first_outlier, half_unit, tensor_core_error,
};
use super::modes::Mode;
use super::numbers::{Data, NUMBERS};

/// Rows, inner and output dimension: single elements, sizes with fused epilogues, odd sizes, and many rows to sum.
const SHAPES: [[usize; 3]; 6] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [64, 40, 96], [130, 801, 40], [300, 32, 64]];

/// Every shape and one with a long sum, each with every combination of flags.
fn cases(long: [usize; 3], flags: usize) -> impl Iterator<Item = ([usize; 3], usize)> {
    SHAPES.into_iter().chain([long]).flat_map(move |shape| (0..1 << flags).map(move |set| (shape, set)))
}

/// Bound on an activation's slope within `error` of x: GELU's maximum, or the slope at either end for other
/// activations.
fn max_slope(activation: Activation, x: f64, error: f64) -> f64 {
    const GELU: f64 = 1.13;
    [x - error, x + error]
        .map(|x| (activation.definition().slope)(activation.definition().saved(x)))
        .into_iter()
        .fold(GELU, |most, slope| most.max(slope.abs()))
}

/// Accuracy with a separate epilogue kernel, which rounds the library's rounded result again. 16-bit operands use
/// tensor cores.
fn double_rounding(dtype: DType, products: usize) -> Exactness {
    Exactness { roundings: 2.5, tolerance: sum_tolerance(dtype, products) }
}

fn sum_tolerance(dtype: DType, products: usize) -> f64 {
    let tensor_cores = if dtype == DType::F32 { 0.0 } else { tensor_core_error(products) };
    TOLERANCE + tensor_cores
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn linear_matches_the_cpu() {
    let mut devices = Devices::new();
    for (shape, flags) in cases([16, 2048, 24], 4) {
        for dtype in NUMBERS {
            forward(&mut devices, shape, dtype, flags, gelu_if(flags & 4 > 0));
        }
    }
}

/// The activation with a library epilogue.
fn gelu_if(activates: bool) -> Option<Activation> {
    activates.then_some(Activation::GeluTanh)
}

/// Includes the activations without a library epilogue.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn matmuls_with_activations_match_the_cpu() {
    let mut devices = Devices::new();
    for (activation, dtype) in Activation::ALL.into_iter().flat_map(|a| NUMBERS.map(|dtype| (a, dtype))) {
        for flags in 0..16 {
            forward(&mut devices, [9, 24, 1030], dtype, flags, Some(activation));
        }
        // Repeated to cover all modes.
        for flags in [0, 1].repeat(3) {
            input_gradient(&mut devices, [9, 24, 40], dtype, flags, Some(activation));
        }
    }
}

fn forward(
    devices: &mut Devices,
    [rows, inner, out]: [usize; 3],
    dtype: DType,
    flags: usize,
    activation: Option<Activation>,
) {
    let (bias, residual) = (flags & 1 > 0, flags & 2 > 0);
    let op = Op::Linear(Linear { bias, activation, residual, tf32: false });
    // The residual stream may have the type of x.
    let sum = if residual && flags & 8 == 0 { DType::F32 } else { dtype };
    let mut inputs =
        vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
    inputs.extend(bias.then(|| Data::random(sum, &[out], 1.0, 3)));
    inputs.extend(residual.then(|| Data::random(sum, &[rows, out], 1.0, 4)));
    let Some(unit) = half_unit(dtype) else {
        return devices.check_within(double_rounding(dtype, inner), &op, &op, &inputs);
    };
    let rounding = Rounding { unit, bias: bias.then(|| inputs[2].numbers.clone()), inner };
    match activation {
        Some(activation) => devices.check_outputs(&op, &op, &inputs, |output, expected, found, _| {
            rounding.wrong_activation(activation, output, found, expected)
        }),
        None if bias && sum == dtype => {
            devices.check_outputs(&op, &op, &inputs, |_, _, found, y| rounding.wrong_sum(found, &y.numbers));
        }
        None => devices.check_within(double_rounding(dtype, inner), &op, &op, &inputs),
    }
}

/// Error bounds of 16-bit results.
pub(super) struct Rounding {
    pub(super) unit: HalfUnit,
    pub(super) bias: Option<Vec<f32>>,
    /// Length of the sum.
    pub(super) inner: usize,
}

impl Rounding {
    /// Checks `x = matmul + bias`. If a kernel adds the bias, the matmul's result, at most |x| + |bias|, is rounded
    /// first, and then x.
    pub(super) fn wrong_sum(&self, found: &Data, x: &[f32]) -> Option<String> {
        let error = self.matmul_error(x);
        first_outlier(found, x, |index| {
            let product = error(index);
            product + self.unit.of(f64::from(x[index]).abs() + product)
        })
    }

    /// Checks an output of a matmul with an activation: 0 is y = f(x), optionally with a residual, 1 is x = matmul +
    /// bias.
    ///
    /// The library's rounding is undocumented; the bound covers all cases. The library stores x rounded, and applies
    /// GELU before or after rounding: the argument's error is half a ULP of x. Or it rejects the epilogue, e.g. for odd
    /// rows: then the matmul's result is rounded, and kernels continue from there. The error of y is that of its
    /// argument times the slope, plus its own rounding.
    fn wrong_activation(
        &self,
        activation: Activation,
        output: usize,
        found: &Data,
        expected: &[Data],
    ) -> Option<String> {
        let [y, x] = [0, 1].map(|output| &expected[output].numbers);
        if output == 1 {
            return self.wrong_sum(found, x);
        }
        let (stored, error) = (half_unit(found.ty.dtype), self.matmul_error(x));
        first_outlier(found, y, |index| {
            let error = error(index);
            let before = max_slope(activation, f64::from(x[index]), error) * error;
            let most = f64::from(y[index]).abs() + before;
            // With a residual, y may be f32.
            before + stored.map_or(TOLERANCE * most, |unit| unit.of(most))
        })
    }

    /// Error bound of the matmul's results in x, by index.
    fn matmul_error<'a>(&'a self, x: &'a [f32]) -> impl Fn(usize) -> f64 + 'a {
        let mean_square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let noise = (TOLERANCE + tensor_core_error(self.inner)) * mean_square.sqrt();
        move |index| {
            let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[index % bias.len()]).abs());
            self.unit.of(f64::from(x[index]).abs() + bias) + noise
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn input_gradients_match_the_cpu() {
    let mut devices = Devices::new();
    for (shape, flags) in cases([16, 24, 2048], 2) {
        for dtype in NUMBERS {
            input_gradient(&mut devices, shape, dtype, flags, gelu_if(flags & 2 > 0));
        }
    }
}

fn input_gradient(
    devices: &mut Devices,
    [rows, inner, out]: [usize; 3],
    dtype: DType,
    flags: usize,
    activation: Option<Activation>,
) {
    let accumulate = flags & 1 > 0;
    let op = Op::LinearInputGradient(LinearInputGradient { accumulate, activation, tf32: false });
    let mut inputs =
        vec![Data::random(dtype, &[rows, out], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
    inputs.extend(accumulate.then(|| Data::random(dtype, &[rows, inner], 1.0, 3)));
    inputs.extend(activation.map(|_| Data::random(dtype, &[rows, inner], 2.0, 4)));
    devices.check_within(double_rounding(dtype, out), &op, &op, &inputs);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn weight_gradients_match_the_cpu() {
    let mut devices = Devices::new();
    for (shape, flags) in cases([2048, 24, 16], 3) {
        for dtype in NUMBERS {
            weight_gradient(&mut devices, shape, dtype, flags);
        }
    }
}

fn weight_gradient(devices: &mut Devices, [rows, inner, out]: [usize; 3], dtype: DType, flags: usize) {
    let (bias, accumulate) = (flags & 1 > 0, flags & 2 > 0);
    let gradients = if flags & 4 > 0 { dtype } else { DType::F32 };
    let reference = LinearWeightGradient { gradients: DType::F32, bias, accumulate, tf32: false };
    let op = Op::LinearWeightGradient(LinearWeightGradient { gradients, ..reference });
    let reference = Op::LinearWeightGradient(reference);
    let mut inputs =
        vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[rows, out], 1.0, 2)];
    if accumulate {
        inputs.push(Data::random(gradients, &[out, inner], 1.0, 3));
        inputs.extend(bias.then(|| Data::random(gradients, &[out], 1.0, 4)));
    }
    // The library may use tensor cores for 16-bit sums, also for the bias gradient.
    let exactness = Exactness { tolerance: sum_tolerance(dtype, rows), ..Exactness::default() };
    devices.check_within(exactness, &op, &reference, &inputs);
}

/// Row offsets of operands: all, only the first, only the accumulator. The alignment is that of the rows, in place and
/// out of place, so the same algorithm gives the same bits.
const OFFSETS: [RowOffset; 3] =
    [|_| 1, |operand| 3 * usize::from(operand == 0), |operand| 5 * usize::from(operand == 2)];

/// The row sizes give 16-bit operands alignments of 2, 4, 16 and 64 bytes.
const OFFSET_SHAPES: [[usize; 3]; 2] = [[5, 33, 34], [40, 24, 96]];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn operands_may_begin_at_any_row() {
    let mut devices = Devices::new();
    for (place, [rows, inner, out]) in
        OFFSETS.into_iter().flat_map(|at| OFFSET_SHAPES.map(|shape| (at, shape)))
    {
        devices.set_row_offsets(place);
        for (dtype, flags) in NUMBERS.into_iter().flat_map(|dtype| (0..8).map(move |flags| (dtype, flags))) {
            forward(&mut devices, [rows, inner, out], dtype, flags, gelu_if(flags & 4 > 0));
            if flags < 4 {
                let activation = gelu_if(flags & 2 > 0);
                input_gradient(&mut devices, [rows, inner, out], dtype, flags, activation);
                weight_gradient(&mut devices, [rows, inner, out], dtype, flags);
            }
        }
    }
}

/// The choice for a shape serves operands that begin at any row, and no operands of another alignment.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn choices_depend_on_the_alignment_of_rows() {
    let devices_with_fixed_mode = || {
        let mut devices = Devices::new();
        devices.fix_mode(Mode::SUMS[1]);
        devices
    };
    let mut devices = devices_with_fixed_mode();
    let op = Op::Linear(Linear { bias: true, activation: None, residual: false, tf32: false });
    let shapes: [&[usize]; 3] = [&[6, 33], &[40, 33], &[40]];
    let inputs = shapes.map(|dims| Data::random(DType::BF16, dims, 1.0, 1));
    let chosen = devices.choose(&op, &inputs, &[]);
    let alignment = "left 2, right 2, output 16";
    assert!(!chosen.is_empty() && chosen.iter().all(|choice| choice.alignment == alignment), "{chosen:?}");
    for place in
        [(|operand| 3 * usize::from(operand == 0)) as RowOffset, |operand| 3 * usize::from(operand == 3)]
    {
        devices.set_row_offsets(place);
        assert_eq!(devices.choose(&op, &inputs, &[]), chosen);
        devices.check_within(double_rounding(DType::BF16, 33), &op, &op, &inputs);
    }
    // The same for stored choices.
    let mut repeated = devices_with_fixed_mode();
    repeated.set_row_offsets(|operand| 3 * usize::from(operand == 0));
    let taken = repeated.choose(&op, &inputs, &chosen);
    assert!(taken.iter().all(|choice| choice.source == Source::Stored), "{taken:?}");
    let mut other = devices_with_fixed_mode();
    let stored: Vec<Choice> =
        chosen.iter().map(|choice| Choice { alignment: "left 4".to_owned(), ..choice.clone() }).collect();
    let timed = other.choose(&op, &inputs, &stored);
    assert!(timed.iter().all(|choice| choice.source != Source::Stored), "{timed:?}");
}

/// Gradients added to zeros equal stored gradients, whether the library sums dy (16 bits and rows of whole vectors) or
/// kernels do.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn weight_gradients_added_to_zeros_equal_stored_ones() {
    let mut devices = Devices::new();
    let cases = SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|dtype| (shape, dtype)));
    for (([rows, inner, out], dtype), mode) in cases.flat_map(|case| Mode::SUMS.map(|mode| (case, mode))) {
        devices.fix_mode(mode);
        let op = |accumulate| {
            let gradients = DType::F32;
            Op::LinearWeightGradient(LinearWeightGradient { gradients, bias: true, accumulate, tf32: false })
        };
        let mut inputs =
            vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[rows, out], 1.0, 2)];
        let choices = devices.choose(&op(false), &inputs, &[]);
        if devices.are_emulated() {
            // For real cards, it is undocumented which shapes support fused bias gradients.
            let product = format!("{out}x{inner}x{rows} {dtype}^T {dtype} to f32, bgradb, ");
            let fused = choices.iter().any(|choice| choice.product.starts_with(&product));
            let expected = dtype != DType::F32 && inner.is_multiple_of(8) && out.is_multiple_of(8);
            assert_eq!(fused, expected, "{product} in {choices:?}");
        }
        let stored = devices.cuda(&op(false), &inputs);
        for dims in [&[out, inner][..], &[out]] {
            inputs.push(Data::new(DType::F32, dims, vec![0.0; dims.iter().product()]));
        }
        assert_eq!(devices.choose(&op(true), &inputs, &[]), choices, "both use the same choice");
        let added = devices.cuda(&op(true), &inputs);
        for (stored, added) in stored.iter().zip(&added) {
            let same = stored.bits() == added.bits();
            assert!(same, "{dtype}, {rows} rows, {inner} to {out}: different bits");
        }
    }
}

/// A repeated run uses the stored algorithms, including epilogues.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn stored_choices_are_reused() {
    let (mut first, mut second) = (Devices::new(), Devices::new());
    for mode in Mode::ALL {
        first.fix_mode(mode);
        second.fix_mode(mode);
        reuse_choices(&mut first, &mut second);
    }
}

fn reuse_choices(first: &mut Devices, second: &mut Devices) {
    let data = |dims: &[usize]| Data::random(DType::BF16, dims, 1.0, 1);
    for (bias, activation) in
        [(true, None), (true, Some(Activation::GeluTanh)), (false, Some(Activation::GeluTanh))]
    {
        let op = Op::Linear(Linear { bias, activation, residual: false, tf32: false });
        let mut inputs = vec![data(&[64, 96]), data(&[40, 96])];
        inputs.extend(bias.then(|| data(&[40])));
        let chosen = first.choose(&op, &inputs, &[]);
        let reused = second.choose(&op, &inputs, &chosen);
        assert!(reused.iter().all(|choice| choice.source == Source::Stored), "{reused:?}");
        let algorithms =
            |choices: &[Choice]| choices.iter().map(|choice| choice.algorithm.clone()).collect::<Vec<_>>();
        assert_eq!(algorithms(&reused), algorithms(&chosen));
    }
}

/// TF32 operands have 11 significant bits, which determines the error.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn tf32_is_within_its_precision() {
    let mut devices = Devices::new();
    let op = |tf32| Op::Linear(Linear { bias: true, activation: None, residual: false, tf32 });
    let shapes: [&[usize]; 3] = [&[64, 128], &[96, 128], &[96]];
    let inputs = [0, 1, 2].map(|i| Data::random(DType::F32, shapes[i], 1.0, i as u64));
    let exactness = Exactness { tolerance: 2e-3, ..Exactness::default() };
    for mode in Mode::SUMS {
        devices.fix_mode(mode);
        devices.check_within(exactness, &op(true), &op(false), &inputs);
    }
}
