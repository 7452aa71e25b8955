//! The keys of a strategy: one line each in the table below. A key that takes more than a number has its own file.

mod allocator;
mod conflicts;
mod keywords;
mod loader;
mod lora;
mod loss_scale;
mod offload;
mod parallel;
mod params;
mod place;
mod precision;
mod quantize;
mod rank_conflicts;
mod recompute;
mod states;

pub use allocator::{Allocator, Caching};
pub use keywords::{Attention, EmptyCache, EvaluationPass, Gradients, Init, Leak, Release, Update};
pub use loader::{DataResidence, IdDtype, InputDtype, Loader};
pub use lora::{Lora, LoraBase};
pub use loss_scale::{DynamicLossScale, LossScale};
pub use offload::{ActivationOffload, Offload};
pub use parallel::{Parallel, Reduce, Shard};
pub use params::StorageDtype;
pub use place::{LayerDevice, LayerPlacement};
pub use precision::Precision;
pub use quantize::Quantize;
pub use recompute::{BlockPart, Budget, Recompute};
pub use states::{OptimizerState, Rounding};

pub use conflicts::{Conflict, ConflictMessage, conflicts};
pub use rank_conflicts::CONFLICTS as RANK_CONFLICTS;

use crate::reader::declare::{KeyTable, Optional, key_table};
use crate::reader::parsers::{Boolean, DIMENSION, LAYERS, SizeWithUnit, UsizeRange, VALUES, keyword};
use base::units::Bytes;
use loss_scale::LossScaleCodec;
use place::LayerPlacesCodec;

/// Each slice adds its own operations to the program.
const SLICES: UsizeRange = UsizeRange(1..=1 << 12);

