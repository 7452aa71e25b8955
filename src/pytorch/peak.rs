//! What lives at a run's peak.

use graph::forward_pass;
use ops::Op;
use spec::RunConfig;

use crate::sequence::{LiveGroup, Phase, Purpose};

/// The requests that live at a run's peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePeak {
    /// Largest sum first.
    pub groups: Vec<LiveGroup>,
    pub phase: Phase,
    /// Elements of a full micro-batch's logits.
    pub(crate) logits: Option<u64>,
}

/// Live tensors of the size of the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitCopies {
    pub count: usize,
    /// Bytes of an element.
    pub element: u64,
    /// Bytes of all.
    pub total: u64,
}

impl LivePeak {
    /// The live tensors of the size of the logits, by the size of an element, widest first.
    pub fn logit_copies(&self) -> Vec<LogitCopies> {
        let of_size = |element| {
            let bytes = self.logits? * element;
            let same =
                self.groups.iter().filter(|group| group.purpose == Purpose::Loss && group.bytes == bytes);
            let count = same.map(|group| group.count).sum();
            (count > 0).then_some(LogitCopies { count, element, total: count as u64 * bytes })
        };
        [4, 2].into_iter().filter_map(of_size).collect()
    }
}

/// Elements of the logits of a full micro-batch: the input of the loss.
pub(crate) fn logits(config: &RunConfig) -> Option<u64> {
    let graph = forward_pass(config, config.micro_batch());
    let loss = graph.nodes.iter().find(|node| matches!(node.op, Op::CrossEntropy(_)))?;
    Some(graph.values[loss.inputs[0]].ty.shape.elements() as u64)
}
