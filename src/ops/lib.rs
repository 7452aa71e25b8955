//! The operations of a training step: coarse-grained, over typed values.
//!
//! Each operation declares its shapes, cost, aliasing and gradient in one place. The devices' kernels implement it.
//! This crate contains neither models nor strategies.
//!
//! Shapes: B batch, T sequence, N = B*T rows, C channels, H query heads, G key and value heads, D channels per head, V
//! vocabulary, F width of a feed-forward layer, K and M input and output features of a linear layer, E experts. Images are
//! [B,H,W,C], channels last, with H height and W width; a window's outputs are [B,OH,OW,C]. All tensors are row-major.
//!
//! Matmuls run in f32, bf16 or f16. `num` in a description stands for one of these types, the same one for all operands
//! of the operation. Norms, softmax, losses and all sums are computed in f32 or better in every case.

mod activation;
mod attention;
mod avg_pool;
mod batch_norm;
mod bucket;
mod cast;
mod cast_ids;
mod cast_pixels;
mod checks;
mod columns;
mod conv2d;
mod cross_entropy;
mod dispatch;
mod dropout;
mod elementwise;
mod elementwise_loss;
mod embedding;
mod expert_linear;
mod gather_samples;
mod gather_tokens;
mod global_norm;
mod group_norm;
mod initialise;
mod layer_norm;
mod linear;
mod loss;
mod loss_scale;
mod materialized_attention;
mod max_pool;
mod positions;
mod qk_norm;
mod quantize;
mod rms_norm;
mod rotary;
mod route;
mod softmax;
mod storage;
mod transpose;
mod types;
mod update;
mod update_format;
mod window;

pub use activation::{Activate, Activation, ActivationBackward, ActivationDefinition, Gated, GatedBackward};
pub use attention::{Attention, AttentionBackward, AttentionConfig, Heads};
pub use avg_pool::{AvgPool, AvgPoolBackward};
pub use batch_norm::{BatchNorm, BatchNormBackward, BatchNormMode};
pub use bucket::{Member, Members, StackedRows, lay_out};
pub use cast::Cast;
pub use cast_ids::CastIds;
pub use cast_pixels::{CastPixels, PixelScale};
pub use checks::TypeError;
pub use columns::{AddColumns, ColumnPlace, TakeColumns};
pub use conv2d::{Conv2d, Conv2dInputGradient, Conv2dWeightGradient, ConvWorkspace, Convolution, Patches};
pub use cross_entropy::CrossEntropy;
pub use dispatch::{Combine, CombineBackward, Dispatch, DispatchBackward};
pub use dropout::{Dropout, DropoutMask};
pub use elementwise::{Add, Scale};
pub use elementwise_loss::{ElementwiseLoss, LossFunction};
pub use embedding::{Embedding, EmbeddingBackward};
pub use expert_linear::{ExpertLinear, ExpertLinearInputGradient, ExpertLinearWeightGradient};
pub use gather_samples::GatherSamples;
pub use gather_tokens::GatherTokens;
pub use global_norm::GlobalNorm;
pub use group_norm::{GroupNorm, GroupNormBackward};
pub use initialise::{Deviation, Fill, LoadParameter, Normal};
pub use layer_norm::{LayerNorm, LayerNormBackward};
pub use linear::{Linear, LinearInputGradient, LinearWeightGradient};
pub use loss::{Loss, LossTerms};
pub use loss_scale::{LossScale, SCALE, STEP_COUNTS_LEN, StepCounts};
pub use materialized_attention::{MaterializedAttention, MaterializedAttentionBackward};
pub use max_pool::{MaxPool, MaxPoolBackward};
pub use positions::{AddPositions, PositionsGradient};
pub use qk_norm::{QkNorm, QkNormBackward, QkNormHeads};
pub use quantize::{Dequantize, Quantize};
pub use rms_norm::{RmsNorm, RmsNormBackward};
pub use rotary::{Frequencies, Rotary, Scaling};
pub use route::{MOST_PAIRS, Route, RouteBackward};
pub use softmax::{Softmax, SoftmaxBackward};
pub use storage::{CodeFormat, NF4, NF4_BLOCK, Scales, Storage};
pub use transpose::Transpose;
pub use types::{DType, RowSlice, Shape, TensorType};
pub use update::{
    Adafactor, Adam, Adjust, Elementwise, Factored, GradientTerms, Lion, Moment, Muon, MuonScratch,
    OptimizerStep, Rule, Sgd, State, StateGranularity, UpdateRule,
};
pub use update_format::{DynamicMap, QUANTIZED_BLOCK, Rounding, StateFormat, UpdateFormat, WeightFormat};
pub use window::Window;

