//! Linear layers: matmuls with epilogues.
//!
//! The library computes the epilogue if it supports it and is faster. Otherwise a separate kernel does, which rounds a
//! 16-bit result once more. Exact f32 also uses kernels, because the accuracy of the library's GELU is undocumented.

use crate::DeviceError;
use crate::cuda::launcher::{Launcher, Operand};
use crate::cuda::matmul::{Added, Epilogue, Matmul, Matrix};
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

/// An addend with scale 1.
pub(super) fn unscaled(address: u64) -> Added {
    Added { address, scale: 1.0 }
}

/// Whether the whole computation is in f32.
fn is_exact(matmul: &Matmul) -> bool {
    matmul.left.dtype == DType::F32 && !matmul.tf32
}

/// Enqueues a matmul and its epilogue: fused by the library, or else by `finish`.
pub(super) fn with_epilogue(
    plain: Matmul,
    epilogue: Epilogue,
    launcher: &mut Launcher,
    finish: impl Fn(&mut Launcher) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    launcher.fused_matmul(&Matmul { epilogue, ..plain }, |launcher| {
        launcher.matmul(&plain)?;
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
    let plain = Matmul {
        rows: x.ty.shape.rows(),
        columns: y.ty.shape.last(),
        inner: x.ty.shape.last(),
        left: matrix(x),
        right: transposed(weight),
        output: matrix(y),
        scale: 1.0,
        added: residual.map(unscaled),
        epilogue: Epilogue::None,
        tf32: op.tf32,
        workspace,
    };
    match (op.activation, bias) {
        (None, None) => launcher.matmul(&plain),
        (None, Some(bias)) => {
            with_epilogue(plain, Epilogue::Bias(bias), launcher, |launcher| add_bias(y, bias, launcher))
        }
        (Some(activation), _) => {
            let before = &outputs[1];
            let separate = |launcher: &mut Launcher| {
                launcher.matmul(&Matmul { output: matrix(before), added: None, ..plain })?;
                activation::finish(activation, [y, before], bias, residual, launcher)
            };
            // For other activations, the library has no epilogue that stores the pre-activation. And it would add the
            // residual before the activation.
            if activation != Activation::GeluTanh || op.residual || is_exact(&plain) {
                return separate(launcher);
            }
            let epilogue = Epilogue::GeluBias { bias, before: before.address };
            launcher.fused_matmul(&Matmul { epilogue, ..plain }, separate)
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
    let plain = Matmul {
        rows: dy.ty.shape.rows(),
        columns: dx.ty.shape.last(),
        inner: dy.ty.shape.last(),
        left: matrix(dy),
        right: matrix(weight),
        output: matrix(dx),
        scale: 1.0,
        added: op.accumulate.then(|| unscaled(inputs[2].address)),
        epilogue: Epilogue::None,
        tf32: op.tf32,
        workspace,
    };
    match op.activation {
        None => launcher.matmul(&plain),
        Some(activation) => {
            let saved = inputs[2 + usize::from(op.accumulate)];
            let finish =
                |launcher: &mut Launcher| activation::backward(activation, &[*dx, saved], outputs, launcher);
            if activation != Activation::GeluTanh || is_exact(&plain) {
                launcher.matmul(&plain)?;
                return finish(launcher);
            }
            with_epilogue(plain, Epilogue::GeluSlope { before: saved.address }, launcher, finish)
        }
    }
}

/// Accumulated gradients are in the outputs' memory.
///
/// For a 16-bit dy, the matmul that reads dy also computes dbias: it sums the exact numbers in f32. For an f32 dy,
/// separate kernels sum: with tf32 it is undocumented whether the library sums dy or its rounded values, and an exact
/// f32 matmul takes so long that another read of dy is negligible.
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
    let plain = Matmul {
        rows: dy.ty.shape.last(),
        columns: x.ty.shape.last(),
        inner: x.ty.shape.rows(),
        left: transposed(dy),
        right: matrix(x),
        output: matrix(dweight),
        scale: 1.0,
        added: op.accumulate.then(|| unscaled(dweight.address)),
        epilogue: Epilogue::None,
        tf32: op.tf32,
        workspace,
    };
    if !op.bias {
        return launcher.matmul(&plain);
    }
    let dbias = outputs[1].address;
    if dy.ty.dtype == DType::F32 {
        launcher.matmul(&plain)?;
        return column_sums(dy, dbias, op.accumulate, workspace, launcher);
    }
    // The sums are stored first, then added or rounded. So gradients that are zeroed and accumulated equal stored ones
    // bit for bit, if both use the same algorithm.
    let sums = if sums_bytes > 0 { address } else { dbias };
    let sum = |launcher: &mut Launcher| column_sums(dy, sums, false, workspace, launcher);
    if op.gradients == DType::F32 {
        with_epilogue(plain, Epilogue::BiasGradient(sums), launcher, sum)?;
    } else {
        // With a 16-bit output, the library would also store the sums in 16 bits.
        launcher.matmul(&plain)?;
        sum(launcher)?;
    }
    if sums_bytes > 0 {
        let features = dy.ty.shape.last();
        let sinks = Sums { dtype: op.gradients, addresses: [dbias, 0] };
        sum_partials(sinks, sums, [1, features, features], op.accumulate, launcher)?;
    }
    Ok(())
}
