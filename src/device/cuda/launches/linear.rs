//! Products with what is fused to them.
//!
//! The library finishes a product itself where it can and is the faster for it. Elsewhere kernels do it afterwards: a
//! 16-bit result is then rounded once more than it has to be. They also do it where f32 is to be exact: how near the
//! library's GELU comes to it is not documented.

use crate::DeviceError;
use crate::cuda::launcher::{Launcher, Operand};
use crate::cuda::products::{Added, Epilogue, Matrix, Product};
use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Processor};

use super::activation;
use super::column_sums::{Sums, column_sums, sum_partials};
use super::elementwise::add_bias;

fn matrix(operand: &Operand) -> Matrix {
    Matrix { address: operand.address, dtype: operand.ty.dtype, transposed: false }
}

fn transposed(operand: &Operand) -> Matrix {
    Matrix { transposed: true, ..matrix(operand) }
}

/// What is added once.
fn whole(address: u64) -> Added {
    Added { address, scale: 1.0 }
}

/// Whether nothing may be rounded to less than f32.
fn is_exact(product: &Product) -> bool {
    product.left.dtype == DType::F32 && !product.tf32
}

/// Enqueues a product and what finishes it: by the library, or else by `finish`.
fn finished(
    plain: Product,
    epilogue: Epilogue,
    launcher: &mut Launcher,
    finish: impl Fn(&mut Launcher) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    launcher.fused(&Product { epilogue, ..plain }, |launcher| {
        launcher.product(&plain)?;
        finish(launcher)
    })
}

pub(super) fn forward(
    op: &Linear,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (x, weight, y) = (&inputs[0], &inputs[1], &outputs[0]);
    let bias = op.bias.then(|| inputs[2].address);
    let residual = op.residual.then(|| inputs[2 + usize::from(op.bias)].address);
    let plain = Product {
        rows: x.ty.shape.rows(),
        columns: y.ty.shape.last(),
        inner: x.ty.shape.last(),
        left: matrix(x),
        right: transposed(weight),
        output: matrix(y),
        scale: 1.0,
        added: residual.map(whole),
        epilogue: Epilogue::None,
        tf32: op.tf32,
        workspace,
    };
    match (op.activation, bias) {
        (None, None) => launcher.product(&plain),
        (None, Some(bias)) => {
            finished(plain, Epilogue::Bias(bias), launcher, |launcher| add_bias(y, bias, launcher))
        }
        (Some(activation), _) => {
            let before = &outputs[1];
            let apart = |launcher: &mut Launcher| {
                launcher.product(&Product { output: matrix(before), added: None, ..plain })?;
                activation::finish(activation, [y, before], bias, residual, launcher)
            };
            // Of the others, the library has none that keeps what went into it. It would add the residual before the activation.
            if activation != Activation::GeluTanh || op.residual || is_exact(&plain) {
                return apart(launcher);
            }
            let epilogue = Epilogue::GeluBias { bias, before: before.address };
            launcher.fused(&Product { epilogue, ..plain }, apart)
        }
    }
}

pub(super) fn input_gradient(
    op: &LinearInputGradient,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (dy, weight, dx) = (&inputs[0], &inputs[1], &outputs[0]);
    let plain = Product {
        rows: dy.ty.shape.rows(),
        columns: dx.ty.shape.last(),
        inner: dy.ty.shape.last(),
        left: matrix(dy),
        right: matrix(weight),
        output: matrix(dx),
        scale: 1.0,
        added: op.accumulate.then(|| whole(inputs[2].address)),
        epilogue: Epilogue::None,
        tf32: op.tf32,
        workspace,
    };
    match op.activation {
        None => launcher.product(&plain),
        Some(activation) => {
            let before = inputs[2 + usize::from(op.accumulate)];
            let finish =
                |launcher: &mut Launcher| activation::backward(activation, &[*dx, before], outputs, launcher);
            if activation != Activation::GeluTanh || is_exact(&plain) {
                launcher.product(&plain)?;
                return finish(launcher);
            }
            finished(plain, Epilogue::GeluSlope { before: before.address }, launcher, finish)
        }
    }
}

/// Gradients that are accumulated are in the outputs' own memory.
///
/// dbias comes out of the product that reads a 16-bit dy anyway: its sums are of the very numbers and in f32. f32 is
/// summed by kernels of its own: with tf32 it is not documented whether the library sums dy or what it rounded it to, and
/// where f32 is exact, the product takes so long that reading dy once more is nothing.
pub(super) fn weight_gradient(
    op: &LinearWeightGradient,
    inputs: &[Operand],
    outputs: &[Operand],
    (address, bytes): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (x, dy, dweight) = (&inputs[0], &inputs[1], &outputs[0]);
    let sums_bytes = op.sums_bytes(&dy.ty, Processor::Cuda);
    let workspace = (address + sums_bytes, bytes - sums_bytes);
    let plain = Product {
        rows: dy.ty.shape.last(),
        columns: x.ty.shape.last(),
        inner: x.ty.shape.rows(),
        left: transposed(dy),
        right: matrix(x),
        output: matrix(dweight),
        scale: 1.0,
        added: op.accumulate.then(|| whole(dweight.address)),
        epilogue: Epilogue::None,
        tf32: op.tf32,
        workspace,
    };
    if !op.bias {
        return launcher.product(&plain);
    }
    let dbias = outputs[1].address;
    if dy.ty.dtype == DType::F32 {
        launcher.product(&plain)?;
        return column_sums(dy, dbias, op.accumulate, workspace, launcher);
    }
    // Whoever sums, stores, and the sums are then added or rounded: gradients that are kept and zeroed are those that are
    // not, to the bit, as long as the same algorithm is taken for both.
    let sums = if sums_bytes > 0 { address } else { dbias };
    let sum = |launcher: &mut Launcher| column_sums(dy, sums, false, workspace, launcher);
    if op.gradients == DType::F32 {
        finished(plain, Epilogue::BiasGradient(sums), launcher, sum)?;
    } else {
        // With a product that is stored in 16 bits, the library's sums are, too.
        launcher.product(&plain)?;
        sum(launcher)?;
    }
    if sums_bytes > 0 {
        let features = dy.ty.shape.last();
        let sinks = Sums { dtype: op.gradients, addresses: [dbias, 0] };
        sum_partials(sinks, sums, [1, features, features], op.accumulate, launcher)?;
    }
    Ok(())
}
