//! The vocabulary of a training step: coarse operations over typed values.
//!
//! Each operation says in one place what shapes it takes, what it costs, which memory it may share and how it
//! is differentiated. What it computes is in the device's kernels. Nothing here knows models or strategies.
//!
//! Shapes: B batch, T sequence, N = B*T rows, C channels, H heads of queries, G heads of keys and values, D channels of a
//! head, V vocabulary, F width of a feed-forward layer, K and M the in and out features of a linear layer. Everything is
//! row-major.
//!
//! Matrix work is done on f32, bf16 or f16: where a description says `num`, it is the same one of them for all of
//! an operation's operands. Norms, softmax, losses, and all sums are computed in f32 or better whatever that is.

mod activation;
mod attention;
mod bucket;
mod cast;
mod cast_ids;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod global_norm;
mod initialise;
mod layer_norm;
mod linear;
mod loss;
mod loss_scale;
mod materialized_attention;
mod qk_norm;
mod quantize;
mod rms_norm;
mod rotary;
mod storage;
mod stretch;
mod types;
mod update;
mod update_format;

pub use activation::{Activation, ActivationBackward, Definition, Gated, GatedBackward};
pub use attention::{Attending, Attention, AttentionBackward, Heads};
pub use bucket::{Member, Members, Stacked, lay_out};
pub use cast::Cast;
pub use cast_ids::CastIds;
pub use cross_entropy::CrossEntropy;
pub use dropout::{Dropout, Dropped};
pub use elementwise::{Add, Scale};
pub use embedding::{Embedding, EmbeddingBackward};
pub use global_norm::GlobalNorm;
pub use initialise::{Deviation, Fill, LoadParameter, Normal};
pub use layer_norm::{LayerNorm, LayerNormBackward};
pub use linear::{Linear, LinearInputGradient, LinearWeightGradient};
pub use loss::Loss;
pub use loss_scale::{LossScale, SCALE, STEP_COUNTS_LEN, StepCounts};
pub use materialized_attention::{MaterializedAttention, MaterializedAttentionBackward};
pub use qk_norm::{QkNorm, QkNormBackward, QkNormHeads};
pub use quantize::{Dequantize, Quantize};
pub use rms_norm::{RmsNorm, RmsNormBackward};
pub use rotary::{Frequencies, Rotary, Scaling};
pub use storage::{CodeFormat, NF4, NF4_BLOCK, Scales, Storage};
pub use stretch::Stretch;
pub use types::{DType, Shape, Slice, TensorType};
pub use update::{
    Adafactor, Adam, Adjust, Elementwise, Extent, Factored, GradientTerms, Lion, Moment, Muon, MuonScratch,
    OptimizerStep, Rule, Sgd, State, UpdateRule,
};
pub use update_format::{DynamicMap, QUANTIZED_BLOCK, Rounding, StateFormat, UpdateFormat, WeightFormat};

/// Names a value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whose kernels run: they differ in the scratch memory they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    Cpu,
    Cuda,
}

/// What a device promises about the scratch memory of its kernels: fixed by the target, so that a plan for a
/// machine that is not here is as exact as one for this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceLimits {
    pub processor: Processor,
    /// Threads that work on one operation.
    pub threads: usize,
    /// Bytes that a matrix product may use per thread, for packing its operands.
    pub product_bytes_per_thread: u64,
}

impl WorkspaceLimits {
    /// Bytes of an operation that takes so many f32 elements of each of the CPU's threads, or so many bytes on a card.
    pub fn scratch(&self, elements_per_thread: usize, on_card: u64) -> u64 {
        match self.processor {
            Processor::Cpu => (self.threads * elements_per_thread * size_of::<f32>()) as u64,
            Processor::Cuda => on_card,
        }
    }
}

/// Operands do not fit the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {problem}")]
pub struct TypeError {
    pub operation: &'static str,
    pub problem: String,
}

/// What an operation works on in a run of other sizes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<'a> {
    pub inputs: &'a [TensorType],
    pub outputs: &'a [TensorType],
    /// How tensors lie in those of the inputs that are buckets, in their order.
    pub buckets: &'a [Members],
}

/// What an operation needs of an input's dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Part of matrix work, or of what is computed in the same dtype: activations, weights, biases.
    Matrix,
    /// A sum of many terms, such as a residual stream, or what is added to it.
    Accumulator,
    /// It is computed with in full precision, as f32.
    Full,
    /// It takes what there is.
    Any,
}

/// What a forward pass is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    pub matrices: DType,
    /// What sums of many terms are kept in.
    pub accumulators: DType,
    /// Whether f32 factors may be rounded to 11 bits of significand, as tensor cores take them.
    pub tf32: bool,
}

