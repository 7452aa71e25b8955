//! Products with what is fused to them.

use crate::device::cpu::kernels::operands::Start;
use crate::device::cpu::kernels::product::{LEAST_WORKSPACE_PER_THREAD, Matrix, Product, RowSums};
use crate::device::cpu::kernels::simd::Level;
use crate::device::cpu::kernels::workers::{Parts, Workers};
use crate::ops::{Activation, Linear, LinearInputGradient, LinearWeightGradient, Op};

use super::harness::{Data, How, added, check, launch};
use super::reference::{gelu, gelu_slope, product, row_sum, transposed};

/// Rows, K and M: single elements, odd sizes, and more than one block of each dimension.
const SHAPES: [[usize; 3]; 6] =
    [[1, 1, 1], [1, 40, 257], [13, 7, 5], [65, 40, 97], [130, 801, 40], [40, 33, 1300]];

#[test]
fn linear_matches_the_reference() {
    for ([rows, inner, out], combination) in SHAPES.into_iter().flat_map(|s| (0..8).map(move |c| (s, c))) {
        let (bias, residual) = (combination & 1 > 0, combination & 2 > 0);
        let activation = (combination & 4 > 0).then_some(Activation::GeluTanh);
        let mut inputs = vec![Data::random(&[rows, inner], 1), Data::random(&[out, inner], 2)];
        let (x, weight) = (inputs[0].to_f64(), inputs[1].to_f64());
        let mut y = product(&x, &transposed(&weight, inner), inner);
        if bias {
            inputs.push(Data::random(&[out], 3));
            let bias = inputs[2].to_f64();
            y.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % out]);
        }
        let mut expected = vec![y];
        if activation.is_some() {
            expected.insert(0, expected[0].iter().map(|&x| gelu(x)).collect());
        }
        if residual {
            inputs.push(Data::random(&[rows, out], 4));
            expected[0] = added(&expected[0], &inputs[inputs.len() - 1].to_f64());
        }
        check(Op::Linear(Linear { bias, activation, residual, tf32: false }), &inputs, &expected);
    }
}

#[test]
fn gradients_match_the_reference() {
    for ([rows, inner, out], flags) in SHAPES.into_iter().flat_map(|s| (0..4).map(move |c| (s, c))) {
        let (bias, accumulate) = (flags & 1 > 0, flags & 2 > 0);
        let (x, dy) = (Data::random(&[rows, inner], 1), Data::random(&[rows, out], 2));
        let weight = Data::random(&[out, inner], 3);
        let so_far =
            [Data::random(&[rows, inner], 4), Data::random(&[out, inner], 5), Data::random(&[out], 6)];
        let mut expected = [
            product(&dy.to_f64(), &weight.to_f64(), out),
            product(&transposed(&dy.to_f64(), out), &x.to_f64(), rows),
            row_sum(&dy.to_f64(), out),
        ];
        let (mut input, mut weights) = (vec![dy.clone(), weight], vec![x, dy]);
        if accumulate {
            for (expected, so_far) in expected.iter_mut().zip(&so_far) {
                *expected = added(expected, &so_far.to_f64());
            }
            let [dx, dweight, dbias] = so_far;
            input.push(dx);
            weights.push(dweight);
            weights.extend(bias.then_some(dbias));
        }
        let op = LinearInputGradient { accumulate, activation: None, tf32: false };
        check(Op::LinearInputGradient(op), &input, &expected[..1]);
        let before = Data::random(&[rows, inner], 7);
        let slopes = before.to_f64().into_iter().map(gelu_slope);
        let through: Vec<f64> = expected[0].iter().zip(slopes).map(|(dx, slope)| dx * slope).collect();
        input.push(before);
        let op = LinearInputGradient { activation: Some(Activation::GeluTanh), ..op };
        check(Op::LinearInputGradient(op), &input, &[through]);
        let op = Op::LinearWeightGradient(LinearWeightGradient { bias, accumulate, tf32: false });
        check(op, &weights, &expected[1..2 + usize::from(bias)]);
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
    for level in Level::available() {
        let run = |rows: std::ops::Range<usize>, threads: usize| {
            let Data::F32(_, x) = Data::random(&[97, 801], 1) else { unreachable!("floats") };
            let ty = crate::ops::TensorType::f32(&[rows.len(), 801]);
            let x = Data::F32(ty, x[rows.start * 801..rows.end * 801].to_vec());
            let inputs = [x, Data::random(&[70, 801], 2), Data::random(&[70], 3)];
            launch(&op, &inputs, How { threads, level, share: false })
        };
        let whole = run(0..97, 2);
        for rows in [0..97, 0..1, 5..18, 31..97] {
            for (part, whole) in run(rows.clone(), 1).iter().zip(&whole) {
                assert_eq!(part[..], whole[rows.start * 70..rows.end * 70], "{level:?}, rows {rows:?}");
            }
        }
    }
}

/// A target may promise this little, and it changes no bit.
#[test]
fn the_least_workspace_is_enough() {
    // The longest inner dimension that is not cut needs the most, one that is has several blocks.
    for (level, inner) in Level::available().flat_map(|level| [(level, 384), (level, 1000)]) {
        // A left operand is read where it lies; transposed, it is packed too, and its rows are summed.
        for transposed in [false, true] {
            let run = |bytes_per_thread| product_of_random(inner, transposed, level, bytes_per_thread);
            let enough = run(1 << 20);
            assert!(
                run(LEAST_WORKSPACE_PER_THREAD) == enough,
                "{level:?}, {inner}, transposed: {transposed}"
            );
        }
    }
}

/// The product and, with a transposed left operand, the sums of its rows.
fn product_of_random(
    inner: usize,
    transposed: bool,
    level: Level,
    bytes_per_thread: u64,
) -> (Vec<f32>, Vec<f32>) {
    let (rows, columns, threads) = (400, 150, 2);
    let (Data::F32(_, left), Data::F32(_, right)) =
        (Data::random(&[rows, inner], 1), Data::random(&[inner, columns], 2))
    else {
        unreachable!("floats")
    };
    let mut c = vec![0.0; rows * columns];
    let mut sums = vec![0.0; if transposed { rows } else { 0 }];
    let left = if transposed { Matrix::new(&left, rows).transposed() } else { Matrix::new(&left, inner) };
    let product = Product {
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
