//! The configuration of one run, complete: every default filled in, every rule between keys checked. It is all that
//! the floors above ever see. Models, data, optimizers and strategies have files of their own.

use serde::Serialize;

use super::data::Data;
use super::declare::{Optional, one_of, section, words};
use super::kinds::{DIMENSION, Flag, POSITIVE, SEED, STEPS, STEPS_OR_NONE, word};
use super::model::Model;
use super::optimizer::Optimizer;
use super::schedule::Schedule;
use super::strategy::{LoadedFrom, Strategy};
use data::{Batch, Documents, Memory, Order, Part, Sample, row, seeds};

/// One run: a model on data, trained one way under one choice of memory strategies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    pub model: Model,
    pub data: Data,
    pub train: Train,
    pub evaluation: Option<Evaluation>,
    pub measure: Measure,
    pub strategy: Strategy,
    /// How many tokens the data has, where they lie in a row: no key, and known once the data was looked at.
    pub tokens: Option<usize>,
}

section! {
    pub struct Train {
        /// Sequences per optimizer step, whatever the micro-batch.
        pub batch_size: usize = DIMENSION;
        /// Gradients are scaled down to this global norm.
        pub clip_norm: Option<f64> = Optional(POSITIVE), default None;
        /// At most 2^63 - 1, as far as integers reach in TOML.
        pub seed: u64 = SEED, default 0;
        /// Whether samples come in epochs, in each of which all come once; otherwise each is drawn from all.
        pub shuffle: bool = Flag, default false;
        /// What becomes of the samples of an epoch that are no whole batch.
        pub last_batch: LastBatch = word(), default LastBatch::Drop;
        pub optimizer: Optimizer = one_of();
        /// How the learning rate goes over the steps.
        pub schedule: Schedule = one_of(), default Schedule::default();
    }
}

words! {
    /// What becomes of a batch that is not whole.
    pub enum LastBatch {
        Drop = "drop",
        /// It is a step of as many samples as there are, which count for as much as those of others.
        Keep = "keep",
    }
}

impl Train {
    /// Which samples come when.
    pub fn order(&self) -> Order {
        match self.shuffle {
            false => Order::Drawn,
            true => Order::Shuffled { keeps_last: self.last_batch == LastBatch::Keep },
        }
    }
}

section! {
    #[derive(Eq)]
    pub struct Evaluation {
        /// Optimizer steps between evaluations; there is one after the last step in any case.
        pub every: usize = STEPS, default 10;
        /// Batches of `batch_size` sequences per evaluation.
        pub batches: usize = STEPS, default 1;
    }
}

words! {
    /// What a step does.
    pub enum Task {
        /// Forward, backward and update.
        Training = "training",
        /// The forward pass alone: nothing has a gradient, and nothing is kept for one.
        Inference = "inference",
    }
}

words! {
    /// What repeats of a run begin from.
    pub enum Seeds {
        /// All from `train.seed`: they learn the same, and differ in speed alone.
        Same = "same",
        /// Each from the next one: how far their losses lie apart is luck.
        Vary = "vary",
    }
}

section! {
    #[derive(Eq)]
    pub struct Measure: Default {
        pub what: Task = word(), default Task::Training;
        /// Whether repeats train the same.
        pub seeds: Seeds = word(), default Seeds::Same;
        /// Optimizer steps that are not timed.
        pub warmup_steps: usize = STEPS_OR_NONE, default 3;
        /// Optimizer steps that are.
        pub steps: usize = STEPS, default 20;
    }
}

impl RunConfig {
    /// Whether there are gradients.
    pub fn trains(&self) -> bool {
        self.measure.what == Task::Training
    }

    /// How samples are told apart from what they lack: as documents are, where those of a step may be fewer than others have.
    pub fn documents(&self) -> Documents {
        let documents = self.data.documents();
        match (documents, self.train.order()) {
            (Documents::Joined, Order::Shuffled { keeps_last: true }) => Documents::Padded,
            _ => documents,
        }
    }