/// Operations of a forward pass that have a name with people who choose what to keep of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    Linear,
    Attention,
    Norm,
}

/// What every operation declares.
pub trait Operation {
    /// In the field's terms, as `explain` prints it.
    fn name(&self) -> &'static str;

    /// The types of the outputs for inputs of these types.
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError>;

    /// Floating-point operations, a multiply-add counting two. Only matrix work is counted, as is usual.
    fn flops(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        0
    }

    /// Bytes that are moved at the least: every input read once and every output written once, whatever a kernel
    /// reads again. Scratch memory is not counted.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        inputs.iter().chain(outputs).map(TensorType::bytes).sum()
    }

    /// Scratch bytes that the kernel needs while it runs.
    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], _limits: &WorkspaceLimits) -> u64 {
        0
    }

    /// What people call it who choose what to keep of a forward pass.
    fn kind(&self) -> Option<OpKind> {
        None
    }

    /// What it is as a loss, if it computes one.
    fn as_loss(&self) -> Option<&dyn Loss> {
        None
    }

    /// What it is as an optimizer's update, if it is one.
    fn as_update(&self) -> Option<&OptimizerStep> {
        None
    }

    /// Whether all that it makes is zeros.
    fn is_zeros(&self) -> bool {
        false
    }

    /// The site that it draws random numbers for, if it does.
    fn random_site(&self) -> Option<u32> {
        None
    }

    /// What it leaves out by chance, if it does. It may do so again for what is computed again, and for gradients.
    fn drops(&self) -> Option<Dropped> {
        None
    }

    /// The site of the parameter that it reads of a file, if it does. No device runs it.
    fn stored_site(&self) -> Option<u32> {
        None
    }

    /// The inputs that it goes through row by row, if it makes each row of its outputs from the same row of these and from
    /// no other: some rows of these then give those rows of the outputs.
    fn rowwise(&self) -> Option<&'static [usize]> {
        None
    }

    /// How it takes an input.
    fn operand(&self, _input: usize) -> Operand {
        Operand::Any
    }

    /// Whether it looks rows of an input up by their numbers, so that few of them matter to a sample: an embedding's table.
    fn looks_up(&self, _input: usize) -> bool {
        false
    }

    /// Takes on the arithmetic of the pass that it is part of: how it multiplies, or in which dtype it gives what is computed
    /// with next.
    fn set_arithmetic(&mut self, _arithmetic: Arithmetic) {}

    /// Whether its operands may begin at any row of a tensor, as views of rows do. Those of others begin where memory does
    /// that was asked for.
    fn takes_any_rows(&self) -> bool {
        false
    }

    /// Whether it puts tensors into another dtype and does nothing more.
    fn is_cast(&self) -> bool {
        false
    }

    /// How many of so many outputs are a tensor put into another dtype and nothing more.
    fn casts(&self, _outputs: usize) -> usize {
        0
    }

    /// Whether it makes codes the numbers that they stand for and does nothing more.
    fn is_dequantization(&self) -> bool {
        false
    }

    /// The same operation that also stores this output rounded to another dtype, as one more output behind the others,
    /// if it can.
    fn storing_cast(&self, _output: usize, _to: DType, _inputs: &[TensorType]) -> Option<Op> {
        None
    }

    /// The same operation that also takes output 0 through the slope of an activation, whose input is one more of its own
    /// behind the others, if it can.
    fn through_slope(&self, _activation: Activation) -> Option<Op> {
        None
    }

    /// Required aliases, as (output, input): the output is the input's next version, in the same memory.
    fn updates(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Optional aliases, as (output, input): the kernel works in place if the two share memory. Where they do
    /// not, it copies first, so both ways compute the same.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Takes on the sizes of another run: whatever the operation holds itself of its operands' dimensions.
    fn resize(&mut self, _sizes: &Sizes) {}

    /// Emits the operations that turn gradients of the outputs into gradients of the inputs.
    fn backward(&self, _tape: &mut dyn Tape) {
        unreachable!("{} has no backward: it is not part of a forward pass", self.name())
    }

    /// The same operation, adding to gradients of parameters that already hold something. The extra inputs it
    /// takes are the previous versions of its outputs, in the order of `accumulated`.
    fn accumulating(&self) -> Option<Op> {
        None
    }

    /// Outputs that `accumulating` turns into updates of a previous version.
    fn accumulated(&self) -> &'static [usize] {
        &[]
    }
}

