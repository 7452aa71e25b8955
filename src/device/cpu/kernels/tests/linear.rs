//! Linear layers and their gradients.

use std::iter;

use crate::cpu::kernels::float::{Bf16, Float};
use crate::cpu::kernels::matmul::{MIN_WORKSPACE_PER_THREAD, Matmul, Matrix, RowSums};
use crate::cpu::kernels::operands::Addend;
use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::workers::{SharedSlice, Workers};
use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Op, TensorType};

use super::harness::{Data, FLOATS, LaunchOptions, added, cases, check_variants, launch};
use super::reference::{self, matmul, row_sum, transposed};

/// Rows, inner and output channels: single elements, odd sizes, and several blocks per dimension, also if blocks of
/// equal length would be odd.
const SHAPES: [[usize; 3]; 7] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [65, 40, 97], [130, 801, 40], [40, 33, 1300], [5, 1538, 6]];

/// The operands of a linear layer and of its gradients, and their matmuls in f64.
struct Case {
    dtype: DType,
    shape: [usize; 3],
    x: Data,
    weight: Data,
    dy: Data,
    /// `x weight^T`, `dy weight`, `dy^T x`, and the sum over the rows of dy.
    y: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

impl Case {
    fn new(shape: [usize; 3], dtype: DType) -> Case {
        let [rows, inner, out] = shape;
        let stored = |dims: [usize; 2], seed| Data::random(&dims, seed).stored_as(dtype);
        let (x, weight, dy) = (stored([rows, inner], 1), stored([out, inner], 2), stored([rows, out], 3));
        let [x64, weight64, dy64] = [&x, &weight, &dy].map(Data::to_f64);
        Case {
            dtype,
            shape,
            y: matmul(&x64, &transposed(&weight64, inner), inner),
            dx: matmul(&dy64, &weight64, out),
            dweight: matmul(&transposed(&dy64, out), &x64, rows),
            dbias: row_sum(&dy64, out),
            x,
            weight,
            dy,
        }
    }

    /// All shapes in all types.
    fn all() -> Vec<Case> {
        let shapes = SHAPES.into_iter();
        shapes.flat_map(|shape| FLOATS.map(|dtype| Case::new(shape, dtype))).collect()
    }
}

#[test]
fn linear_matches_the_reference() {
    // No activation, then each one.
    let activations: Vec<Option<Activation>> = iter::once(None).chain(Activation::ALL.map(Some)).collect();
    let all_cases = Case::all();
    let axes = [SHAPES.len(), FLOATS.len(), activations.len(), 2, 2, 2];
    for ([shape, dtype, activation, bias, residual, stream], variants) in cases(3, axes) {
        let case = &all_cases[shape * FLOATS.len() + dtype];
        let ([rows, _, out], dtype) = (case.shape, case.dtype);
        let (bias, residual) = (bias > 0, residual > 0);
        // The type of the residual stream.
        let stream = if stream > 0 { dtype } else { DType::F32 };
        let mut inputs = vec![case.x.clone(), case.weight.clone()];
        let mut y = case.y.clone();
        if bias {
            inputs.push(Data::random(&[out], 4).stored_as(if residual { stream } else { dtype }));
            let bias = inputs[2].to_f64();
            y.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % out]);
        }
        let mut expected = vec![y];
        let activation = activations[activation];
        if let Some(function) = activation {
            expected.insert(0, expected[0].iter().map(|&x| reference::activation(function, x)).collect());
        }
        if residual {
            inputs.push(Data::random(&[rows, out], 5).stored_as(stream));
            expected[0] = added(&expected[0], &inputs[inputs.len() - 1].to_f64());
        }
        check_variants(
            variants,
            Op::Linear(Linear { bias, activation, residual, tf32: false }),
            &inputs,
            &expected,
        );
    }
}

#[test]
fn input_gradient_matches_the_reference() {
    // No activation, then each one.
    let activations: Vec<Option<Activation>> = iter::once(None).chain(Activation::ALL.map(Some)).collect();
    let all_cases = Case::all();
    for ([shape, dtype, activation, accumulate], variants) in
        cases(3, [SHAPES.len(), FLOATS.len(), activations.len(), 2])
    {
        let case = &all_cases[shape * FLOATS.len() + dtype];
        let [rows, inner, _] = case.shape;
        let stored = |seed| Data::random(&[rows, inner], seed).stored_as(case.dtype);
        let mut inputs = vec![case.dy.clone(), case.weight.clone()];
        let mut dx = case.dx.clone();
        let (accumulate, activation) = (accumulate > 0, activations[activation]);
        if accumulate {
            let previous = stored(4);
            dx = added(&dx, &previous.to_f64());
            inputs.push(previous);
        }
        if let Some(function) = activation {
            let saved = stored(7);
            let slopes = saved.to_f64().into_iter().map(|saved| reference::activation_slope(function, saved));
            dx = dx.iter().zip(slopes).map(|(dx, slope)| dx * slope).collect();
            inputs.push(saved);
        }
        let op = LinearInputGradient { accumulate, activation, tf32: false };
        check_variants(variants, Op::LinearInputGradient(op), &inputs, &[dx]);
    }
}

#[test]
fn weight_gradient_matches_the_reference() {
    let all_cases = Case::all();
    for ([shape, dtype, bias, accumulate, narrow], variants) in
        cases(3, [SHAPES.len(), FLOATS.len(), 2, 2, 2])
    {
        let case = &all_cases[shape * FLOATS.len() + dtype];
        let ([_, inner, out], bias, accumulate) = (case.shape, bias > 0, accumulate > 0);
        let gradients = if narrow > 0 { case.dtype } else { DType::F32 };
        let mut inputs = vec![case.x.clone(), case.dy.clone()];
        let mut expected = vec![case.dweight.clone(), case.dbias.clone()];
        expected.truncate(1 + usize::from(bias));
        let previous = [Data::random(&[out, inner], 5), Data::random(&[out], 6)];
        for (expected, previous) in expected.iter_mut().zip(previous).filter(|_| accumulate) {
            let previous = previous.stored_as(gradients);
            *expected = added(expected, &previous.to_f64());
            inputs.push(previous);
        }
        let op = LinearWeightGradient { gradients, bias, accumulate, tf32: false };
        check_variants(variants, Op::LinearWeightGradient(op), &inputs, &expected);
    }
}

