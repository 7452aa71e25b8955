//! What differs between versions of PyTorch: a table a version. Found from the requests that each version made under
//! nullcuda.
//!
//! The caching allocator is the same in all: of equal free blocks it takes the one of the oldest segment since 2.15, and that
//! at the lowest address before. If addresses ascend from segment to segment, that is the same block.

mod v2_11;
mod v2_15;
mod v2_6;

use crate::card::Card;
use crate::coverage::{self, NotCovered};
use spec::{
    ActivationOffload, AllocConf, BITSANDBYTES_VERSION, KeywordEnum, Optimizer, RunConfig, Sequential,
    TorchOptions, TorchVersion,
};

/// The rules of a version.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) version: TorchVersion,
    pub(crate) workspaces: Workspaces,
    pub(crate) oldest_capability: (u32, u32),
    pub(crate) newest_capability: (u32, u32),
    /// Whether models of the transformers library are predicted.
    pub(crate) libraries: bool,
    /// Whether `DistributedDataParallel` and `fully_shard` are predicted.
    pub(crate) distributed: bool,
    /// Whether expandable segments are predicted.
    pub(crate) expandable_segments: bool,
    /// Whether FlashAttention saves the state of the random number generator on the card. Otherwise it lies in host memory.
    pub(crate) flash_state_on_card: bool,
    /// Whether memory-efficient attention does so without dropout.
    pub(crate) efficient_state_on_card: bool,
    /// Whether memory-efficient attention takes fewer heads of keys than of queries.
    pub(crate) efficient_groups: bool,
    /// Whether an index `:` is an operation, whose gradient is a copy.
    pub(crate) copies_gradients_of_full_slices: bool,
    /// Whether a gradient that a hook releases lives until the hook returns.
    pub(crate) hooks_hold_gradients: bool,
    /// Whether cuBLASLt computes `addmm` of a contiguous matrix. It computes that of a bias in all versions.
    pub(crate) adds_matrices_by_cublaslt: bool,
    /// Whether Muon copies a bf16 update before it divides it.
    pub(crate) muon_copies: bool,
    /// Whether layer norm sums the gradients of its parameters in parts if there are many rows.
    pub(crate) layer_norm_parts: bool,
    /// Whether group norm has kernels of their own for matrices and for images with channels last.
    pub(crate) group_norm_by_rows: bool,
    /// Whether a linear layer with a bias returns a view of its product of rows. Overwriting a view requests copies in
    /// backward, which are not predicted.
    pub(crate) linear_returns_views: bool,
    pub(crate) norm_scratch: NormScratch,
    pub(crate) embedding_scratch: EmbeddingScratch,
}

impl Rules {
    /// Checks that the version runs on a card.
    pub(crate) fn check(&self, card: &Card) -> Result<(), NotCovered> {
        let (major, minor) = card.capability;
        match (self.oldest_capability..=self.newest_capability).contains(&card.capability) {
            false => Err(NotCovered(format!(
                "compute capability {major}.{minor}, for which PyTorch {} has no code{}",
                self.version.keyword(),
                if (OLDEST..self.oldest_capability).contains(&card.capability) { OLDER } else { "" }
            ))),
            true => Ok(()),
        }
    }

    /// Checks that programs of the libraries were recorded with the version.
    pub(crate) fn check_libraries(
        &self,
        config: &RunConfig,
        options: TorchOptions,
    ) -> Result<(), NotCovered> {
        let is_in_place = config.model.sequential().is_some_and(Sequential::has_activation_in_place);
        if is_in_place && self.linear_returns_views {
            return Err(NotCovered(format!("activations in place with PyTorch {}", self.version.keyword())));
        }
        if coverage::is_distributed(config) && !self.distributed {
            let version = self.version.keyword();
            return Err(NotCovered(format!("several ranks (parallel.data) with PyTorch {version}")));
        }
        let library = match options.program.is_of_library() {
            true => format!("transformers {}", options.transformers.keyword()),
            false if matches!(config.train.optimizer, Optimizer::Adafactor(_) | Optimizer::Muon(_)) => {
                "Adafactor and Muon".to_owned()
            }
            false if config.uses_bitsandbytes(options) => format!("bitsandbytes {BITSANDBYTES_VERSION}"),
            false if config.has_torchao_optimizer(options) => "torchao".to_owned(),
            false if config.strategy.offload.activations != ActivationOffload::Nothing => {
                "offloaded activations".to_owned()
            }
            false if config.model.sequential().is_some() => "layers in a list".to_owned(),
            false => return Ok(()),
        };
        match self.libraries {
            true => Ok(()),
            false => Err(NotCovered(format!("{library} with PyTorch {}", self.version.keyword()))),
        }
    }

    /// Checks that the allocator's settings are those of the rules.
    pub(crate) fn check_settings(&self, conf: AllocConf) -> Result<(), NotCovered> {
        match conf.expandable_segments && !self.expandable_segments {
            true => Err(NotCovered(format!("expandable_segments with PyTorch {}", self.version.keyword()))),
            false => Ok(()),
        }
    }
}

/// The oldest cards that a version has code for, and that version.
const OLDEST: (u32, u32) = (5, 0);
const OLDER: &str = "; torch_version = \"2.6\" in [plan] has";

/// How long workspaces of matrix products live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workspaces {
    /// Each product requests its own.
    Requested,
    /// A thread keeps that of its first product by cuBLAS, and that of its first product by cuBLASLt.
    Kept,
    /// A thread keeps that of cuBLAS. Each product by cuBLASLt requests its own.
    CublasKept,
}

/// Where the kernel for the norms of many tensors (`clip_grad_norm_`) puts its partial sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormScratch {
    /// A sum for each chunk of each tensor, and the address of each tensor's sums.
    Chunks,
    /// As many sums for each tensor as the one with the most chunks has.
    MostChunks,
}

/// Scratch of CUB's algorithms in the gradient of an embedding.
#[derive(Debug)]
pub(crate) struct EmbeddingScratch {
    /// Bits of the ids that the radix sort looks at, by the size of the vocabulary.
    pub(crate) sorted_bits: fn(usize) -> u32,
    /// Whether few long runs of equal ids are summed by thread blocks of their own.
    pub(crate) sums_long_runs: bool,
    /// Elements per tile of the selection of unique ids.
    pub(crate) select_tile: fn(&Card) -> usize,
    /// Bytes for this number of tiles of the selection, and of the scan.
    pub(crate) select: fn(u64) -> u64,
    pub(crate) scan: fn(u64) -> u64,
}

/// CUB aligns its parts.
const ALIGNMENT: u64 = 256;

/// The table of a version.
pub(crate) fn of(version: TorchVersion) -> &'static Rules {
    match version {
        TorchVersion::V2_15 => &v2_15::RULES,
        TorchVersion::V2_11 => &v2_11::RULES,
        TorchVersion::V2_6 => &v2_6::RULES,
    }
}

/// Sixteen bytes for each tile and for 32 more.
fn padded_tiles(tiles: u64) -> u64 {
    (16 * (tiles + 32)).next_multiple_of(ALIGNMENT)
}

/// All bits of an id.
fn all_bits(_vocabulary: usize) -> u32 {
    u64::BITS
}
