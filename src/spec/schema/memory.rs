//! The part of a run's configuration that determines its memory.

use std::cmp::Ordering;
use std::sync::Arc;

use data::{PaddedLengths, PartRole};
use ops::PixelScale;

use super::collect::Collect;
use super::model::Model;
use super::optimizer::UpdateGroup;
use super::resolved::{Evaluation, Measure, RunConfig, Task, Train};
use super::strategy::{Allocator, DataResidence, InputDtype, Strategy};

/// Runs with equal keys need the same memory on one target, byte for byte. In sorted order, keys of one model are
/// adjacent.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub struct MemoryKey {
    pub model: Model,
    pub batch_size: usize,
    pub evaluation_batch: Option<usize>,
    /// The numbers of steps and evaluations, if memory depends on them: with a leak, with collected outputs, or with an
    /// allocator that keeps freed memory.
    pub steps: Option<(Measure, Option<Evaluation>)>,
    pub program: ProgramKey,
    /// The padded length of each micro-batch, if they vary.
    pub lengths: Option<Arc<PaddedLengths>>,
    pub all_packed: Option<bool>,
}

/// Configurations contain no NaN.
impl Eq for MemoryKey {}

#[expect(clippy::derive_ord_xor_partial_ord, reason = "without NaN, the derived order is total")]
impl Ord for MemoryKey {
    fn cmp(&self, other: &MemoryKey) -> Ordering {
        self.partial_cmp(other).unwrap_or(Ordering::Equal)
    }
}

/// The part of a run's configuration that, beside its graph, determines its program. If it is equal and the graphs
/// differ only in sizes, the programs differ only in sizes.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub struct ProgramKey {
    optimizer: Vec<UpdateGroupKey>,
    clips: bool,
    evaluation: Option<EvaluationKey>,
    task: Task,
    parts: Vec<PartRole>,
    /// Whether parameters are loaded from a file.
    stored: bool,
    strategy: Strategy,
    /// Number of tokens or samples of data that is held in memory as a whole, and whether the samples are pixels.
    held: Option<(usize, bool)>,
    /// How pixels that are transferred become numbers.
    pixels: Option<PixelScale>,
}

/// Configurations contain no NaN.
impl Eq for ProgramKey {}

#[expect(clippy::derive_ord_xor_partial_ord, reason = "without NaN, the derived order is total")]
impl Ord for ProgramKey {
    fn cmp(&self, other: &ProgramKey) -> Ordering {
        self.partial_cmp(other).unwrap_or(Ordering::Equal)
    }
}

// Structs are destructured here, so that a new key cannot be forgotten.
impl RunConfig {
    pub fn memory_key(&self) -> MemoryKey {
        let RunConfig {
            model,
            data: _,
            train,
            evaluation,
            measure,
            strategy,
            data_len: _,
            lengths,
            all_packed,
        } = self;
        // With a leak, collected outputs, or an allocator that keeps freed memory, memory also depends on the numbers of
        // steps, evaluations and evaluation batches. The program does not, so they are not part of `ProgramKey`.
        let depends_on_steps = match strategy.allocator {
            Allocator::Arena | Allocator::Direct => strategy.leak.is_some() || self.collect().is_some(),
            Allocator::Caching(_) => true,
        };
        let steps = depends_on_steps.then(|| (measure.clone(), evaluation.clone()));
        MemoryKey {
            model: model.clone(),
            batch_size: train.batch_size,
            evaluation_batch: self.evaluation_batch(),
            steps,
            program: self.program_key(),
            lengths: lengths.clone(),
            all_packed: *all_packed,
        }
    }

    pub fn program_key(&self) -> ProgramKey {
        let RunConfig {
            model,
            data,
            train,
            evaluation,
            measure,
            strategy,
            data_len,
            lengths: _,
            all_packed: _,
        } = self;
        let Measure { what, seeds: _, warmup_steps: _, steps: _ } = *measure;
        let Train { batch_size: _, clip_norm, seed: _, shuffle: _, last_batch: _, optimizer, schedule: _ } =
            train;
        ProgramKey {
            optimizer: optimizer.groups().iter().map(update_group).collect(),
            clips: clip_norm.is_some(),
            evaluation: evaluation.as_ref().map(evaluation_key),
            task: what,
            parts: self.sample().parts.iter().map(|part| part.role).collect(),
            stored: model.weights().is_some(),
            strategy: strategy.clone(),
            held: data_len
                .filter(|_| strategy.loader.source != DataResidence::Stream)
                .map(|len| (len, data.data_set().has_pixels())),
            pixels: data.data_set().pixel_scale().filter(|_| strategy.input_dtype == InputDtype::U8),
        }
    }
}

/// The part of `[evaluation]` that determines the program.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
struct EvaluationKey {
    has_own_batch: bool,
    collect: Option<Collect>,
}

fn evaluation_key(evaluation: &Evaluation) -> EvaluationKey {
    let Evaluation { every: _, batches: _, batch_size, collect } = *evaluation;
    EvaluationKey { has_own_batch: batch_size.is_some(), collect }
}

/// The part of a parameter group that determines the program.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
struct UpdateGroupKey {
    named: Option<String>,
    of_matrices: Option<bool>,
    states: Vec<&'static str>,
    iterations: usize,
}

fn update_group(group: &UpdateGroup) -> UpdateGroupKey {
    UpdateGroupKey {
        named: group.named.map(|named| named.parameters.clone()),
        of_matrices: group.of_matrices,
        states: group.states(),
        iterations: group.rule.iterations(),
    }
}