use checks::{expect_f32_or, expect_float, expect_inputs, expect_type};

/// Identifies a value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The kernel library that runs: scratch memory differs between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    Cpu,
    Cuda,
}

/// Bounds of a kernel's scratch memory. They come from the target, so that a plan for another machine is as exact as a
/// plan for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceLimits {
    pub processor: Processor,
    /// Threads per operation.
    pub threads: usize,
    /// Bytes per thread that a matmul may use to pack its operands.
    pub product_bytes_per_thread: u64,
}

impl WorkspaceLimits {
    /// Scratch bytes of an operation: `elements_per_thread` f32 elements for each CPU thread, or `on_card` bytes on a
    /// GPU.
    pub fn scratch(&self, elements_per_thread: usize, on_card: u64) -> u64 {
        match self.processor {
            Processor::Cpu => (self.threads * elements_per_thread * size_of::<f32>()) as u64,
            Processor::Cuda => on_card,
        }
    }
}

/// An operation's operands at the sizes of another run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<'a> {
    pub inputs: &'a [TensorType],
    pub outputs: &'a [TensorType],
    /// The layouts of those inputs that are buckets, in input order.
    pub buckets: &'a [Members],
}

/// The dtype class that an operation requires of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The matmul dtype: activations, weights, biases.
    Matrix,
    /// The accumulator dtype: a sum of many terms, such as the residual stream, or a term added to it.
    Accumulator,
    /// f32.
    Full,
    /// Any dtype.
    Any,
}

/// The dtypes of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    pub matrices: DType,
    /// The dtype of sums of many terms, such as the residual stream.
    pub accumulators: DType,
    /// Whether matmuls may round f32 operands to 11 bits of significand (TF32).
    pub tf32: bool,
}

/// Operation kinds that a recompute policy can select (`recompute = { save = [..] }`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    Linear,
    Attention,
    Norm,
}

/// The declarations of an operation.
pub trait Operation {
    /// The name that `explain` prints.
    fn name(&self) -> &'static str;

    /// Output types for these input types.
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError>;

    /// Floating-point operations; a multiply-add counts as two. Only matmuls are counted, as is customary.
    fn flops(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        0
    }

