//! Products with what is fused to them.

use std::iter;

use crate::cpu::kernels::float::{Bf16, Float};
use crate::cpu::kernels::operands::Start;
use crate::cpu::kernels::product::{LEAST_WORKSPACE_PER_THREAD, Matrix, Product, RowSums};
use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::workers::{Parts, Workers};
use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Op, TensorType};

use super::harness::{Data, How, NUMBERS, added, cases, check_in, launch};
use super::reference::{self, product, row_sum, transposed};

/// Rows, K and M: single elements, odd sizes, and more than one block of each dimension, also where blocks of equal
/// length would be odd.
const SHAPES: [[usize; 3]; 7] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [65, 40, 97], [130, 801, 40], [40, 33, 1300], [5, 1538, 6]];

/// The operands of a product and its gradients, and these products in f64.
struct Products {
    number: DType,
    shape: [usize; 3],
    x: Data,
    weight: Data,
    dy: Data,
    /// `x weight^T`, `dy weight`, `dy^T x`, and the sum of the rows of dy.
    y: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

impl Products {
    fn new(shape: [usize; 3], number: DType) -> Products {
        let [rows, inner, out] = shape;
        let stored = |dims: [usize; 2], seed| Data::random(&dims, seed).stored_as(number);
        let (x, weight, dy) = (stored([rows, inner], 1), stored([out, inner], 2), stored([rows, out], 3));
        let [exact, factors, slopes] = [&x, &weight, &dy].map(Data::to_f64);
        Products {
            number,
            shape,
            y: product(&exact, &transposed(&factors, inner), inner),
            dx: product(&slopes, &factors, out),
            dweight: product(&transposed(&slopes, out), &exact, rows),
            dbias: row_sum(&slopes, out),
            x,
            weight,
            dy,
        }
    }