/// What an output of an emitted operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emitted {
    /// The new, complete-so-far gradient of this input of the node.
    Gradient(usize),
    /// The gradient of this output of the node, which nothing else contributes to.
    OutputGradient(usize),
    /// A value of its own, shaped like this input of the operation.
    Like(usize),
}

/// Where `Operation::backward` reads the node it differentiates and puts what it emits.
pub trait Tape {
    /// The node's input, or its recomputed stand-in.
    fn input(&mut self, index: usize) -> ValueId;
    /// The node's output, or its recomputed stand-in.
    fn output(&mut self, index: usize) -> ValueId;
    /// The type of the node's input.
    fn input_type(&self, index: usize) -> TensorType;
    /// What gradients of parameters are stored as.
    fn parameter_gradients(&self) -> DType;
    /// The complete gradient of an output.
    fn output_gradient(&self, index: usize) -> ValueId;
    /// Whether this input is trained, or something that it was made from.
    fn wants(&self, input: usize) -> bool;
    /// The gradient that other readers of this input have contributed so far.
    fn partial(&self, input: usize) -> Option<ValueId>;
    /// Emits `op` and says what each of its outputs is. Returns them. What gives an input's gradient has what others
    /// contributed to it so far among its own inputs.
    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, outputs: &[Emitted]) -> Vec<ValueId>;
    /// Lets the product that makes the gradient of output 0, if that is what was emitted last, take it through the
    /// activation too, whose input is output 1. The caller has given that gradient to nobody else.
    fn fuse_slope(&mut self, activation: Activation) -> Option<ValueId>;
    /// Declares that the gradient of this input is this very value, if nothing was contributed before; adds
    /// the two otherwise. Nothing, if the input's gradient is not wanted.
    fn pass(&mut self, input: usize, gradient: ValueId);

    /// Emits `op`, which knows nothing of other contributions to this input's gradient: what it gives, shaped like its own
    /// input `like`, is added to them. Its other outputs follow.
    fn contribute(&mut self, op: Op, inputs: Vec<ValueId>, input: usize, like: usize, others: &[Emitted]) {
        let is_partial = self.partial(input).is_some();
        let first = if is_partial { Emitted::Like(like) } else { Emitted::Gradient(input) };
        let gradient = self.emit(op, inputs, &[&[first], others].concat())[0];
        if is_partial {
            self.pass(input, gradient);
        }
    }
}

/// The vocabulary, one operation a line.
macro_rules! operations {
    ($($operation:ident),+ $(,)?) => {
        /// One operation of the vocabulary.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $($operation($operation)),+
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
    ActivationBackward,
    Add,
    Attention,
    AttentionBackward,
    Cast,
    CrossEntropy,
    Dequantize,
    Dropout,
    Embedding,
    EmbeddingBackward,
    Fill,
    Gated,
    GatedBackward,
    GlobalNorm,
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
    Normal,
    Quantize,
    RmsNorm,
    RmsNormBackward,
    Rotary,
    Scale,
    LoadParameter,
    Stretch,
    OptimizerStep,
    CastIds,
}

/// Fails unless an operation got as many inputs as it takes.
fn expect_inputs(operation: &'static str, inputs: &[TensorType], count: usize) -> Result<(), TypeError> {
    if inputs.len() == count {
        return Ok(());
    }
    Err(TypeError { operation, problem: format!("takes {count} inputs, got {}", inputs.len()) })
}

/// Fails unless an operand has the type that the others call for.
fn expect_type(
    operation: &'static str,
    operand: &str,
    found: &TensorType,
    wanted: TensorType,
) -> Result<(), TypeError> {
    if *found == wanted {
        return Ok(());
    }
    Err(TypeError {
        operation,
        problem: format!("{operand} is {found}, the other operands call for {wanted}"),
    })
}

/// Fails unless an operand is of f32 or of the type that the others call for.
fn expect_f32_or(
    other: DType,
    operation: &'static str,
    operand: &str,
    found: &TensorType,
) -> Result<DType, TypeError> {
    if [DType::F32, other].contains(&found.dtype) {
        return Ok(found.dtype);
    }
    let wanted = if other == DType::F32 { String::new() } else { format!(" or {other}") };
    Err(TypeError { operation, problem: format!("{operand} is {found}, not of {}{wanted}", DType::F32) })
}

/// Fails unless an operand is of a type that matrix work is done on.
fn expect_float(operation: &'static str, operand: &str, found: &TensorType) -> Result<DType, TypeError> {
    if found.dtype.is_float() {
        return Ok(found.dtype);
    }
    Err(TypeError { operation, problem: format!("{operand} is {found}, not numbers") })
}
