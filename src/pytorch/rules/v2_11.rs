//! PyTorch 2.11.0 with CUDA 13.0.

use super::{EmbeddingScratch, NormScratch, Rules, Workspaces, all_bits, padded_tiles};
use crate::card::Card;
use spec::TorchVersion;

pub(super) const RULES: Rules = Rules {
    version: TorchVersion::V2_11,
    workspaces: Workspaces::Kept,
    oldest_capability: (7, 5),
    newest_capability: (12, 0),
    libraries: true,
    distributed: false,
    expandable_segments: true,
    flash_state_on_card: true,
    efficient_state_on_card: false,
    efficient_groups: false,
    copies_gradients_of_full_slices: false,
    hooks_hold_gradients: false,
    adds_matrices_by_cublaslt: false,
    muon_copies: false,
    layer_norm_parts: true,
    group_norm_by_rows: false,
    linear_returns_views: true,
    norm_scratch: NormScratch::MostChunks,
    embedding_scratch: EmbeddingScratch {
        sorted_bits: all_bits,
        sums_long_runs: true,
        select_tile,
        select: padded_tiles,
        scan: padded_tiles,
    },
};

pub(super) fn select_tile(card: &Card) -> usize {
    match card.capability {
        (9.., _) => 4928,
        (8, 0) => 1792,
        _ => 320,
    }
}
