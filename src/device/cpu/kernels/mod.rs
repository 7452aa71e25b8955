//! The CPU kernels: one for each operation.
//!
//! A kernel is deterministic: its results are bitwise identical for any number of threads, for any addresses, and with
//! or without the optional aliases. Work is divided into chunks that do not depend on the number of threads, and every
//! sum has a fixed order. Results may differ between machines with and without fused multiply-add.

mod activation;
mod attention;
mod avg_pool;
mod batch_norm;
mod bucket_chunks;
mod cast;
mod cast_ids;
mod cast_pixels;
mod channels;
mod columns;
mod conv2d;
mod cross_entropy;
mod dispatch;
mod dropout;
mod elementwise;
mod elementwise_loss;
mod embedding;
mod expert_linear;
mod float;
mod gather_samples;
mod global_norm;
mod group_norm;
mod images;
mod initialise;
mod layer_norm;
mod linear;
mod loss_scale;
mod math;
mod matmul;
mod max_pool;
mod operands;
mod optimizer;
mod philox;
mod positions;
mod qk_norm;
mod quantize;
mod rms_norm;
mod rotary;
mod route;
mod simd;
mod softmax;
mod states;
mod storage;
mod stretch;
mod sum;
#[cfg(test)]
mod tests;
mod thread_pool;
mod transpose;
mod weights;
mod workers;

use ops::Op;

pub use float::{from_f32, to_f32};
use float::{with_f32_or, with_float};
pub(super) use operands::Operand;
use operands::Operands;
pub(super) use sum::sum;
pub(super) use workers::Workers;

/// Workspace of one thread for the packed operands of a matmul, in bytes: the value in this device's target.
pub(super) const PRODUCT_WORKSPACE_PER_THREAD: u64 = matmul::WORKSPACE_PER_THREAD;

/// The smallest workspace of one thread, in bytes, with which every matmul can run.
pub const LEAST_PRODUCT_WORKSPACE_PER_THREAD: u64 = matmul::MIN_WORKSPACE_PER_THREAD;

/// Alignment of operands in bytes.
pub const OPERAND_ALIGNMENT: u64 = 64;

