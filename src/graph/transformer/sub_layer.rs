//! The input of a sub-layer.

use crate::ScopeId;

/// Attention or the feed-forward layer of a block.
pub(super) struct SubLayer {
    pub(super) scope: ScopeId,
    /// Its input, num[B,T,C].
    pub(super) input: usize,
    /// The residual stream, if the last matmul adds to it.
    pub(super) residual: Option<usize>,
}
