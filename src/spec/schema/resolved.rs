//! The resolved configuration of one run: every default filled in, every rule between keys checked. Later stages see
//! nothing else. Models, data, optimizers, schedules and strategies have their own files.

use super::collect::{Collect, CollectCodec};
use super::data::Data;
use super::model::{Model, Sequential};
use super::optimizer::Optimizer;
use super::schedule::Schedule;
use super::strategy::{DataResidence, Loader, Parallel, Reduce, Shard, Strategy};
use crate::reader::declare::{Optional, key_table, keywords, one_of};
use crate::reader::parsers::{Boolean, DIMENSION, POSITIVE, SEED, STEPS, STEPS_OR_NONE, keyword};
use std::borrow::Cow;
use std::sync::Arc;

use data::{
    Batch, BatchSequence, Batching, Contents, Memory, Order, PaddedLengths, Part, PartRole, Sample,
    SampleLengths, row,
};
use device::Rank;
use ops::{DType, TensorType};

/// One run: model, data, training and one strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    pub model: Model,
    pub data: Data,
    pub train: Train,
    pub evaluation: Option<Evaluation>,
    pub measure: Measure,
    pub strategy: Strategy,
    /// The length of a data set that is one row, or the number of samples that a run reads of one that has inputs and
    /// targets. Not a key: it is known once the data set was opened.
    pub data_len: Option<usize>,
    /// The padded length of each micro-batch, if they vary. Not a key either: the documents decide.
    pub lengths: Option<Arc<PaddedLengths>>,
    /// Whether each micro-batch has a sample that is not one document alone, if documents are packed. Likewise.
    pub all_packed: Option<bool>,
}

key_table! {
    /// Training: batches, optimizer and schedule.
    pub struct Train {
        /// Samples per optimizer step: the effective batch size, which `accumulate` splits into micro-batches.
        pub batch_size: usize = DIMENSION;
        /// Largest global norm of the gradients; larger gradients are scaled down (`torch.nn.utils.clip_grad_norm_`).
        pub clip_norm: Option<f64> = Optional(POSITIVE), default None;
        /// Seed of initial parameters, sample order, dropout and stochastic rounding. At most 2^63 - 1, the largest
        /// integer of TOML.
        pub seed: u64 = SEED, default 0;
        /// Whether training runs in shuffled epochs that visit every sample once; otherwise samples are drawn with
        /// replacement. PyTorch: `DataLoader(shuffle=True)`.
        pub shuffle: bool = Boolean, default false;
        /// The incomplete last batch of an epoch (PyTorch: `drop_last`): "drop" it, or "keep" it, padded with masked
        /// samples. Only with `shuffle = true`.
        pub last_batch: LastBatch = keyword(), default LastBatch::Drop;
        /// The optimizer: one table with its options.
        pub optimizer: Optimizer = one_of();
        /// Learning rate schedule, in optimizer steps.
        pub schedule: Schedule = one_of(), default Schedule::default();
    }
}

keywords! {
    /// The incomplete last batch of an epoch.
    pub enum LastBatch {
        /// Not trained on.
        Drop = "drop",
        /// Padded to a full batch: missing samples are masked, and the loss is the mean over the samples present.
        Keep = "keep",
    }
}

impl Train {
    /// The order of samples.
    pub fn order(&self) -> Order {
        match self.shuffle {
            false => Order::Drawn,
            true => Order::Shuffled { keeps_last: self.last_batch == LastBatch::Keep },
        }
    }
}

key_table! {
    /// Evaluation during training.
    #[derive(Eq)]
    pub struct Evaluation: Default {
        /// Optimizer steps between evaluations; the last step is always followed by one.
        pub every: usize = STEPS, default 10;
        /// Batches per evaluation.
        pub batches: usize = STEPS, default 1;
        /// Samples per evaluation batch, in one forward pass (Trainer: `per_device_eval_batch_size`); "off": those of
        /// `train.batch_size`, in the micro-batches of training.
        pub batch_size: Option<usize> = Optional(DIMENSION), default None;
        /// Outputs that are kept until the end of the evaluation, for a metric over all batches.
        pub collect: Option<Collect> = Optional(CollectCodec), default None;
    }
}

keywords! {
    /// The work of a step.
    pub enum Task {
        /// Forward, backward and update.
        Training = "training",
        /// The forward pass only: no gradients, and no values saved for backward.
        Inference = "inference",
    }
}