/// Runs `op`.
///
/// # Safety
///
/// The operands have the types that the operation declares. They are valid memory that nothing else uses during the
/// call, aligned to 64 bytes, or only to their elements if the operation takes any rows. Outputs share memory with the
/// inputs that `updates` lists, may share it with those that `may_overwrite` lists, and overlap nothing else. The
/// workspace has at least the size that the operation declares for this number of threads, and is aligned to 64 bytes.
#[allow(unsafe_code)]
pub(super) unsafe fn run(
    op: &Op,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: Option<(*mut u8, usize)>,
    workers: &Workers,
) {
    // SAFETY: guaranteed by the caller.
    let mut operands = unsafe { Operands::new(inputs, outputs) };
    let scratch: &mut [f32] = match workspace {
        None => &mut [],
        // SAFETY: guaranteed by the caller.
        Some((address, bytes)) => unsafe {
            std::slice::from_raw_parts_mut(address.cast(), bytes / size_of::<f32>())
        },
    };
    let dtype = |input: usize| inputs[input].ty.dtype;
    match op {
        Op::Activate(op) => with_float!(dtype(0), T => activation::forward::<T>(op, &mut operands, workers)),
        Op::ActivationBackward(op) => {
            with_float!(dtype(0), T => activation::backward::<T>(op, &mut operands, workers));
        }
        Op::Add(op) => with_float!(dtype(0), T => elementwise::add::<T>(op, &mut operands, workers)),
        Op::AddColumns(op) => with_float!(dtype(0), T => columns::add::<T>(op, &mut operands, workers)),
        Op::AddPositions(_) => with_float!(dtype(0), T => positions::add::<T>(&mut operands, workers)),
        Op::Attention(op) => {
            with_float!(dtype(0), T => attention::forward::<T>(op, &mut operands, scratch, workers));
        }
        Op::AttentionBackward(op) => {
            with_float!(dtype(0), T => attention::backward::<T>(op, &mut operands, scratch, workers));
        }
        Op::AvgPool(op) => with_float!(dtype(0), T => avg_pool::forward::<T>(op, &mut operands, workers)),
        Op::AvgPoolBackward(op) => {
            with_float!(dtype(0), T => avg_pool::backward::<T>(op, &mut operands, workers));
        }
        Op::BatchNorm(op) => {
            with_float!(dtype(0), T => batch_norm::forward::<T>(op, &mut operands, scratch, workers));
        }
        Op::BatchNormBackward(op) => with_float!(dtype(0), T => with_float!(op.gradients, G => {
            batch_norm::backward::<T, G>(op, &mut operands, scratch, workers);
        })),
        Op::Cast(op) => with_float!(op.to, T => cast::run::<T>(&mut operands, inputs.len(), workers)),
        Op::Combine(_) => with_float!(dtype(0), T => dispatch::combine::<T>(&mut operands, workers)),
        Op::CombineBackward(_) => {
            with_float!(dtype(0), T => dispatch::combine_backward::<T>(&mut operands, workers));
        }
        Op::Conv2d(op) => {
            with_float!(dtype(0), T => conv2d::forward::<T>(op, &mut operands, scratch, workers));
        }
        Op::Conv2dInputGradient(op) => {
            with_float!(dtype(0), T => conv2d::input_gradient::<T>(op, &mut operands, scratch, workers));
        }
        Op::Conv2dWeightGradient(op) => {
            with_float!(dtype(0), T => with_f32_or!(T, op.gradients, G => {
                conv2d::weight_gradient::<T, G>(op, &mut operands, scratch, workers);
            }));
        }
        Op::CrossEntropy(op) => {
            with_float!(dtype(0), T => cross_entropy::run::<T>(op, &mut operands, scratch, workers));
        }
        Op::Dequantize(op) => {
            with_float!(op.to, T => storage::dequantize::<T>(op, &mut operands, workers));
        }
        Op::Dispatch(_) => with_float!(dtype(0), T => dispatch::forward::<T>(&mut operands, workers)),
        Op::DispatchBackward(op) => {
            with_float!(dtype(0), T => dispatch::backward::<T>(op, &mut operands, workers));
        }
        Op::Dropout(op) => with_float!(dtype(0), X => with_float!(outputs[0].ty.dtype, Y => {
            dropout::run::<X, Y>(op, &mut operands, workers);
        })),
        Op::ElementwiseLoss(op) => {
            with_float!(dtype(0), T => elementwise_loss::run::<T>(op, &mut operands, scratch, workers));
        }
        Op::Embedding(op) => with_float!(dtype(1), P => {
            with_float!(op.output, X => embedding::forward::<P, X>(op, &mut operands, workers));
        }),
        Op::EmbeddingBackward(op) => with_float!(dtype(1), X => {
            with_float!(op.gradients, G => {
                embedding::backward::<X, G>(op, &mut operands, scratch, workers);
            });
        }),
        Op::ExpertLinear(_) => {
            with_float!(dtype(0), T => expert_linear::forward::<T>(&mut operands, scratch, workers));
        }
        Op::ExpertLinearInputGradient(_) => {
            with_float!(dtype(0), T => expert_linear::input_gradient::<T>(&mut operands, scratch, workers));
        }
        Op::ExpertLinearWeightGradient(op) => {
            with_float!(dtype(0), T => with_f32_or!(T, op.gradients, G => {
                expert_linear::weight_gradient::<T, G>(op, &mut operands, scratch, workers);
            }));
        }
        Op::Fill(op) => initialise::fill(op, &mut operands, workers),
        Op::Gated(op) => with_float!(dtype(0), T => activation::gated::<T>(op, &mut operands, workers)),
        Op::GatedBackward(op) => {
            with_float!(dtype(0), T => activation::gated_backward::<T>(op, &mut operands, workers));
        }
        Op::GlobalNorm(op) => global_norm::run(op, &mut operands, scratch, workers),
        Op::GroupNorm(op) => {
            with_float!(dtype(0), T => group_norm::forward::<T>(op, &mut operands, scratch, workers));
        }
        Op::GroupNormBackward(op) => with_float!(dtype(0), T => with_float!(op.gradients, G => {
            group_norm::backward::<T, G>(op, &mut operands, scratch, workers);
        })),
        Op::QkNorm(op) => with_float!(dtype(0), T => qk_norm::forward::<T>(op, &mut operands, workers)),
        Op::QkNormBackward(op) => with_float!(dtype(0), T => with_f32_or!(T, op.gradients, G => {
            qk_norm::backward::<T, G>(op, &mut operands, scratch, workers);
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
        Op::MaxPool(op) => with_float!(dtype(0), T => max_pool::forward::<T>(op, &mut operands, workers)),
        Op::MaxPoolBackward(op) => {
            with_float!(dtype(0), T => max_pool::backward::<T>(op, &mut operands, workers));
        }
        Op::Normal(op) => {
            with_float!(op.output.dtype, T => initialise::normal::<T>(op, &mut operands, workers));
        }
        Op::PositionsGradient(op) => with_float!(dtype(0), T => with_float!(op.gradients, G => {
            positions::gradient::<T, G>(op, &mut operands, workers);
        })),
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
        Op::Route(op) => with_float!(dtype(0), T => route::forward::<T>(op, &mut operands, workers)),
        Op::RouteBackward(op) => with_float!(dtype(0), T => route::backward::<T>(op, &mut operands, workers)),
        Op::Scale(op) => with_float!(dtype(0), T => elementwise::scale::<T>(op, &mut operands, workers)),
        Op::Softmax(_) => with_float!(dtype(0), T => softmax::forward::<T>(&mut operands, workers)),
        Op::SoftmaxBackward(_) => with_float!(dtype(0), T => softmax::backward::<T>(&mut operands, workers)),
        Op::TakeColumns(op) => with_float!(dtype(0), T => columns::take::<T>(op, &mut operands, workers)),
        Op::Transpose(op) => with_float!(dtype(0), T => transpose::run::<T>(op, &mut operands, workers)),
        Op::LoadParameter(_) => unreachable!("the engine loads checkpoint tensors, not the device"),
        Op::GatherSamples(op) => gather_samples::run(op, &mut operands),
        Op::GatherTokens(op) => stretch::run(op, &mut operands),
        Op::OptimizerStep(op) => optimizer::update(op, &mut operands, scratch, workers),
        Op::CastIds(op) => cast_ids::run(op, &mut operands),
        Op::CastPixels(op) => cast_pixels::run(op, &mut operands, inputs.len() > 1, workers),
    }
}

/// Scratch memory as u32 integers.
fn as_u32(scratch: &mut [f32]) -> &mut [u32] {
    // SAFETY: same size and alignment, and any bits are a valid u32.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), scratch.len())
    }
}

/// Scratch memory as floats of at most 32 bits.
fn as_floats<T: float::Float>(scratch: &mut [f32]) -> &mut [T] {
    let len = size_of_val(scratch) / size_of::<T>();
    // SAFETY: T is not larger than f32 and needs no stricter alignment, and any bits are a valid T.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), len)
    }
}

/// Scratch memory as f64 numbers. Its alignment is at least that of f64.
fn as_f64(scratch: &mut [f32]) -> &mut [f64] {
    let len = scratch.len() / 2;
    // A rank may have no part of a tensor.
    if len == 0 {
        return &mut [];
    }
    assert!(scratch.as_ptr().cast::<f64>().is_aligned(), "scratch memory is aligned to a cache line");
    // SAFETY: aligned, not longer than the scratch memory, and any bits are a valid f64.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), len)
    }
}