key_table! {
    /// The memory choices. A strategy changes keys of other tables with `set`, as in `set."train.clip_norm" = 1.0`.
    pub struct Strategy: Default {
        /// Micro-batches per optimizer step (gradient accumulation). `train.batch_size` is split among them; the last
        /// one may be smaller.
        pub accumulate: usize = DIMENSION, default 1;
        /// Storage dtype of the parameters, as `model.to(torch.bfloat16)` changes it.
        pub params: StorageDtype = keyword(), default StorageDtype::Fp32;
        /// Whether the optimizer updates an fp32 copy of the parameters and rounds them from it. Only with 16-bit
        /// `params`.
        pub master_weights: bool = Boolean, default true;
        /// Storage dtype of the gradients: that of `params`, or fp32.
        pub gradient_dtype: StorageDtype = keyword(), default StorageDtype::default_for_gradients(params);
        /// Dtype of the residual stream and its gradient: that of `params`, or fp32.
        pub residual: StorageDtype = keyword(), default StorageDtype::default_for_residual(params, master_weights);
        /// Dtype of matmul operands and of the activations saved for backward; norms, softmax, losses and sums stay
        /// fp32. PyTorch: `torch.autocast` for bf16 and fp16, `torch.backends.cuda.matmul.allow_tf32` for tf32.
        pub precision: Precision = keyword(), default Precision::default_for(params);
        /// Factor that multiplies the loss so that fp16 gradients do not underflow (PyTorch: `GradScaler`). Only with
        /// `precision = "fp16"`.
        pub loss_scale: Option<LossScale> = Optional(LossScaleCodec), default LossScale::default_for(precision);
        /// Storage dtype of optimizer states; updates are computed in fp32. "8bit": block-wise quantization, as
        /// bitsandbytes does it.
        pub optimizer_state: OptimizerState = keyword(), default OptimizerState::Fp32;
        /// Tensors whose optimizer states are quantized. Only with `optimizer_state = "8bit"`.
        pub quantize: Quantize = quantize::QUANTIZE, default Quantize::default();
        /// Rounding of the parameters and optimizer states that an update stores in 16 bits. "stochastic" only with
        /// `optimizer_state = "bf16"`, or with 16-bit `params` and `master_weights = false`.
        pub rounding: Rounding = keyword(), default Rounding::Nearest;
        /// Activations that backward recomputes instead of keeping them (activation checkpointing,
        /// `torch.utils.checkpoint`).
        pub recompute: Recompute = recompute::RecomputeCodec, default Recompute::None;
        /// Layers that are not trained (`requires_grad_(False)`), by name or pattern. A planned run lists every
        /// matching scope.
        pub freeze: Vec<String> = LAYERS, default Vec::new();
        /// Low-rank adaptation: train low-rank factors beside a frozen base model.
        pub lora: Option<Lora> = Optional(lora::LORA), default None;
        /// Where layers are computed, by name or pattern: "device" or "host". A planned run lists every matching scope.
        pub place: LayerPlacement = LayerPlacesCodec, default LayerPlacement::new();
        /// "fused": attention never stores the T x T scores (FlashAttention); "materialized": it stores scores and
        /// softmax.
        pub attention: Attention = keyword(), default Attention::Fused;
        /// Largest number of row slices in which logits, loss and logit gradient are computed one after the other.
        pub loss_chunks: usize = SLICES, default 1;
        /// Largest slice of patches that a convolution gathers for a matmul (im2col). Smaller slices need less scratch memory
        /// and more matmuls.
        pub conv_workspace: Bytes = SizeWithUnit, default Bytes(16 << 20);
        /// When memory that is no longer needed is freed: after the last use, or at the end of the layer or the
        /// section.
        pub release: Release = keyword(), default Release::Eager;
        /// Values of the forward pass that stay alive until the section ends, as a forgotten reference would keep them.
        /// A planned run lists their full names.
        pub keep: Vec<String> = VALUES, default Vec::new();
        /// A mistake in a training loop, by the memory that each step never frees. "loss": losses kept after `backward()`,
        /// without `.item()`. "logits": kept outputs. "graph": losses kept after `backward(retain_graph=True)`, or
        /// without `backward()`.
        pub leak: Option<Leak> = Optional(keyword()), default None;
        /// Gradients between steps: "free" is `zero_grad(set_to_none=True)`, "zero" is `zero_grad(set_to_none=False)`.
        pub gradients: Gradients = keyword(), default Gradients::Free;
        /// When gradients are applied: after backward, or each layer's in backward as soon as it is complete (PyTorch:
        /// `register_post_accumulate_grad_hook`). "in_backward" excludes clipping, loss scale, accumulation and
        /// `gradients = "zero"`.
        pub update: Update = keyword(), default Update::AfterBackward;
        /// Where memory comes from: one planned arena, one request per value, or a caching allocator like PyTorch's.
        pub allocator: Allocator = allocator::AllocatorCodec, default Allocator::Arena;
        /// When the caching allocator returns its unused segments to the system (`torch.cuda.empty_cache`). Only with
        /// `allocator = "caching"`.
        pub empty_cache: EmptyCache = keyword(), default EmptyCache::Never;
        /// Whether evaluation keeps the values that a backward pass would need; "no_grad" is `torch.no_grad`.
        pub evaluation_pass: EvaluationPass = keyword(), default EvaluationPass::NoGrad;
        /// Where and when parameters are created: on the device, on the host before a copy (`model.to("cuda")`), or
        /// layer by layer at first use. Affects start-up and the first step only.
        pub init: Init = keyword(), default Init::Device;
        /// Data that stays in host memory while the device does not use it (CPU offload).
        pub offload: Offload = offload::OFFLOAD, default Offload::default();
        /// Several devices that train one model: `data` ranks, each with its share of the samples; `shard` divides more.
        pub parallel: Parallel = parallel::PARALLEL, default Parallel::default();
        /// How batches are assembled and transferred to the device (PyTorch: `DataLoader`).
        pub loader: Loader = loader::LOADER, default Loader::default();
        /// Dtype of inputs that are numbers (those of `model.sequential`) where `loader` keeps and transfers them; the device
        /// casts them to fp32. "u8": pixels as they are stored, scaled and normalised on the device.
        pub input_dtype: InputDtype = keyword(), default InputDtype::Fp32;
        /// Whether static segments of the step are captured once and replayed as CUDA graphs (`torch.cuda.CUDAGraph`).
        /// Only with `allocator = "arena"`.
        pub graph: bool = Boolean, default false;
    }
}

pub const STRATEGY_KEYS: &[&str] = Strategy::KEYS;