    /// What is asked for of each sample: what the model needs, and how documents in it are told apart.
    pub fn sample(&self) -> Sample {
        let mut sample = self.model.sample();
        let context = sample.length.map_or(0, |length| length.count);
        sample.parts.extend(self.documents().parts(context));
        sample
    }

    /// What is loaded of each sample: the same, but for ids in the type that they are loaded in, or where these lie in a row that
    /// the device has.
    pub fn loaded(&self) -> Vec<Part> {
        let loader = &self.strategy.loader;
        let is_on_device =
            |part: &Part| loader.source == LoadedFrom::Device && row::places_later(part.name).is_some();
        let (cut, whole): (Vec<Part>, Vec<Part>) = self.sample().parts.into_iter().partition(is_on_device);
        let whole = whole.into_iter().map(|part| part.loaded_as(loader.dtype.dtype()));
        whole.chain((!cut.is_empty()).then(row::place)).collect()
    }

    /// Memory for as many samples as a step has, or for the share of a rank.
    pub fn empty_batch(&self, samples: usize) -> Batch {
        self.batch_of(&self.loaded(), samples)
    }

    /// The same with all whole numbers as the model takes them.
    pub fn wide_batch(&self, samples: usize) -> Batch {
        self.batch_of(&self.sample().parts, samples)
    }

    fn batch_of(&self, parts: &[Part], samples: usize) -> Batch {
        let batch = Batch::new(parts, samples);
        if self.has_seeds() { batch.with_seeds(samples) } else { batch }
    }

    /// The same in memory that is given for each part.
    ///
    /// # Errors
    /// Those of `memory`.
    pub fn batch_within<E>(&self, mut memory: impl FnMut(&Part) -> Result<Memory, E>) -> Result<Batch, E> {
        let parts = self.loaded().into_iter().map(|part| Ok((part, memory(&part)?)));
        let parts = parts.collect::<Result<_, E>>()?;
        let seeds = self.has_seeds().then(|| memory(&seeds::part())).transpose()?;
        Ok(Batch::within(parts, seeds))
    }

    /// Whether samples have what chance starts from.
    fn has_seeds(&self) -> bool {
        self.trains() && self.model.draws()
    }

    /// Optimizer steps of the whole run, timed or not.
    pub fn steps(&self) -> usize {
        self.measure.warmup_steps + self.measure.steps
    }

    /// The learning rate of step `step`, from 1; steps that were skipped do not count.
    pub fn learning_rate(&self, step: usize) -> f32 {
        (self.train.optimizer.learning_rate() * self.train.schedule.share(step, self.steps())) as f32
    }

    /// What the optimizer's updates take as the numbers of that step: those of each group, one after the other.
    pub fn numbers(&self, step: usize) -> Vec<f32> {
        let share = self.train.schedule.share(step, self.steps());
        let groups = self.train.optimizer.groups();
        groups.iter().flat_map(|group| group.rule.numbers(step, (group.lr * share) as f32)).collect()
    }

    /// What repeat `repeat`, from 1, trains.
    pub fn of_repeat(&self, repeat: usize) -> RunConfig {
        let mut config = self.clone();
        if self.measure.seeds == Seeds::Vary {
            let next = self.train.seed.wrapping_add(repeat.saturating_sub(1) as u64);
            config.train.seed = next & i64::MAX as u64;
            config.measure.seeds = Seeds::Same;
        }
        config
    }

    /// Sequences that one forward and backward pass sees; the last of a step may see fewer.
    pub fn micro_batch(&self) -> usize {
        self.train.batch_size.div_ceil(self.strategy.accumulate)
    }

    /// Forward and backward passes of an optimizer step: as many as `accumulate`, or fewer where fewer of that size are
    /// the whole batch.
    pub fn micro_batches(&self) -> usize {
        self.train.batch_size.div_ceil(self.micro_batch())
    }

    /// Sequences that the last pass sees, if they are fewer than those of the others.
    pub fn tail(&self) -> Option<usize> {
        Some(self.train.batch_size % self.micro_batch()).filter(|samples| *samples > 0)
    }
}
