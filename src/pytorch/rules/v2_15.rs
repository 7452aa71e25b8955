//! PyTorch 2.15.0 with CUDA 13.2.

use super::{EmbeddingScratch, NormScratch, Rules, Workspaces, padded_tiles};
use spec::TorchVersion;

pub(super) const RULES: Rules = Rules {
    version: TorchVersion::V2_15,
    workspaces: Workspaces::Requested,
    oldest_capability: (7, 5),
    newest_capability: (12, 0),
    libraries: true,
    distributed: true,
    expandable_segments: true,
    flash_state_on_card: true,
    efficient_state_on_card: true,
    efficient_groups: true,
    copies_gradients_of_full_slices: false,
    hooks_hold_gradients: false,
    adds_matrices_by_cublaslt: true,
    muon_copies: true,
    layer_norm_parts: true,
    group_norm_by_rows: true,
    linear_returns_views: false,
    norm_scratch: NormScratch::Chunks,
    embedding_scratch: EmbeddingScratch {
        sorted_bits: |vocabulary| usize::BITS - vocabulary.leading_zeros(),
        sums_long_runs: true,
        select_tile: |card| match card.capability {
            (9.., _) => 4928,
            (8, 0) => 1344,
            _ => 320,
        },
        select: padded_tiles,
        scan: padded_tiles,
    },
};
