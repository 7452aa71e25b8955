//! A strategy's own keys: a line each in the table here, and a type where it takes more than a count.

mod allocator;
mod forbidden;
mod loader;
mod lora;
mod loss_scale;
mod offload;
mod params;
mod place;
mod precision;
mod quantize;
mod recompute;
mod states;
mod words;

pub use allocator::{Allocator, Caching};
pub use loader::{LoadedAs, LoadedFrom, Loader};
pub use lora::{Base, Lora};
pub use loss_scale::{DynamicLossScale, LossScale};
pub use offload::{Offload, Spill};
pub use params::StoredIn;
pub use place::{Home, Places};
pub use precision::Precision;
pub use quantize::Quantize;
pub use recompute::{BlockPart, Budget, Recompute};
pub use states::{OptimizerState, Rounding};
pub use words::{Attention, EmptyCache, EvaluationPass, Gradients, Init, Leak, Release, Update};

pub use forbidden::{FORBIDDEN, Forbidden, Refusal};

use super::declare::{Optional, Section, section};
use super::kinds::{Count, DIMENSION, Flag, LAYERS, VALUES, word};
use loss_scale::Scale;
use place::LayerHomes;

/// Each slice is operations of its own.
const SLICES: Count = Count(1..=1 << 12);

section! {
    /// The memory choices. Other keys than these are set by `set."train.clip_norm"`.
    pub struct Strategy: Default {
        /// Micro-batches per optimizer step.
        pub accumulate: usize = DIMENSION, default 1;
        /// What parameters are stored in.
        pub params: StoredIn = word(), default StoredIn::Fp32;
        /// Of parameters in 16 bits: whether the optimizer keeps a copy in fp32, which it updates and they are rounded from.
        pub master_weights: bool = Flag, default true;
        /// As parameters are, or fp32.
        pub gradient_dtype: StoredIn = word(), default StoredIn::of_gradients(params);
        /// What blocks add to, and its gradient: as parameters are, or fp32.
        pub residual: StoredIn = word(), default StoredIn::of_residual(params, master_weights);
        pub precision: Precision = word(), default Precision::of(params);
        /// With fp16 alone.
        pub loss_scale: Option<LossScale> = Optional(Scale), default LossScale::unless_said(precision);
        pub optimizer_state: OptimizerState = word(), default OptimizerState::Fp32;
        /// Of which tensors optimizer states are quantized.
        pub quantize: Quantize = quantize::QUANTIZE, default Quantize::default();
        /// Of what is stored in 16 bits.
        pub rounding: Rounding = word(), default Rounding::Nearest;
        pub recompute: Recompute = recompute::RecomputeParser, default Recompute::None;
        /// Layers that are not trained. Of a run that is planned, each scope by its name.
        pub freeze: Vec<String> = LAYERS, default Vec::new();
        /// Low-rank factors that are trained beside a base that is not.
        pub lora: Option<Lora> = Optional(lora::LORA), default None;
        /// Layers that are computed elsewhere than on the device. Of a run that is planned, each scope by its name.
        pub place: Places = LayerHomes, default Places::new();
        /// Whether attention stores its scores.
        pub attention: Attention = word(), default Attention::Fused;
        /// Slices of rows that logits and their gradient are computed in, one after the other, at the most.
        pub loss_chunks: usize = SLICES, default 1;
        pub release: Release = word(), default Release::Eager;
        /// Values that something forgotten still refers to until the section ends. Of a run that is planned, each by its full name.
        pub keep: Vec<String> = VALUES, default Vec::new();
        pub leak: Option<Leak> = Optional(word()), default None;
        pub gradients: Gradients = word(), default Gradients::Free;
        pub update: Update = word(), default Update::AfterBackward;
        pub allocator: Allocator = allocator::WordOrCaching, default Allocator::Arena;
        pub empty_cache: EmptyCache = word(), default EmptyCache::Never;
        pub evaluation_pass: EvaluationPass = word(), default EvaluationPass::NoGrad;
        pub init: Init = word(), default Init::Device;
        /// What waits in the host's memory while the device has no use for it.
        pub offload: Offload = offload::OFFLOAD, default Offload::default();
        /// How batches come to the device.
        pub loader: Loader = loader::LOADER, default Loader::default();
        /// Whether stretches of the step are captured and replayed as CUDA graphs.
        pub graph: bool = Flag, default false;
    }
}

pub const STRATEGY_KEYS: &[&str] = Strategy::KEYS;

/// Keys that the experiment file has words for, but not this version.
pub(super) const LATER_KEYS: &[&str] = &["parallel"];