/// So a micro-batch computes the same rows as the whole batch.
#[test]
fn rows_do_not_depend_on_other_rows() {
    let op = Op::Linear(Linear {
        bias: true,
        activation: Some(Activation::GeluTanh),
        residual: false,
        tf32: false,
    });
    for (level, dtype) in Level::available().flat_map(|level| FLOATS.map(|dtype| (level, dtype))) {
        let run = |rows: std::ops::Range<usize>, threads: usize| {
            let Data::F32(_, x) = Data::random(&[97, 801], 1) else { unreachable!("floats") };
            let ty = TensorType::f32(&[rows.len(), 801]);
            let x = Data::F32(ty, x[rows.start * 801..rows.end * 801].to_vec());
            let inputs = [x, Data::random(&[70, 801], 2), Data::random(&[70], 3)];
            let inputs = inputs.map(|input| input.stored_as(dtype));
            launch(&op, &inputs, LaunchOptions { threads, level, alias: false })
        };
        let whole = run(0..97, 2);
        for rows in [0..97, 0..1, 5..18, 31..97] {
            for (part, whole) in run(rows.clone(), 1).iter().zip(&whole) {
                assert_eq!(
                    part[..],
                    whole[rows.start * 70..rows.end * 70],
                    "{level:?}, {dtype}, rows {rows:?}"
                );
            }
        }
    }
}

/// The smallest workspace that a target may declare gives bitwise the same results.
#[test]
fn smallest_workspace_suffices() {
    // The longest inner dimensions that are not split need the most workspace: 384 for vectors, 768 for matrix units.
    // 1000 is split into several blocks.
    for (level, inner) in Level::available().flat_map(|level| [384, 768, 1000].map(|inner| (level, inner))) {
        // A row-major f32 left operand is read in place; a transposed one is packed, and its rows are summed.
        for transposed in [false, true] {
            let context = format!("{level:?}, {inner}, transposed: {transposed}");
            let bytes = [MIN_WORKSPACE_PER_THREAD, 1 << 20];
            let [min, ample] = bytes.map(|bytes| random_matmul::<f32, f32>(inner, transposed, level, bytes));
            assert!(min == ample, "{context}");
            let [min, ample] = bytes.map(|bytes| random_matmul::<Bf16, f32>(inner, transposed, level, bytes));
            assert!(min == ample, "{context}, 16-bit operands");
            let [min, ample] =
                bytes.map(|bytes| random_matmul::<Bf16, Bf16>(inner, transposed, level, bytes));
            assert!(min == ample, "{context}, 16-bit operands and result");
        }
    }
}

/// A matmul of random operands and, for a transposed left operand, the sums of its rows.
fn random_matmul<T: Float, C: Float>(
    inner: usize,
    transposed: bool,
    level: Level,
    bytes_per_thread: u64,
) -> (Vec<C>, Vec<f32>) {
    // More rows than are accumulated at a time.
    let (rows, columns, threads) = (1200, 150, 2);
    let random = |dims: [usize; 2], seed| {
        let Data::F32(_, values) = Data::random(&dims, seed) else { unreachable!("floats") };
        let mut stored = vec![T::default(); values.len()];
        T::narrow(level, &values, &mut stored);
        stored
    };
    let (left, right) = (random([rows, inner], 1), random([inner, columns], 2));
    let mut c = vec![C::default(); rows * columns];
    let mut sums = vec![0.0; if transposed { rows } else { 0 }];
    let left = if transposed { Matrix::new(&left, rows).transposed() } else { Matrix::new(&left, inner) };
    let matmul: Matmul<T, C, f32> = Matmul {
        rows,
        inner,
        columns,
        left,
        right: Matrix::new(&right, columns),
        addend: Addend::Zero,
        bias: None,
        sums: transposed.then(|| RowSums { sums: SharedSlice::new(&mut sums), accumulate: false }),
    };
    let mut workspace = vec![0.0; bytes_per_thread as usize / size_of::<f32>() * threads];
    let workers = Workers::with_level(threads, level).expect("threads can be started");
    matmul.run(&mut c, None, &mut workspace, &workers);
    (c, sums)
}

#[test]
fn f16_overflow_gives_infinity() {
    let op = Op::Linear(Linear { bias: false, activation: None, residual: false, tf32: false });
    for level in Level::available() {
        let options = LaunchOptions { threads: 1, level, alias: false };
        let stored =
            |values: &[f32], dims| Data::F32(TensorType::f32(dims), values.to_vec()).stored_as(DType::F16);
        // 2 * 32752 is the largest finite number, 2 * 32768 overflows.
        let x = stored(&[32752.0, 32768.0, -32768.0, f32::INFINITY], &[4, 1]);
        let y = launch(&op, &[x, stored(&[2.0], &[1, 1])], options).swap_remove(0);
        assert_eq!(y, [65504.0, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY], "{level:?}");
        // Intermediate sums do not overflow.
        let y =
            launch(&op, &[stored(&[6e4, 6e4, 6e4, -6e4], &[2, 2]), stored(&[1.0, -1.0], &[1, 2])], options);
        assert_eq!(y[0], [0.0, f32::INFINITY], "{level:?}");
    }
}
