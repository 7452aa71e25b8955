//! What each operation computes, on the processor.
//!
//! A kernel gives the same bits for any number of threads, for any addresses, and whether an optional alias is
//! taken or not: work is cut into pieces that do not depend on the threads, and every element is summed in one
//! fixed order. Results may differ between machines, whose products fuse multiply and add or do not.

mod activation;
mod attention;
mod cast;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod float;
mod global_norm;
mod head_norm;
mod initialise;
mod layer_norm;
mod linear;
mod loss_scale;
mod math;
mod operands;
mod optimizer;
mod philox;
mod product;
mod quantize;
mod rms_norm;
mod rotary;
mod runs;
mod simd;
mod states;
mod storage;
mod stretch;
mod team;
#[cfg(test)]
mod tests;
mod weights;
mod widen;
mod workers;

use ops::Op;

pub use float::{from_f32, to_f32};
use float::{with_f32_or, with_float};
pub(super) use operands::Operand;
use operands::Operands;
pub(super) use workers::Workers;

/// Packing space that one thread uses for a matrix product, in bytes: what the target of this device promises.
pub(super) const PRODUCT_WORKSPACE_PER_THREAD: u64 = product::WORKSPACE_PER_THREAD;

/// The least of it that any matrix product can do with.
pub const LEAST_PRODUCT_WORKSPACE_PER_THREAD: u64 = product::LEAST_WORKSPACE_PER_THREAD;

/// Where operands have to begin, in bytes.
pub const OPERAND_ALIGNMENT: u64 = 64;

