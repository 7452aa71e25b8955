//! Products with what is fused to them, by the library or by kernels after it.

use device::{Choice, Source};
use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Op};

use super::harness::{
    Devices, Exactness, HalfUnit, RowsBefore, TOLERANCE, beyond, half_unit, of_tensor_cores,
};
use super::numbers::{Data, NUMBERS};
use super::ways::Way;

/// Rows, K and M: single elements, sizes that the library finishes itself, odd ones, and many rows to sum.
const SHAPES: [[usize; 3]; 6] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [64, 40, 96], [130, 801, 40], [300, 32, 64]];

/// Every shape, and one with more products to sum, each with every combination of as many flags.
fn cases(long: [usize; 3], flags: usize) -> impl Iterator<Item = ([usize; 3], usize)> {
    SHAPES.into_iter().chain([long]).flat_map(move |shape| (0..1 << flags).map(move |set| (shape, set)))
}

/// How steep an activation is at the most for arguments that are this far from x: GELU between them, others at one end.
fn steepest(activation: Activation, x: f64, off: f64) -> f64 {
    const GELU: f64 = 1.13;
    [x - off, x + off]
        .map(activation.definition().slope)
        .into_iter()
        .fold(GELU, |most, slope| most.max(slope.abs()))
}

/// Kernels that finish a product round what the library has rounded. 16-bit factors are multiplied by tensor cores.
fn twice(dtype: DType, products: usize) -> Exactness {
    Exactness { roundings: 2.5, tolerance: sums(dtype, products) }
}

