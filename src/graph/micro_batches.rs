//! The forward passes of an optimizer step, over a micro-batch and over the last one where that is smaller; and those of an
//! evaluation.

use super::{Graph, build_on};
use spec::{Attention, Model, RunConfig};

/// Which of a step's micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatch {
    Full,
    /// The last, if it has fewer samples than the others.
    Tail,
}

/// A forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub micro_batch: MicroBatch,
    /// Whether it is one that only an evaluation has.
    pub evaluated: bool,
}

impl Pass {
    /// Over all but a smaller micro-batch of a step.
    pub const FULL: Pass = Pass { micro_batch: MicroBatch::Full, evaluated: false };
}

/// A model's forward pass over each of the micro-batches that a step has: the same but for sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Graphs {
    pub full: Graph,
    pub tail: Option<Graph>,
    /// Those of an evaluation, if they are others: of a model that leaves something to chance while it learns. They have the
    /// same parameters, in the same order.
    pub evaluated: Option<Box<Graphs>>,
}

impl Graphs {
    /// Those of a run.
    pub fn of(config: &RunConfig) -> Graphs {
        let evaluated = config.model.draws().then(|| config.model.evaluated());
        let of_model = |model: &Model| Graphs::new(config, |samples| forward(config, model, samples));
        match evaluated {
            None => of_model(&config.model),
            Some(evaluated) if !config.trains() => of_model(&evaluated),
            Some(evaluated) => {
                let evaluated = config.evaluation.is_some().then(|| Box::new(of_model(&evaluated)));
                Graphs { evaluated, ..of_model(&config.model) }
            }
        }
    }

    /// Those of a run, were its model another.
    pub fn new(config: &RunConfig, forward: impl Fn(usize) -> Graph) -> Graphs {
        let tail = config.tail().map(&forward);
        Graphs { full: forward(config.micro_batch()), tail, evaluated: None }
    }

    /// Which of them is gone through over such a micro-batch.
    pub fn pass(&self, micro_batch: MicroBatch, is_evaluation: bool) -> Pass {
        Pass { micro_batch, evaluated: is_evaluation && self.evaluated.is_some() }
    }

    /// Panics if there is no such pass.
    pub fn get(&self, Pass { micro_batch, evaluated }: Pass) -> &Graph {
        let graphs = if evaluated { self.evaluated.as_ref().expect("it has its own") } else { self };
        match micro_batch {
            MicroBatch::Full => &graphs.full,
            MicroBatch::Tail => graphs.tail.as_ref().expect("there is a smaller micro-batch"),
        }
    }

    /// Whether the two are the same at all sizes, if one is given those of the other.
    pub fn same_structure(&self, other: &Graphs) -> bool {
        let evaluated = match (&self.evaluated, &other.evaluated) {
            (Some(evaluated), Some(other)) => evaluated.same_structure(other),
            (evaluated, other) => evaluated.is_none() && other.is_none(),
        };
        self.full.same_structure(&other.full) && self.tail.is_some() == other.tail.is_some() && evaluated
    }
}

/// A run's forward pass over so many samples, of its model or of what that is where it is evaluated.
fn forward(config: &RunConfig, model: &Model, samples: usize) -> Graph {
    let mut graph = build_on(model, config.documents(), samples);
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
}
