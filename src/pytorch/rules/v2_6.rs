//! PyTorch 2.6.0 with CUDA 12.4.

use super::v2_11::select_tile;
use super::{ALIGNMENT, EmbeddingScratch, NormScratch, Rules, Workspaces, all_bits};
use spec::TorchVersion;

pub(super) const RULES: Rules = Rules {
    version: TorchVersion::V2_6,
    workspaces: Workspaces::CublasKept,
    oldest_capability: super::OLDEST,
    newest_capability: (9, 0),
    libraries: false,
    distributed: false,
    expandable_segments: false,
    flash_state_on_card: false,
    efficient_state_on_card: false,
    efficient_groups: false,
    copies_gradients_of_full_slices: true,
    hooks_hold_gradients: true,
    adds_matrices_by_cublaslt: false,
    muon_copies: false,
    layer_norm_parts: false,
    group_norm_by_rows: false,
    linear_returns_views: true,
    norm_scratch: NormScratch::MostChunks,
    embedding_scratch: EmbeddingScratch {
        sorted_bits: all_bits,
        sums_long_runs: false,
        select_tile,
        select: |tiles| (8 * tiles).next_multiple_of(ALIGNMENT),
        scan: |tiles| (16 * tiles).next_multiple_of(ALIGNMENT) + ALIGNMENT,
    },
};