keywords! {
    /// The seeds of the repeats of a run.
    pub enum SeedPolicy {
        /// `train.seed` for all: repeats train identically and differ in speed only.
        Same = "same",
        /// Consecutive seeds, starting at `train.seed`: the spread of the losses shows the effect of the seed.
        Vary = "vary",
    }
}

key_table! {
    /// What is measured, and for how many steps.
    #[derive(Eq)]
    pub struct Measure: Default {
        /// What is measured: training steps, or inference (the forward pass only).
        pub what: Task = keyword(), default Task::Training;
        /// Whether all repeats use `train.seed`, or each the next seed.
        pub seeds: SeedPolicy = keyword(), default SeedPolicy::Same;
        /// Optimizer steps before the timed ones; not timed.
        pub warmup_steps: usize = STEPS_OR_NONE, default 3;
        /// Timed optimizer steps.
        pub steps: usize = STEPS, default 20;
    }
}

impl RunConfig {
    /// Whether steps compute gradients.
    pub fn trains(&self) -> bool {
        self.measure.what == Task::Training
    }

    /// Number of devices that train together.
    pub fn ranks(&self) -> usize {
        self.strategy.parallel.data
    }

    /// Whether ranks divide the optimizer states among them.
    pub fn shards_states(&self) -> bool {
        self.ranks() > 1 && self.strategy.parallel.shard >= Shard::Optimizer
    }

    /// Whether they divide the gradients of each micro-batch too.
    pub fn shards_gradients(&self) -> bool {
        let Parallel { shard, reduce, .. } = self.strategy.parallel;
        let in_each = reduce == Reduce::Micro || self.strategy.accumulate == 1;
        self.ranks() > 1 && shard >= Shard::Gradients && in_each
    }

    /// Whether they divide the parameters too.
    pub fn shards_parameters(&self) -> bool {
        self.ranks() > 1 && self.strategy.parallel.shard >= Shard::Parameters
    }

    /// The rank with this index.
    pub fn rank(&self, index: usize) -> Rank {
        Rank { index, of: self.ranks() }
    }

