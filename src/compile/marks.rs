//! What strategies ask of values and layers, before any of it is carried out.

use super::Draft;
use crate::spec::Recompute;

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By scope: whether the layer is computed again in backward instead of kept.
    pub(super) recompute: Vec<bool>,
}

pub(super) fn mark(draft: &mut Draft) {
    let recompute = |block: bool| match draft.config.strategy.recompute {
        Recompute::None => false,
        Recompute::Block => block,
    };
    draft.marks.recompute = draft.program.scopes.iter().map(|scope| recompute(scope.block)).collect();
}