/// Runs `op`.
///
/// # Safety
///
/// The operands have the types that the operation declares and are valid memory, aligned to 64 bytes or, where the
/// operation takes any rows, to their elements, that nothing else uses meanwhile. Outputs share memory with the inputs that `updates` names, may share it with those that
/// `may_overwrite` names, and overlap nothing else. The workspace has at least the bytes that the operation
/// declares for as many threads as there are workers, and is aligned alike.
#[allow(unsafe_code)]
pub(super) unsafe fn run(
    op: &Op,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: Option<(*mut u8, usize)>,
    workers: &Workers,
) {
    // SAFETY: by the caller's promise.
    let mut operands = unsafe { Operands::new(inputs, outputs) };
    let scratch: &mut [f32] = match workspace {
        None => &mut [],
        // SAFETY: by the caller's promise.
        Some((address, bytes)) => unsafe {
            std::slice::from_raw_parts_mut(address.cast(), bytes / size_of::<f32>())
        },
    };
    let dtype = |input: usize| inputs[input].ty.dtype;
    match op {
        Op::ActivationBackward(op) => {
            with_float!(dtype(0), T => activation::backward::<T>(op, &mut operands, workers));
        }
        Op::Add(op) => with_float!(dtype(0), T => elementwise::add::<T>(op, &mut operands, workers)),
        Op::Attention(op) => {
            with_float!(dtype(0), T => attention::forward::<T>(op, &mut operands, scratch, workers));
        }
        Op::AttentionBackward(op) => {
            with_float!(dtype(0), T => attention::backward::<T>(op, &mut operands, scratch, workers));
        }
        Op::Cast(op) => with_float!(op.to, T => cast::run::<T>(&mut operands, inputs.len(), workers)),
        Op::CrossEntropy(op) => {
            with_float!(dtype(0), T => cross_entropy::run::<T>(op, &mut operands, scratch, workers));
        }
        Op::Dequantize(op) => {
            with_float!(op.to, T => storage::dequantize::<T>(op, &mut operands, workers));
        }
        Op::Dropout(op) => with_float!(dtype(0), X => with_float!(outputs[0].ty.dtype, Y => {
            dropout::run::<X, Y>(op, &mut operands, workers);
        })),
        Op::Embedding(op) => with_float!(dtype(1), P => {
            with_float!(op.output, X => embedding::forward::<P, X>(op, &mut operands, workers));
        }),
        Op::EmbeddingBackward(op) => with_float!(dtype(1), X => {
            with_float!(op.gradients, G => {
                embedding::backward::<X, G>(op, &mut operands, scratch, workers);
            });
        }),
        Op::Fill(op) => initialise::fill(op, &mut operands, workers),
        Op::Gated(op) => with_float!(dtype(0), T => activation::gated::<T>(op, &mut operands, workers)),
        Op::GatedBackward(op) => {
            with_float!(dtype(0), T => activation::gated_backward::<T>(op, &mut operands, workers));
        }
        Op::GlobalNorm(op) => global_norm::run(op, &mut operands, scratch, workers),
        Op::QkNorm(op) => with_float!(dtype(0), T => head_norm::forward::<T>(op, &mut operands, workers)),
        Op::QkNormBackward(op) => with_float!(dtype(0), T => with_f32_or!(T, op.gradients, G => {
            head_norm::backward::<T, G>(op, &mut operands, scratch, workers);
        })),
        Op::LayerNorm(op) => {
            with_float!(op.output, T => with_f32_or!(T, dtype(0), X => {
                layer_norm::forward::<X, T>(op, &mut operands, workers);
            }));
        }
        Op::LayerNormBackward(op) => {
            with_float!(dtype(0), T => with_f32_or!(T, dtype(1), X => with_float!(op.gradients, G => {
                layer_norm::backward::<T, X, G>(op, &mut operands, scratch, workers);
            })));
        }
        Op::Linear(op) => {
            with_float!(dtype(0), T => linear::forward::<T>(op, &mut operands, scratch, workers));
        }
        Op::LinearInputGradient(op) => {
            with_float!(dtype(0), T => linear::input_gradient::<T>(op, &mut operands, scratch, workers));
        }
        Op::LinearWeightGradient(op) => {
            with_float!(dtype(0), T => with_f32_or!(T, op.gradients, G => {
                linear::weight_gradient::<T, G>(op, &mut operands, scratch, workers);
            }));
        }
        Op::LossScale(op) => loss_scale::run(op, &mut operands),
        Op::MaterializedAttention(op) => with_float!(dtype(0), T => {
            attention::materialized_forward::<T>(op, &mut operands, scratch, workers);
        }),
        Op::MaterializedAttentionBackward(op) => with_float!(dtype(0), T => {
            attention::materialized_backward::<T>(op, &mut operands, scratch, workers);
        }),
        Op::Normal(op) => {
            with_float!(op.output.dtype, T => initialise::normal::<T>(op, &mut operands, workers));
        }
        Op::Quantize(op) => storage::quantize(op, &mut operands, scratch, workers),
        Op::RmsNorm(op) => {
            with_float!(op.output, T => with_f32_or!(T, dtype(0), X => {
                rms_norm::forward::<X, T>(op, &mut operands, workers);
            }));
        }
        Op::RmsNormBackward(op) => {
            with_float!(dtype(0), T => with_f32_or!(T, dtype(1), X => with_float!(op.gradients, G => {
                rms_norm::backward::<T, X, G>(op, &mut operands, scratch, workers);
            })));
        }
        Op::Rotary(op) => with_float!(dtype(0), T => rotary::run::<T>(op, &mut operands, workers)),
        Op::Scale(op) => with_float!(dtype(0), T => elementwise::scale::<T>(op, &mut operands, workers)),
        Op::LoadParameter(_) => unreachable!("no device reads files"),
        Op::Stretch(op) => stretch::run(op, &mut operands),
        Op::OptimizerStep(op) => optimizer::update(op, &mut operands, scratch, workers),
        Op::CastIds(op) => widen::run(op, &mut operands),
    }
}

/// Whole numbers in scratch memory.
fn as_u32(scratch: &mut [f32]) -> &mut [u32] {
    // SAFETY: as large, aligned alike, and any bits are a number.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), scratch.len())
    }
}

/// Numbers of at most 32 bits in scratch memory.
fn as_floats<T: float::Float>(scratch: &mut [f32]) -> &mut [T] {
    let len = size_of_val(scratch) / size_of::<T>();
    // SAFETY: f32s are aligned for these, which are as large or smaller, and any bits are a number.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), len)
    }
}

/// f64 numbers in scratch memory, which is aligned for them.
fn as_f64(scratch: &mut [f32]) -> &mut [f64] {
    let len = scratch.len() / 2;
    assert!(scratch.as_ptr().cast::<f64>().is_aligned(), "scratch memory is aligned to a cache line");
    // SAFETY: aligned, as large, and any bits are a number.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), len)
    }
}