    /// The minimum of bytes moved: each input read once and each output written once. Repeated reads and scratch memory
    /// are not counted.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        inputs.iter().chain(outputs).map(TensorType::bytes).sum()
    }

    /// Scratch bytes that the kernel needs.
    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], _limits: &WorkspaceLimits) -> u64 {
        0
    }

    /// The kind by which a recompute policy selects it.
    fn kind(&self) -> Option<OpKind> {
        None
    }

    /// Its loss interface, if it computes a loss.
    fn as_loss(&self) -> Option<&dyn Loss> {
        None
    }

    /// Its optimizer step, if it is one.
    fn as_update(&self) -> Option<&OptimizerStep> {
        None
    }

    /// Whether all its outputs are zeros.
    fn is_zeros(&self) -> bool {
        false
    }

    /// The site of its random numbers, if it draws any.
    fn random_site(&self) -> Option<u32> {
        None
    }

    /// Its dropout, if it has any. Recomputation and backward repeat the same draws.
    fn drops(&self) -> Option<DropoutMask> {
        None
    }

    /// The site of the parameter that it loads from a file, if it loads one. The engine runs such an operation, not the
    /// device.
    fn stored_site(&self) -> Option<u32> {
        None
    }

    /// The inputs that it processes row by row, if row `i` of every output depends only on row `i` of these inputs. The
    /// operation can then run on a slice of rows.
    fn rowwise(&self) -> Option<&'static [usize]> {
        None
    }

    /// The dtype class of an input.
    fn operand(&self, _input: usize) -> Operand {
        Operand::Any
    }

    /// Whether it gathers rows of an input by index, as an embedding does. Each sample then reads only a few rows.
    fn looks_up(&self, _input: usize) -> bool {
        false
    }

    /// Sets the matmul precision and the output dtype to those of the forward pass that contains the operation.
    fn set_arithmetic(&mut self, _arithmetic: Arithmetic) {}

    /// Whether its operands may start at any row of a tensor, as row slices do. Operands of other operations start at
    /// an allocation's alignment.
    fn takes_any_rows(&self) -> bool {
        false
    }

    /// Whether it only casts tensors to another dtype.
    fn is_cast(&self) -> bool {
        false
    }

    /// How many of its `outputs` outputs are only casts of a tensor.
    fn casts(&self, _outputs: usize) -> usize {
        0
    }

    /// Whether it only dequantizes a tensor.
    fn is_dequantization(&self) -> bool {
        false
    }

    /// The fused form that also stores this output in another dtype, as an additional last output. `None` if there is
    /// none.
    fn storing_cast(&self, _output: usize, _to: DType, _inputs: &[TensorType]) -> Option<Op> {
        None
    }

    /// The fused form that also multiplies output 0 by the derivative of an activation. The activation's saved value
    /// becomes an additional last input. `None` if there is none.
    fn through_slope(&self, _activation: Activation) -> Option<Op> {
        None
    }

    /// Required aliases as (output, input): the output is the next version of the input, in the same memory.
    fn updates(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Optional aliases as (output, input): the kernel works in place if the two share memory, and otherwise copies
    /// first. The results are equal.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Updates the dimensions that the operation stores to the sizes of another run.
    fn resize(&mut self, _sizes: &Sizes) {}

    /// Emits the backward operations: from gradients of the outputs to gradients of the inputs.
    fn backward(&self, _tape: &mut dyn Tape) {
        unreachable!("{} has no backward: it is not an operation of a forward pass", self.name())
    }

    /// The form that recomputation in backward uses instead, without side effects. It takes only the first inputs and
    /// writes only the first outputs. `None` if the operation itself is recomputed.
    fn recomputed(&self) -> Option<Op> {
        None
    }

    /// The form that adds to existing parameter gradients (gradient accumulation). Its additional inputs are the
    /// previous versions of its outputs, in the order of `accumulated`.
    fn accumulating(&self) -> Option<Op> {
        None
    }

    /// The outputs that the accumulating form adds to.
    fn accumulated(&self) -> &'static [usize] {
        &[]
    }
}

/// The role of an output of an emitted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRole {
    /// The gradient of this input of the node, including all contributions so far.
    Gradient(usize),
    /// The gradient of this output of the node; it has no other contributions.
    OutputGradient(usize),
    /// Any other value, with the shape of this input of the emitted operation.
    Like(usize),
}