    /// Of all shapes, stored in all types.
    fn all() -> Vec<Products> {
        let shapes = SHAPES.into_iter();
        shapes.flat_map(|shape| NUMBERS.map(|number| Products::new(shape, number))).collect()
    }
}

#[test]
fn linear_matches_the_reference() {
    // None, and then each.
    let activations: Vec<Option<Activation>> = iter::once(None).chain(Activation::ALL.map(Some)).collect();
    let products = Products::all();
    let axes = [SHAPES.len(), NUMBERS.len(), activations.len(), 2, 2, 2];
    for ([shape, number, activation, bias, residual, stream], ways) in cases(3, axes) {
        let of = &products[shape * NUMBERS.len() + number];
        let ([rows, _, out], number) = (of.shape, of.number);
        let (bias, residual) = (bias > 0, residual > 0);
        // What the residual stream is stored in.
        let stream = if stream > 0 { number } else { DType::F32 };
        let mut inputs = vec![of.x.clone(), of.weight.clone()];
        let mut y = of.y.clone();
        if bias {
            inputs.push(Data::random(&[out], 4).stored_as(if residual { stream } else { number }));
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
        check_in(ways, Op::Linear(Linear { bias, activation, residual, tf32: false }), &inputs, &expected);
    }
}

#[test]
fn gradients_of_inputs_match_the_reference() {
    // None, and then each.
    let activations: Vec<Option<Activation>> = iter::once(None).chain(Activation::ALL.map(Some)).collect();
    let products = Products::all();
    for ([shape, number, activation, accumulate], ways) in
        cases(3, [SHAPES.len(), NUMBERS.len(), activations.len(), 2])
    {
        let of = &products[shape * NUMBERS.len() + number];
        let [rows, inner, _] = of.shape;
        let stored = |seed| Data::random(&[rows, inner], seed).stored_as(of.number);
        let mut inputs = vec![of.dy.clone(), of.weight.clone()];
        let mut dx = of.dx.clone();
        let (accumulate, activation) = (accumulate > 0, activations[activation]);
        if accumulate {
            let so_far = stored(4);
            dx = added(&dx, &so_far.to_f64());
            inputs.push(so_far);
        }
        if let Some(function) = activation {
            let before = stored(7);
            let slopes = before.to_f64().into_iter().map(|x| reference::activation_slope(function, x));
            dx = dx.iter().zip(slopes).map(|(dx, slope)| dx * slope).collect();
            inputs.push(before);
        }
        let op = LinearInputGradient { accumulate, activation, tf32: false };
        check_in(ways, Op::LinearInputGradient(op), &inputs, &[dx]);
    }
}

#[test]
fn gradients_of_weights_match_the_reference() {
    let products = Products::all();
    for ([shape, number, bias, accumulate, narrow], ways) in cases(3, [SHAPES.len(), NUMBERS.len(), 2, 2, 2])
    {
        let of = &products[shape * NUMBERS.len() + number];
        let ([_, inner, out], bias, accumulate) = (of.shape, bias > 0, accumulate > 0);
        let gradients = if narrow > 0 { of.number } else { DType::F32 };
        let mut inputs = vec![of.x.clone(), of.dy.clone()];
        let mut expected = vec![of.dweight.clone(), of.dbias.clone()];
        expected.truncate(1 + usize::from(bias));
        let so_far = [Data::random(&[out, inner], 5), Data::random(&[out], 6)];
        for (expected, so_far) in expected.iter_mut().zip(so_far).filter(|_| accumulate) {
            let so_far = so_far.stored_as(gradients);
            *expected = added(expected, &so_far.to_f64());
            inputs.push(so_far);
        }
        let op = LinearWeightGradient { gradients, bias, accumulate, tf32: false };
        check_in(ways, Op::LinearWeightGradient(op), &inputs, &expected);
    }
}

/// A micro-batch computes the same rows as the batch.
#[test]
fn rows_do_not_depend_on_other_rows() {
    let op = Op::Linear(Linear {
        bias: true,
        activation: Some(Activation::GeluTanh),
        residual: false,
        tf32: false,
    });
    for (level, number) in Level::available().flat_map(|level| NUMBERS.map(|number| (level, number))) {
        let run = |rows: std::ops::Range<usize>, threads: usize| {
            let Data::F32(_, x) = Data::random(&[97, 801], 1) else { unreachable!("floats") };
            let ty = TensorType::f32(&[rows.len(), 801]);
            let x = Data::F32(ty, x[rows.start * 801..rows.end * 801].to_vec());
            let inputs = [x, Data::random(&[70, 801], 2), Data::random(&[70], 3)];
            let inputs = inputs.map(|input| input.stored_as(number));
            launch(&op, &inputs, How { threads, level, share: false })
        };
        let whole = run(0..97, 2);
        for rows in [0..97, 0..1, 5..18, 31..97] {
            for (part, whole) in run(rows.clone(), 1).iter().zip(&whole) {
                assert_eq!(
                    part[..],
                    whole[rows.start * 70..rows.end * 70],
                    "{level:?}, {number}, rows {rows:?}"
                );
            }
        }
    }
}

/// A target may promise this little, and it changes no bit.
#[test]
fn the_least_workspace_is_enough() {
    // The longest inner dimension that is not cut needs the most: one for vectors, another for matrix units. One that
    // is has several blocks.
    for (level, inner) in Level::available().flat_map(|level| [384, 768, 1000].map(|inner| (level, inner))) {
        // A left operand of f32 is read where it lies; transposed, it is packed too, and its rows are summed.
        for transposed in [false, true] {
            let place = format!("{level:?}, {inner}, transposed: {transposed}");
            let bytes = [LEAST_WORKSPACE_PER_THREAD, 1 << 20];
            let [least, enough] =
                bytes.map(|bytes| product_of_random::<f32, f32>(inner, transposed, level, bytes));
            assert!(least == enough, "{place}");
            let [least, enough] =
                bytes.map(|bytes| product_of_random::<Bf16, f32>(inner, transposed, level, bytes));
            assert!(least == enough, "{place}, of 16 bits");
            // What is rounded is never the product of a transposed left operand.
            if !transposed {
                let [least, enough] =
                    bytes.map(|bytes| product_of_random::<Bf16, Bf16>(inner, transposed, level, bytes));
                assert!(least == enough, "{place}, of 16 bits and rounded");
            }
        }
    }
}

/// The product of random numbers and, with a transposed left operand, the sums of its rows.
fn product_of_random<T: Float, C: Float>(
    inner: usize,
    transposed: bool,
    level: Level,
    bytes_per_thread: u64,
) -> (Vec<C>, Vec<f32>) {
    // More rows than are summed at a time.
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
    let product: Product<T, C, f32> = Product {
        rows,
        inner,
        columns,
        left,
        right: Matrix::new(&right, columns),
        start: Start::Zero,
        bias: None,
        sums: transposed.then(|| RowSums { sums: Parts::new(&mut sums), accumulate: false }),
    };
    let mut workspace = vec![0.0; bytes_per_thread as usize / size_of::<f32>() * threads];
    let workers = Workers::with_level(threads, level).expect("threads can be started");
    product.run(&mut c, None, &mut workspace, &workers);
    (c, sums)
}

#[test]
fn what_is_too_large_for_half_precision_is_infinite() {
    let op = Op::Linear(Linear { bias: false, activation: None, residual: false, tf32: false });
    for level in Level::available() {
        let how = How { threads: 1, level, share: false };
        let stored =
            |values: &[f32], dims| Data::F32(TensorType::f32(dims), values.to_vec()).stored_as(DType::F16);
        // 2 * 32752 is the largest number, 2 * 32768 would be the next one.
        let x = stored(&[32752.0, 32768.0, -32768.0, f32::INFINITY], &[4, 1]);
        let y = launch(&op, &[x, stored(&[2.0], &[1, 1])], how).swap_remove(0);
        assert_eq!(y, [65504.0, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY], "{level:?}");
        // On the way there, nothing is.
        let y = launch(&op, &[stored(&[6e4, 6e4, 6e4, -6e4], &[2, 2]), stored(&[1.0, -1.0], &[1, 2])], how);
        assert_eq!(y[0], [0.0, f32::INFINITY], "{level:?}");
    }
}
