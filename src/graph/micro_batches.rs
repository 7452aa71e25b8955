//! The forward passes of a run: over a micro-batch, over the smaller last micro-batch of a step, and those of an
//! evaluation.

use super::{Graph, build_on};
use spec::{Attention, RunConfig};

/// A micro-batch of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatch {
    Full,
    /// The last micro-batch, if it has fewer samples.
    Tail,
}

/// Identifies a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub micro_batch: MicroBatch,
    /// Whether the pass belongs to an evaluation only.
    pub evaluated: bool,
}

impl Pass {
    /// The training pass over a full micro-batch.
    pub const FULL: Pass = Pass { micro_batch: MicroBatch::Full, evaluated: false };
    /// The pass of an evaluation over a full micro-batch, if it differs.
    pub const EVALUATED: Pass = Pass { micro_batch: MicroBatch::Full, evaluated: true };
}

/// A model's forward passes over the micro-batches of a run; they differ only in sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Graphs {
    pub full: Graph,
    pub tail: Option<Graph>,
    /// The passes of an evaluation, if they differ: for a model with dropout or batch norm, or with a batch size of their
    /// own. Their parameters are the same, in the same order.
    pub evaluated: Option<Box<Graphs>>,
}

impl Graphs {
    /// The passes of a run.
    pub fn of(config: &RunConfig) -> Graphs {
        let evaluated = config.evaluates_differently().then(|| config.evaluated());
        let build_graphs = |config: &RunConfig| Graphs::new(config, |samples| forward(config, samples));
        let own_batch = |samples: usize| {
            let config = evaluated.as_ref().unwrap_or(config);
            Graphs { full: forward(config, samples), tail: None, evaluated: None }
        };
        let own_batch = config.evaluation_batch().map(own_batch);
        let graphs = match &evaluated {
            None => build_graphs(config),
            Some(evaluated) if !config.trains() => build_graphs(evaluated),
            Some(evaluated) => {
                let needs = config.evaluation.is_some() && own_batch.is_none();
                let evaluated = needs.then(|| Box::new(build_graphs(evaluated)));
                Graphs { evaluated, ..build_graphs(config) }
            }
        };
        Graphs { evaluated: own_batch.map(Box::new).or(graphs.evaluated), ..graphs }
    }

    /// The training passes of a run, with graphs built by `forward`.
    pub fn new(config: &RunConfig, forward: impl Fn(usize) -> Graph) -> Graphs {
        let tail = config.tail().map(&forward);
        Graphs { full: forward(config.micro_batch()), tail, evaluated: None }
    }

    /// The pass for this micro-batch in training or evaluation.
    pub fn pass(&self, micro_batch: MicroBatch, is_evaluation: bool) -> Pass {
        Pass { micro_batch, evaluated: is_evaluation && self.evaluated.is_some() }
    }

    /// The graph of a pass. Panics if the run has no such pass.
    pub fn get(&self, Pass { micro_batch, evaluated }: Pass) -> &Graph {
        let graphs = if evaluated { self.evaluated.as_ref().expect("evaluation passes exist") } else { self };
        match micro_batch {
            MicroBatch::Full => &graphs.full,
            MicroBatch::Tail => graphs.tail.as_ref().expect("a tail micro-batch exists"),
        }
    }

    /// Whether the two differ only in sizes.
    pub fn same_structure(&self, other: &Graphs) -> bool {
        let evaluated = match (&self.evaluated, &other.evaluated) {
            (Some(evaluated), Some(other)) => evaluated.same_structure(other),
            (evaluated, other) => evaluated.is_none() && other.is_none(),
        };
        self.full.same_structure(&other.full) && self.tail.is_some() == other.tail.is_some() && evaluated
    }
}

/// The forward pass over `samples` samples, with the run's strategy applied. Inference freezes everything.
fn forward(config: &RunConfig, samples: usize) -> Graph {
    let mut graph = forward_pass(config, samples);
    if !config.trains() {
        graph.freeze_all();
    }
    graph
}

/// The forward pass over `samples` samples, with the run's strategy applied. If lengths vary, the samples have the length
/// of the longest.
pub fn forward_pass(config: &RunConfig, samples: usize) -> Graph {
    let mut graph = build_on(&config.model, &config.sample(), samples);
    graph.slice_patches(config.strategy.conv_workspace.0);
    if config.strategy.attention == Attention::Materialized {
        graph.materialize_attention();
    }
    graph.freeze(&config.strategy.freeze);
    if let Some(lora) = &config.strategy.lora {
        graph.adapt(&config.model, lora, config.strategy.params);
    }
    graph
}