/// The interface between `Operation::backward` and autodiff: reads the differentiated node and collects the emitted
/// operations.
pub trait Tape {
    /// The node's input, or its recomputed copy.
    fn input(&mut self, index: usize) -> ValueId;
    /// The node's output, or its recomputed copy.
    fn output(&mut self, index: usize) -> ValueId;
    /// The type of the node's input.
    fn input_type(&self, index: usize) -> TensorType;
    /// The dtype of parameter gradients.
    fn parameter_gradients(&self) -> DType;
    /// The complete gradient of an output.
    fn output_gradient(&self, index: usize) -> ValueId;
    /// Whether this input requires a gradient: it is a trainable parameter or depends on one.
    fn wants(&self, input: usize) -> bool;
    /// The gradient of this input that its other readers have contributed so far.
    fn partial(&self, input: usize) -> Option<ValueId>;
    /// Emits `op`, whose outputs have these roles, and returns the outputs. An operation with an output
    /// `OutputRole::Gradient` must take the partial gradient of that input among its own inputs.
    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, outputs: &[OutputRole]) -> Vec<ValueId>;
    /// Fuses the derivative of an activation into the matmul that produced the gradient of output 0, if that matmul was
    /// emitted last and reads `saved`, from which the derivative follows. The activation's input is output 1. The caller must not have passed the gradient on.
    fn fuse_slope(&mut self, activation: Activation, saved: ValueId) -> Option<ValueId>;
    /// Uses this value as the gradient of the input, or adds it to the partial gradient if there is one. Does nothing
    /// if the input requires no gradient.
    fn pass(&mut self, input: usize, gradient: ValueId);

    /// Emits `op`, which does not accumulate: its output 0, with the shape of its own input `like`, is added to the
    /// partial gradient of `input`. `others` are the roles of its further outputs.
    fn contribute(&mut self, op: Op, inputs: Vec<ValueId>, input: usize, like: usize, others: &[OutputRole]) {
        let is_partial = self.partial(input).is_some();
        let first = if is_partial { OutputRole::Like(like) } else { OutputRole::Gradient(input) };
        let gradient = self.emit(op, inputs, &[&[first], others].concat())[0];
        if is_partial {
            self.pass(input, gradient);
        }
    }
}

/// All operations, one per line.
macro_rules! operations {
    ($($operation:ident),+ $(,)?) => {
        /// One operation.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $($operation($operation)),+
        }

        impl Op {
            /// The names of all variants.
            pub const NAMES: &[&str] = &[$(stringify!($operation)),+];
        }

        impl std::ops::Deref for Op {
            type Target = dyn Operation;

            #[inline]
            fn deref(&self) -> &(dyn Operation + 'static) {
                match self {
                    $(Op::$operation(op) => op),+
                }
            }
        }

        impl std::ops::DerefMut for Op {
            #[inline]
            fn deref_mut(&mut self) -> &mut (dyn Operation + 'static) {
                match self {
                    $(Op::$operation(op) => op),+
                }
            }
        }
    };
}

operations! {
    Activate,
    ActivationBackward,
    Add,
    AddColumns,
    AddPositions,
    Attention,
    AttentionBackward,
    AvgPool,
    AvgPoolBackward,
    BatchNorm,
    BatchNormBackward,
    Cast,
    Combine,
    CombineBackward,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    CrossEntropy,
    Dequantize,
    Dispatch,
    DispatchBackward,
    Dropout,
    ElementwiseLoss,
    Embedding,
    EmbeddingBackward,
    ExpertLinear,
    ExpertLinearInputGradient,
    ExpertLinearWeightGradient,
    Fill,
    Gated,
    GatedBackward,
    GlobalNorm,
    GroupNorm,
    GroupNormBackward,
    QkNorm,
    QkNormBackward,
    LayerNorm,
    LayerNormBackward,
    Linear,
    LinearInputGradient,
    LinearWeightGradient,
    LossScale,
    MaterializedAttention,
    MaterializedAttentionBackward,
    MaxPool,
    MaxPoolBackward,
    Normal,
    PositionsGradient,
    Quantize,
    RmsNorm,
    RmsNormBackward,
    Rotary,
    Route,
    RouteBackward,
    Scale,
    Softmax,
    SoftmaxBackward,
    TakeColumns,
    Transpose,
    LoadParameter,
    GatherSamples,
    GatherTokens,
    OptimizerStep,
    CastIds,
    CastPixels,
}
