//! The forward passes of an optimizer step: over a micro-batch, and over the last one where that is smaller.

use super::{Graph, build_on};
use crate::spec::{Attention, RunConfig};

/// Which of a step's micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatch {
    Full,
    /// The last, if it has fewer samples than the others.
    Tail,
}

/// A model's forward pass over each of the micro-batches that a step has: the same but for sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Graphs {
    pub full: Graph,
    pub tail: Option<Graph>,
}

impl Graphs {
    /// Those of a run.
    pub fn of(config: &RunConfig) -> Graphs {
        Graphs::new(config, |samples| {
            let mut graph = build_on(&config.model, config.data.documents(), samples);
            if config.strategy.attention == Attention::Materialized {
                graph.materialize_attention();
            }
            graph.freeze(&config.strategy.freeze);
            if let Some(lora) = &config.strategy.lora {
                graph.adapt(lora, config.strategy.params);
            }
            if !config.trains() {
                graph.freeze_all();
            }
            graph
        })
    }

    /// Those of a run, were its model another.
    pub fn new(config: &RunConfig, forward: impl Fn(usize) -> Graph) -> Graphs {
        Graphs { full: forward(config.micro_batch()), tail: config.tail().map(forward) }
    }

    /// Panics if there is no such micro-batch.
    pub fn get(&self, micro_batch: MicroBatch) -> &Graph {
        match micro_batch {
            MicroBatch::Full => &self.full,
            MicroBatch::Tail => self.tail.as_ref().expect("there is a smaller micro-batch"),
        }
    }

    /// Whether the two are the same at all sizes, if one is given those of the other.
    pub fn same_structure(&self, other: &Graphs) -> bool {
        self.full.same_structure(&other.full) && self.tail.is_some() == other.tail.is_some()
    }
}
