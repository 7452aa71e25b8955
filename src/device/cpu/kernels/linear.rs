//! Products with what is fused to them.

use crate::ops::{Activation, Linear, LinearInputGradient, LinearWeightGradient};

use super::elementwise::{gelu_add_to, gelu_of, scale_by_slope};
use super::operands::{Operands, Start};
use super::product::{Matrix, Product, RowSums};
use super::workers::{Parts, Workers};

pub(super) fn forward(op: &Linear, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let (rows, inner) = (operands.input_type(0).shape.rows(), operands.input_type(0).shape.last());
    let columns = operands.input_type(1).shape.dims()[0];
    let residual = operands.start(0, op.residual.then_some(2 + usize::from(op.bias)));
    let product = Product {
        rows,
        inner,
        columns,
        left: Matrix::new(operands.input(0), inner),
        right: Matrix::new(operands.input(1), inner).transposed(),
        start: if op.activation.is_some() { Start::Zero } else { residual },
        bias: op.bias.then(|| operands.input(2)),
        sums: None,
    };
    let y = operands.output(0);
    match op.activation {
        None => product.run(y, None, scratch, workers),
        Some(Activation::GeluTanh) => {
            let (y, level) = (Parts::new(y), workers.level());
            product.run(
                operands.output(1),
                Some(&|place, x| {
                    // SAFETY: pieces of finished rows do not overlap.
                    #[allow(unsafe_code)]
                    let y = unsafe { y.part(place.clone()) };
                    match residual {
                        Start::Zero => return gelu_of(level, y, x),
                        Start::Output => {}
                        Start::Other(residual) => y.copy_from_slice(&residual[place]),
                    }
                    gelu_add_to(level, y, x);
                }),
                scratch,
                workers,
            );
        }
    }
}

pub(super) fn input_gradient(
    op: &LinearInputGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let [out, inner] = [0, 1].map(|index| operands.input_type(1).shape.dims()[index]);
    let product = Product {
        rows: operands.input_type(0).shape.rows(),
        inner: out,
        columns: inner,
        left: Matrix::new(operands.input(0), out),
        right: Matrix::new(operands.input(1), inner),
        start: operands.start(0, op.accumulate.then_some(2)),
        bias: None,
        sums: None,
    };
    let dx = operands.output(0);
    match op.activation {
        None => product.run(dx, None, scratch, workers),
        Some(Activation::GeluTanh) => {
            let before = operands.input(2 + usize::from(op.accumulate));
            let finish = |place, dx: &mut [f32]| scale_by_slope(workers.level(), dx, &before[place]);
            product.run(dx, Some(&finish), scratch, workers);
        }
    }
}

pub(super) fn weight_gradient(
    op: &LinearWeightGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (inner, out) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let (x, dy) = (operands.input(0), operands.input(1));
    let product = Product {
        rows: out,
        inner: operands.input_type(0).shape.rows(),
        columns: inner,
        left: Matrix::new(dy, out).transposed(),
        right: Matrix::new(x, inner),
        start: if op.accumulate { Start::Output } else { Start::Zero },
        bias: None,
        sums: op.bias.then(|| RowSums { sums: Parts::new(operands.output(1)), accumulate: op.accumulate }),
    };
    product.run(operands.output(0), None, scratch, workers);
}
