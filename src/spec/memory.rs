//! What of a run decides its memory.

use serde::Serialize;

use data::Documents;

use super::model::Model;
use super::optimizer::UpdateGroup;
use super::resolved::{Evaluation, Measure, RunConfig, Task, Train};
use super::strategy::{Allocator, LoadedFrom, Strategy};

/// Runs that are equal here need the same memory, byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryPart {
    pub model: Model,
    pub batch_size: usize,
    /// Where what is live grows with every step, or what was freed is kept: how many steps there are, and the evaluations
    /// between them.
    pub cadence: Option<(Measure, Option<Evaluation>)>,
    pub choices: Choices,
}

/// What decides a run's program beside its graph: runs that are equal here, and whose graphs differ in sizes alone,
/// have programs that differ in sizes alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choices {
    optimizer: Vec<UpdatedAlike>,
    clips: bool,
    evaluates: bool,
    task: Task,
    documents: Documents,
    /// Whether parameters start from a file.
    stored: bool,
    strategy: Strategy,
    /// Of data that is held as a whole.
    tokens: Option<usize>,
}

// Whole structs are taken apart here, so that a new key does not go by unseen.
impl RunConfig {
    pub fn memory_part(&self) -> MemoryPart {
        let RunConfig { model, data: _, train, evaluation, measure, strategy, tokens: _ } = self;
        // What an allocator that keeps freed memory asks for depends on steps and evaluations, too: how many, how often, of
        // how many batches. Its program does not, so that they are no choices.
        let remembers = match strategy.allocator {
            Allocator::Arena | Allocator::Direct => strategy.leak.is_some(),
            Allocator::Caching(_) => true,
        };
        let cadence = remembers.then(|| (measure.clone(), evaluation.clone()));
        MemoryPart { model: model.clone(), batch_size: train.batch_size, cadence, choices: self.choices() }
    }

    pub fn choices(&self) -> Choices {
        let RunConfig { model, data: _, train, evaluation, measure, strategy, tokens } = self;
        let Measure { what, seeds: _, warmup_steps: _, steps: _ } = *measure;
        let Train { batch_size: _, clip_norm, seed: _, shuffle: _, last_batch: _, optimizer, schedule: _ } =
            train;
        Choices {
            optimizer: optimizer.groups().iter().map(update_group).collect(),
            clips: clip_norm.is_some(),
            evaluates: matches!(evaluation, Some(Evaluation { every: _, batches: _ })),
            task: what,
            documents: self.documents(),
            stored: model.weights().is_some(),
            strategy: strategy.clone(),
            tokens: tokens.filter(|_| strategy.loader.source != LoadedFrom::Stream),
        }
    }
}

/// What of a group of parameters has a say in the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct UpdatedAlike {
    named: Option<String>,
    of_matrices: Option<bool>,
    states: Vec<&'static str>,
    iterations: usize,
}

fn update_group(group: &UpdateGroup) -> UpdatedAlike {
    UpdatedAlike {
        named: group.named.map(|named| named.parameters.clone()),
        of_matrices: group.of_matrices,
        states: group.states(),
        iterations: group.rule.iterations(),
    }
}
