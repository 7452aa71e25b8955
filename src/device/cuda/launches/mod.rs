//! Launch code of operations: kernels of `kernels/`, and matmuls.
//!
//! Kernel names, parameters and the work per block are repeated here and must match the sources.

mod activation;
mod adafactor;
mod attention;
mod batch_norm;
mod cast_pixels;
mod column_sums;
mod columns;
mod conv2d;
mod cross_entropy;
mod dropout;
mod elementwise;
mod elementwise_loss;
mod embedding;
mod gather_samples;
mod group_norm;
mod head_norm;
mod initialise;
mod layer_norm;
mod linear;
mod materialized_attention;
mod muon;
mod optimizer;
mod pooling;
mod positions;
mod rms_norm;
mod rotary;
mod sizes;
mod softmax;
mod storage;
mod stretch;
mod tables;
mod widen;

use super::launcher::{Launcher, Operand};
use crate::DeviceError;
use ops::{Op, TypeError};

/// Enqueues an operation with checked operands. The workspace is (address, bytes); (0, 0) if there is none.
///
/// # Errors
/// Sizes beyond a grid's limits, attention heads that are too wide; the driver or the library fails.
pub(super) fn run(
    op: &Op,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    match op {
        Op::Activate(op) => activation::forward(op.activation, inputs, outputs, launcher),
        Op::ActivationBackward(op) => activation::backward(op.activation, inputs, outputs, launcher),
        Op::Add(op) => elementwise::add(op, inputs, outputs, launcher),
        Op::AddColumns(op) => columns::add(op, inputs, outputs, launcher),
        Op::AddPositions(_) => positions::add(inputs, outputs, launcher),
        Op::Attention(op) => attention::forward(op, inputs, outputs, launcher),
        Op::AttentionBackward(op) => attention::backward(op, inputs, outputs, workspace, launcher),
        Op::AvgPool(op) => pooling::average(op, inputs, outputs, launcher),
        Op::AvgPoolBackward(op) => pooling::average_backward(op, inputs, outputs, launcher),
        Op::BatchNorm(op) => batch_norm::forward(op, inputs, outputs, workspace, launcher),
        Op::BatchNormBackward(op) => batch_norm::backward(op, inputs, outputs, workspace, launcher),
        Op::Cast(op) => elementwise::cast(op, inputs, outputs, launcher),
        Op::Combine(_)
        | Op::CombineBackward(_)
        | Op::Dispatch(_)
        | Op::DispatchBackward(_)
        | Op::ExpertLinear(_)
        | Op::ExpertLinearInputGradient(_)
        | Op::ExpertLinearWeightGradient(_)
        | Op::Route(_)
        | Op::RouteBackward(_) => {
            let problem = "CUDA devices do not support experts in this version".to_owned();
            Err(TypeError { operation: op.name(), problem }.into())
        }
        Op::Conv2d(op) => conv2d::forward(op, inputs, outputs, workspace, launcher),
        Op::Conv2dInputGradient(op) => conv2d::input_gradient(op, inputs, outputs, workspace, launcher),
        Op::Conv2dWeightGradient(op) => conv2d::weight_gradient(op, inputs, outputs, workspace, launcher),
        Op::CrossEntropy(op) => cross_entropy::run(op, inputs, outputs, workspace, launcher),
        Op::Dequantize(op) => storage::dequantize(op, inputs, outputs, launcher),
        Op::Dropout(op) => dropout::run(op, inputs, outputs, launcher),
        Op::ElementwiseLoss(op) => elementwise_loss::run(op, inputs, outputs, workspace, launcher),
        Op::Embedding(op) => embedding::forward(op, inputs, outputs, launcher),
        Op::EmbeddingBackward(op) => embedding::backward(op, inputs, outputs, workspace, launcher),
        Op::Fill(op) => initialise::fill(op, outputs, launcher),
        Op::Gated(op) => activation::gated(op, inputs, outputs, launcher),
        Op::GatedBackward(op) => activation::gated_backward(op, inputs, outputs, launcher),
        Op::GlobalNorm(op) => optimizer::global_norm(op, inputs, outputs, workspace, launcher),
        Op::GroupNorm(op) => group_norm::forward(op, inputs, outputs, launcher),
        Op::GroupNormBackward(op) => group_norm::backward(op, inputs, outputs, workspace, launcher),
        Op::QkNorm(op) => head_norm::forward(op, inputs, outputs, launcher),
        Op::QkNormBackward(op) => head_norm::backward(op, inputs, outputs, workspace, launcher),
        Op::LayerNorm(op) => layer_norm::forward(op, inputs, outputs, launcher),
        Op::LayerNormBackward(op) => layer_norm::backward(op, inputs, outputs, workspace, launcher),
        Op::Linear(op) => linear::forward(op, inputs, outputs, workspace, launcher),
        Op::LinearInputGradient(op) => linear::input_gradient(op, inputs, outputs, workspace, launcher),
        Op::LinearWeightGradient(op) => linear::weight_gradient(op, inputs, outputs, workspace, launcher),
        Op::LossScale(op) => optimizer::loss_scale(op, inputs, launcher),
        Op::MaterializedAttention(op) => materialized_attention::forward(op, inputs, outputs, launcher),
        Op::MaterializedAttentionBackward(op) => {
            materialized_attention::backward(op, inputs, outputs, launcher)
        }
        Op::MaxPool(op) => pooling::max(op, inputs, outputs, launcher),
        Op::MaxPoolBackward(op) => pooling::max_backward(op, inputs, outputs, launcher),
        Op::Normal(op) => initialise::normal(op, outputs, launcher),
        Op::PositionsGradient(op) => positions::gradient(op, inputs, outputs, workspace, launcher),
        Op::Quantize(op) => storage::quantize(op, inputs, outputs, workspace, launcher),
        Op::RmsNorm(op) => rms_norm::forward(op, inputs, outputs, launcher),
        Op::RmsNormBackward(op) => rms_norm::backward(op, inputs, outputs, workspace, launcher),
        Op::Rotary(op) => rotary::run(op, inputs, outputs, launcher),
        Op::Scale(op) => elementwise::scale(op, inputs, outputs, launcher),
        Op::Softmax(_) => softmax::forward(inputs, outputs, launcher),
        Op::SoftmaxBackward(_) => softmax::backward(inputs, outputs, launcher),
        Op::TakeColumns(op) => columns::take(op, inputs, outputs, launcher),
        Op::Transpose(op) => conv2d::transpose(op, inputs, outputs, launcher),
        Op::LoadParameter(_) => unreachable!("the engine loads checkpoint tensors"),
        Op::GatherSamples(op) => gather_samples::run(op, inputs, outputs, launcher),
        Op::GatherTokens(op) => stretch::run(op, inputs, outputs, launcher),
        Op::OptimizerStep(op) => optimizer::update(op, inputs, outputs, workspace, launcher),
        Op::CastIds(op) => widen::run(op, inputs, outputs, launcher),
        Op::CastPixels(op) => cast_pixels::run(op, inputs, outputs, launcher),
    }
}