fn sums(dtype: DType, products: usize) -> f64 {
    let tensor_cores = if dtype == DType::F32 { 0.0 } else { of_tensor_cores(products) };
    TOLERANCE + tensor_cores
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn linear() {
    let mut devices = Devices::new();
    for (shape, flags) in cases([16, 2048, 24], 4) {
        for dtype in NUMBERS {
            forward(&mut devices, shape, dtype, flags, gelu_if(flags & 4 > 0));
        }
    }
}

/// The one that the library has an epilogue for.
fn gelu_if(activates: bool) -> Option<Activation> {
    activates.then_some(Activation::GeluTanh)
}

/// Those, too, that the library has no epilogue for.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn activations_behind_products() {
    let mut devices = Devices::new();
    for (activation, dtype) in Activation::ALL.into_iter().flat_map(|a| NUMBERS.map(|dtype| (a, dtype))) {
        for flags in 0..16 {
            forward(&mut devices, [9, 24, 1030], dtype, flags, Some(activation));
        }
        // In as many ways as there are.
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
    // A residual stream may be of the type of x.
    let sum = if residual && flags & 8 == 0 { DType::F32 } else { dtype };
    let mut inputs =
        vec![Data::random(dtype, &[rows, inner], 1.0, 1), Data::random(dtype, &[out, inner], 1.0, 2)];
    inputs.extend(bias.then(|| Data::random(sum, &[out], 1.0, 3)));
    inputs.extend(residual.then(|| Data::random(sum, &[rows, out], 1.0, 4)));
    let Some(unit) = half_unit(dtype) else {
        return devices.check_within(twice(dtype, inner), &op, &op, &inputs);
    };
    let rounding = Rounding { unit, bias: bias.then(|| inputs[2].numbers.clone()), inner };
    match activation {
        Some(activation) => devices.check_outputs(&op, &op, &inputs, |output, expected, found, _| {
            rounding.wrong_activation(activation, output, found, expected)
        }),
        None if bias && sum == dtype => {
            devices.check_outputs(&op, &op, &inputs, |_, _, found, y| rounding.wrong_sum(found, &y.numbers));
        }
        None => devices.check_within(twice(dtype, inner), &op, &op, &inputs),
    }
}

/// How far results of 16-bit products may be off.
struct Rounding {
    unit: HalfUnit,
    bias: Option<Vec<f32>>,
    /// Products that are summed.
    inner: usize,
}

impl Rounding {
    /// What is wrong with `x = product + bias`. Where a kernel adds the bias, the product is rounded before, which is at most
    /// |x| + |bias|; and so is x itself.
    fn wrong_sum(&self, found: &Data, x: &[f32]) -> Option<String> {
        let off = self.of_product(x);
        beyond(found, x, |index| {
            let product = off(index);
            product + self.unit.of(f64::from(x[index]).abs() + product)
        })
    }

    /// What is wrong with an output of a product with an activation: 0 is y = f(x), to which a residual may be added, 1 is
    /// x = product + bias.
    ///
    /// Which way it goes is the library's choice, on which nothing is documented, and the bound holds for all. It stores x
    /// rounded, and takes GELU of x before or after that: the argument is off by half a unit of x. Or it refuses, where x
    /// has odd rows, say: then it rounds the product alone, and kernels go on from there. y is off by as much as its
    /// argument times the slope, and is rounded itself.
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
        let (stored, off) = (half_unit(found.ty.dtype), self.of_product(x));
        beyond(found, y, |index| {
            let off = off(index);
            let before = steepest(activation, f64::from(x[index]), off) * off;
            let most = f64::from(y[index]).abs() + before;
            // With a residual it may be f32.
            before + stored.map_or(TOLERANCE * most, |unit| unit.of(most))
        })
    }

    /// How far the products may be off that numbers of x are the sums of, by their index.
    fn of_product<'a>(&'a self, x: &'a [f32]) -> impl Fn(usize) -> f64 + 'a {
        let mean_square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let noise = (TOLERANCE + of_tensor_cores(self.inner)) * mean_square.sqrt();
        move |index| {
            let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[index % bias.len()]).abs());
            self.unit.of(f64::from(x[index]).abs() + bias) + noise
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn input_gradients() {
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
    devices.check_within(twice(dtype, out), &op, &op, &inputs);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn weight_gradients() {
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
    // Numbers of 16 bits the library may sum on tensor cores, for the bias's gradient too.
    let exactness = Exactness { tolerance: sums(dtype, rows), ..Exactness::default() };
    devices.check_within(exactness, &op, &reference, &inputs);
}

/// Operands that begin anywhere: all of them, one alone, what is added to alone. In place and not, what is added to
/// is as aligned: the same algorithm makes the same bits.
const PLACES: [RowsBefore; 3] =
    [|_| 1, |operand| 3 * usize::from(operand == 0), |operand| 5 * usize::from(operand == 2)];

/// By the sizes of their rows, operands of 16 bits begin at multiples of 2, 4, 16 and 64 bytes.
const AT_ROWS: [[usize; 3]; 2] = [[5, 33, 34], [40, 24, 96]];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn operands_at_any_row() {
    let mut devices = Devices::new();
    for (place, [rows, inner, out]) in PLACES.into_iter().flat_map(|at| AT_ROWS.map(|shape| (at, shape))) {
        devices.begin_at(place);
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

/// An algorithm for operands that begin where memory does may not be taken for others.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn choices_are_made_for_an_alignment() {
    let on_one_card = || {
        let mut devices = Devices::new();
        devices.fix(Way::SUMS[1]);
        devices
    };
    let mut devices = on_one_card();
    let op = Op::Linear(Linear { bias: true, activation: None, residual: false, tf32: false });
    let shapes: [&[usize]; 3] = [&[6, 33], &[40, 33], &[40]];
    let inputs = shapes.map(|dims| Data::random(DType::BF16, dims, 1.0, 1));
    let aligned = devices.choose(&op, &inputs, &[]);
    assert!(!aligned.is_empty() && aligned.iter().all(|choice| choice.alignment.is_empty()), "{aligned:?}");
    for (place, alignment) in [
        ((|operand| 3 * usize::from(operand == 0)) as RowsBefore, "left 2"),
        (|operand| 2 * usize::from(operand == 1), "right 4"),
        (|operand| 3 * usize::from(operand == 3), "output 16"),
    ] {
        devices.begin_at(place);
        let before = devices.choices().len();
        let all = devices.choose(&op, &inputs, &[]);
        let new: Vec<&Choice> = all.iter().filter(|choice| choice.alignment == alignment).collect();
        assert_eq!((new.len(), all.len()), (aligned.len(), before + aligned.len()), "{all:?}");
        let products = |choices: &[&Choice]| choices.iter().map(|c| c.product.clone()).collect::<Vec<_>>();
        assert_eq!(products(&new), products(&aligned.iter().collect::<Vec<_>>()));
        devices.check_within(twice(DType::BF16, 33), &op, &op, &inputs);
    }
    // And not of one that was stored.
    let mut repeated = on_one_card();
    repeated.begin_at(|operand| 3 * usize::from(operand == 0));
    let sources = repeated.choose(&op, &inputs, &aligned);
    assert!(sources.iter().all(|choice| choice.source != Source::LoadParameter), "{sources:?}");
    let stored = repeated.choices();
    let mut again = on_one_card();
    again.begin_at(|operand| 3 * usize::from(operand == 0));
    let taken = again.choose(&op, &inputs, &stored);
    assert!(taken.iter().all(|choice| choice.source == Source::LoadParameter), "{taken:?}");
}

/// Gradients that are kept and zeroed are those that are not, whoever sums dy: the library, if it has 16 bits and rows
/// of whole vectors, kernels otherwise.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn weight_gradients_added_to_zeros_are_those_stored() {
    let mut devices = Devices::new();
    let cases = SHAPES.into_iter().flat_map(|shape| NUMBERS.map(|dtype| (shape, dtype)));
    for (([rows, inner, out], dtype), way) in cases.flat_map(|case| Way::SUMS.map(|way| (case, way))) {
        devices.fix(way);
        let op = |accumulate| {
            let gradients = DType::F32;
            Op::LinearWeightGradient(LinearWeightGradient { gradients, bias: true, accumulate, tf32: false })
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
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn what_was_chosen_is_taken_again() {
    let (mut first, mut second) = (Devices::new(), Devices::new());
    for way in Way::ALL {
        first.fix(way);
        second.fix(way);
        take_again(&mut first, &mut second);
    }
}

fn take_again(first: &mut Devices, second: &mut Devices) {
    let data = |dims: &[usize]| Data::random(DType::BF16, dims, 1.0, 1);
    for (bias, activation) in
        [(true, None), (true, Some(Activation::GeluTanh)), (false, Some(Activation::GeluTanh))]
    {
        let op = Op::Linear(Linear { bias, activation, residual: false, tf32: false });
        let mut inputs = vec![data(&[64, 96]), data(&[40, 96])];
        inputs.extend(bias.then(|| data(&[40])));
        let chosen = first.choose(&op, &inputs, &[]);
        let again = second.choose(&op, &inputs, &chosen);
        assert!(again.iter().all(|choice| choice.source == Source::LoadParameter), "{again:?}");
        let ways =
            |choices: &[Choice]| choices.iter().map(|choice| choice.algorithm.clone()).collect::<Vec<_>>();
        assert_eq!(ways(&again), ways(&chosen));
    }
}

/// Factors of 11 bits: the product is as near as they are.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn the_short_format_of_tensor_cores() {
    let mut devices = Devices::new();
    let op = |tf32| Op::Linear(Linear { bias: true, activation: None, residual: false, tf32 });
    let shapes: [&[usize]; 3] = [&[64, 128], &[96, 128], &[96]];
    let inputs = [0, 1, 2].map(|i| Data::random(DType::F32, shapes[i], 1.0, i as u64));
    let exactness = Exactness { tolerance: 2e-3, ..Exactness::default() };
    for way in Way::SUMS {
        devices.fix(way);
        devices.check_within(exactness, &op(true), &op(false), &inputs);
    }
}