    /// The configuration of a rank: the run's, with its share of the batches.
    pub fn of_rank(&self, index: usize) -> Cow<'_, RunConfig> {
        let rank = self.rank(index);
        if rank == Rank::ALONE {
            return Cow::Borrowed(self);
        }
        let mut own = self.clone();
        own.train.batch_size = rank.samples(self.train.batch_size).len();
        if let Some(batch_size) =
            own.evaluation.as_mut().and_then(|evaluation| evaluation.batch_size.as_mut())
        {
            *batch_size = rank.samples(*batch_size).len();
        }
        Cow::Owned(own)
    }

    /// Sets what is known of a run once its data was opened.
    pub fn set_data_properties(&mut self, contents: &dyn Contents) {
        self.data_len = contents.row_len().or_else(|| {
            let [training, evaluation] = contents.splits()?;
            let evaluation = if self.evaluation.is_some() { evaluation } else { 0 };
            Some(training.saturating_add(evaluation) as usize)
        });
        // The documents are cut at the context.
        self.lengths = None;
        let sample = self.sample();
        self.lengths = self.data.batch_multiple().and_then(|multiple| {
            let lengths = contents.sample_lengths(&sample)?;
            self.padded_lengths(&lengths, &sample, multiple).map(Arc::new)
        });
        // Beside the first document, all else is as padding.
        self.all_packed = contents.first_documents(&sample).and_then(|lengths| {
            let padded = self.padded_lengths(&lengths, &sample, sample.positions()?)?;
            Some(padded.all_have_padding())
        });
    }

    fn padded_lengths(
        &self,
        samples: &SampleLengths,
        sample: &Sample,
        multiple: usize,
    ) -> Option<PaddedLengths> {
        let training = Batching { samples: self.train.batch_size, micro_batch: self.micro_batch() };
        let own_batch = |samples| Batching { samples, micro_batch: samples };
        let batches = BatchSequence {
            seed: self.train.seed,
            order: self.train.order(),
            steps: self.steps(),
            training,
            evaluation_batches: self.evaluation.as_ref().map_or(0, |evaluation| evaluation.batches),
            evaluation: self.evaluation_batch().map_or(training, own_batch),
            multiple,
        };
        PaddedLengths::new(samples, sample.positions()?, &batches)
    }

    /// Optimizer steps of a run whose micro-batches have different lengths. `None`: all have one length.
    pub fn steps_of_varying_lengths(&self) -> Option<usize> {
        Some(self.lengths.as_ref()?.steps()).filter(|steps| *steps > 0)
    }

    /// The same run on samples that all have the length of the longest, if lengths vary.
    #[must_use]
    pub fn at_longest(&self) -> RunConfig {
        self.longest().map_or_else(|| self.clone(), |longest| self.at_length(longest))
    }

    /// Whether an evaluation follows a step, counted from 0.
    pub fn is_evaluated_after(&self, step: usize) -> bool {
        let evaluation = self.evaluation.as_ref();
        let is_last = step + 1 == self.steps();
        evaluation.is_some_and(|evaluation| is_last || (step + 1).is_multiple_of(evaluation.every.max(1)))
    }

    /// The same run on samples that all have this length.
    #[must_use]
    pub fn at_length(&self, length: usize) -> RunConfig {
        RunConfig { lengths: Some(Arc::new(PaddedLengths::of_one(length))), ..self.clone() }
    }

    /// Length of a padded sample in a micro-batch with the longest sample of the data, if lengths vary.
    pub fn longest(&self) -> Option<usize> {
        self.lengths.as_ref().map(|lengths| lengths.longest())
    }

    /// The parts that the program reads of each sample: those that the model requests, and those that the data adds.
    /// If lengths vary, those of the longest sample.
    pub fn sample(&self) -> Sample {
        let mut sample = self.model.sample_of(self.longest());
        sample.parts.extend(self.data.added_parts(&sample));
        // An incomplete batch has missing samples.
        if self.train.order() == (Order::Shuffled { keeps_last: true }) && !sample.masks_targets() {
            sample.parts.push(row::weights());
        }
        sample
    }

    /// The parts that are transferred for each sample: as `sample`, with ids in `loader.dtype`; if the data is on the
    /// device, the sample's place in it instead of the parts that it holds.
    pub fn loaded(&self) -> Vec<Part> {
        let (held, whole): (Vec<Part>, Vec<Part>) =
            self.sample().parts.into_iter().partition(|part| self.is_gathered(part.role));
        let whole = whole.into_iter().map(|part| self.as_loaded(part));
        whole.chain((!held.is_empty()).then(row::place)).collect()
    }

    /// Whether the device gathers a part of the samples from data that it holds.
    pub fn is_gathered(&self, part: PartRole) -> bool {
        self.strategy.loader.source == DataResidence::Device && part.is_stored()
    }

    /// A part in the type that it is transferred in.
    fn as_loaded(&self, part: Part) -> Part {
        if part.is_numeric_input() {
            let dtype = self.strategy.input_dtype.dtype();
            return Part { ty: TensorType { dtype, ..part.ty }, ..part };
        }
        part.loaded_as(self.strategy.loader.dtype.dtype())
    }

    /// The parts that are read from the data set for each sample, with inputs in the type that they are transferred in.
    pub fn read_sample(&self) -> Sample {
        let mut sample = self.sample();
        for part in sample.parts.iter_mut().filter(|part| part.is_numeric_input()) {
            *part = self.as_loaded(*part);
        }
        sample
    }

    /// The parts of data that is held in memory as a whole, each with the type of one of `data_len` samples or, of a row,
    /// one element. Empty for data that is streamed.
    pub fn held_parts(&self) -> Vec<Part> {
        let Loader { source, dtype, .. } = self.strategy.loader;
        let data_set = self.data.data_set();
        if source == DataResidence::Stream {
            return Vec::new();
        }
        if data_set.is_row() {
            return vec![row::element(dtype.dtype())];
        }
        let held = |part: Part| match (source, part.below) {
            // A batch is assembled from the pixels, which training may change.
            (DataResidence::Ram, None) if data_set.has_pixels() && part.role == PartRole::Input => {
                Part { ty: TensorType { dtype: DType::U8, ..part.ty }, ..part }
            }
            _ => self.as_loaded(part),
        };
        self.sample().parts.into_iter().filter(|part| part.role.is_stored()).map(held).collect()
    }

    /// Bytes of the data that is held in memory, as it is stored there; `None` if its size is unknown.
    pub fn held_bytes(&self) -> Option<u128> {
        let len = self.data_len? as u128;
        Some(self.held_parts().iter().map(|part| len * u128::from(part.ty.bytes())).sum())
    }

    /// An empty batch of transferred parts for this number of samples: those of a step, or the share of a rank.
    pub fn empty_batch(&self, samples: usize) -> Batch {
        self.batch_of(&self.loaded(), samples)
    }

    /// An empty batch of the parts that the program reads, with i32 ids.
    pub fn wide_batch(&self, samples: usize) -> Batch {
        self.batch_of(&self.sample().parts, samples)
    }

    fn batch_of(&self, parts: &[Part], samples: usize) -> Batch {
        let batch = Batch::new(parts, samples);
        if self.has_random_seeds() { batch.with_seeds(samples) } else { batch }
    }

    /// An empty batch of transferred parts, in the memory that `memory` returns for each part.
    ///
    /// # Errors
    /// The errors of `memory`.
    pub fn batch_within<E>(&self, mut memory: impl FnMut(&Part) -> Result<Memory, E>) -> Result<Batch, E> {
        let parts = self.parts_within(&mut memory)?;
        let seeds = self.has_random_seeds().then(|| memory(&Part::seeds())).transpose()?;
        Ok(Batch::within(parts, seeds))
    }

    /// As [`batch_within`](RunConfig::batch_within), for evaluations, which draw no random numbers.
    ///
    /// # Errors
    /// The errors of `memory`.
    pub fn evaluation_batch_within<E>(
        &self,
        mut memory: impl FnMut(&Part) -> Result<Memory, E>,
    ) -> Result<Batch, E> {
        Ok(Batch::within(self.parts_within(&mut memory)?, None))
    }

    fn parts_within<E>(
        &self,
        memory: &mut impl FnMut(&Part) -> Result<Memory, E>,
    ) -> Result<Vec<(Part, Memory)>, E> {
        self.loaded().into_iter().map(|part| Ok((part, memory(&part)?))).collect()
    }

    /// Whether samples carry random seeds.
    fn has_random_seeds(&self) -> bool {
        self.trains() && self.draws()
    }

    /// Whether training draws random numbers: with dropout.
    pub fn draws(&self) -> bool {
        self.model.draws() || self.strategy.lora.as_ref().is_some_and(|lora| lora.dropout > 0.0)
    }

    /// Whether an evaluation computes something else than training: no dropout, or running statistics.
    pub fn evaluates_differently(&self) -> bool {
        self.draws() || self.model.sequential().is_some_and(Sequential::has_batch_norm)
    }

    /// The run without dropout, with running statistics.
    pub fn evaluated(&self) -> RunConfig {
        let mut evaluated = RunConfig { model: self.model.evaluated(), ..self.clone() };
        if let Some(lora) = &mut evaluated.strategy.lora {
            lora.dropout = 0.0;
        }
        evaluated
    }

    /// Optimizer steps of the whole run, timed or not.
    pub fn steps(&self) -> usize {
        self.measure.warmup_steps + self.measure.steps
    }

    /// The learning rate of step `step`, from 1; skipped steps do not count.
    pub fn learning_rate(&self, step: usize) -> f32 {
        (self.train.optimizer.learning_rate() * self.train.schedule.share(step, self.steps())) as f32
    }

    /// The step-dependent scalars of the optimizer's updates: those of each group, one group after the other.
    pub fn numbers(&self, step: usize) -> Vec<f32> {
        let share = self.train.schedule.share(step, self.steps());
        let groups = self.train.optimizer.groups();
        groups.iter().flat_map(|group| group.rule.numbers(step, (group.lr * share) as f32)).collect()
    }

    /// The configuration of repeat `repeat`, from 1, with its seed.
    pub fn of_repeat(&self, repeat: usize) -> RunConfig {
        let mut config = self.clone();
        if self.measure.seeds == SeedPolicy::Vary {
            let next = self.train.seed.wrapping_add(repeat.saturating_sub(1) as u64);
            config.train.seed = next & i64::MAX as u64;
            config.measure.seeds = SeedPolicy::Same;
        }
        config
    }

    /// Samples per forward and backward pass; the last pass of a step may have fewer.
    pub fn micro_batch(&self) -> usize {
        self.train.batch_size.div_ceil(self.strategy.accumulate)
    }

    /// Samples of an evaluation batch that is one forward pass; `None`: evaluation batches are those of training.
    pub fn evaluation_batch(&self) -> Option<usize> {
        self.evaluation.as_ref()?.batch_size
    }

    /// Outputs that evaluations collect.
    pub fn collect(&self) -> Option<Collect> {
        self.evaluation.as_ref()?.collect
    }

    /// Forward and backward passes per optimizer step: `accumulate`, or fewer if fewer micro-batches cover the batch.
    pub fn micro_batches(&self) -> usize {
        self.train.batch_size.div_ceil(self.micro_batch())
    }

    /// Samples of the last pass, if it is smaller than the others.
    pub fn tail(&self) -> Option<usize> {
        Some(self.train.batch_size % self.micro_batch()).filter(|samples| *samples > 0)
    }
}
