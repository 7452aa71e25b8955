//! `loader`: batches do not depend on its settings; its memory and effects are as expected.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use crate::child::Reporter;
use crate::engine::Engine;
use crate::error::RunError;
use crate::logs::STEPS_FILE;
use crate::metrics::{Ended, Measured, Outcome};
use crate::prepare::Prepared;
use crate::train::run_on;
use data::{Batch, Contents, DataError, DigestCache, Source, TrainingStep};
use device::{Delay, Phase, Pool, Role};
use memory::{RunSchedule, predict};
use spec::*;
use testing::compile;

/// A run on a text file in the folder, with five samples per step in micro-batches of two, two and one.
fn config(folder: &Path, loader: Loader) -> RunConfig {
    let mut config = testing::small();
    (config.train.batch_size, config.strategy.accumulate) = (5, 3);
    config.strategy.loader = loader;
    let text = folder.join("text.txt");
    let words = (0..400).map(|word| format!("{} words, {}\n", word * word % 97, word % 7));
    std::fs::write(&text, words.collect::<String>()).unwrap();
    config.data = Data::Text(Text::new(vec![text], 0.9));
    config
}

pub(super) fn source(config: &RunConfig) -> Box<dyn Source> {
    config.data.data_set().open(&config.sample(), &mut DigestCache::default()).unwrap()
}

/// Trains a run as its child process does.
pub(super) fn run(config: RunConfig, data: Box<dyn Source>, folder: &Path) -> Result<Outcome, RunError> {
    let target = testing::target();
    let prepared = Prepared {
        weights: None,
        sample: config.sample(),
        data,
        program: compile(&config, &target).unwrap(),
        compiled_in: std::time::Duration::ZERO,
        target: target.clone(),
        config,
    };
    let mut device = testing::device(target);
    let reporter = &mut Reporter::new(std::io::sink());
    run_on(device.as_mut(), folder, prepared, reporter, Instant::now(), false)
}

/// The losses and digest of a run, and its outcome.
fn trained(loader: Loader) -> (Vec<String>, Outcome) {
    trained_on(loader, DocumentArrangement::Joined)
}

/// The same for documents, one on each line.
fn trained_on(loader: Loader, documents: DocumentArrangement) -> (Vec<String>, Outcome) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), loader);
    let data: Box<dyn Source> = match documents {
        DocumentArrangement::Joined => {
            let data = source(&config);
            config.set_data_properties(data.contents());
            data
        }
        _ => {
            config.data = testing::of_documents(documents);
            Box::new(SyntheticBatches { config: config.clone() })
        }
    };
    let predicted = {
        let target = testing::target();
        predict(&compile(&config, &target).unwrap(), &target, RunSchedule::of(&config))
    };
    let outcome = run(config, data, folder.path()).unwrap();
    assert_eq!(outcome.ended, Ended::Complete, "{}", outcome.message);
    let Measured { host_peak_bytes, pinned_peak_bytes, reserved_peak_bytes, .. } = outcome.measured.clone();
    assert_eq!(host_peak_bytes, Some(predicted.host.peak()));
    assert_eq!(pinned_peak_bytes, Some(predicted.pinned.peak()));
    assert_eq!(reserved_peak_bytes, Some(predicted.device.reserved_peak));
    let log = std::fs::read_to_string(folder.path().join(STEPS_FILE)).unwrap();
    let loss = |line: &str| line.split(',').nth(1).unwrap().to_owned();
    let evaluated = outcome.measured.loss_eval.map(|loss| loss.to_string());
    let learnt = log.lines().map(loss).chain(evaluated).chain([outcome.measured.digest.clone()]);
    (learnt.collect(), outcome)
}

/// For text and for documents, whose targets may be masked.
#[test]
fn results_do_not_depend_on_the_dtype_of_ids() {
    use DocumentArrangement::{Joined, Packed, Padded};
    use IdDtype::{I32, U8, U16};
    for (documents, all) in [(Joined, &[U8, U16][..]), (Padded, &[U16]), (Packed, &[U16])] {
        let learnt = |dtype| {
            let loader = Loader { workers: 2, prefetch: 1, dtype, ..Loader::default() };
            trained_on(loader, documents)
        };
        let (plain, of_plain) = learnt(I32);
        for &dtype in all {
            let (found, outcome) = learnt(dtype);
            assert_eq!(found, plain, "{documents:?} as {dtype:?}");
            let Measured { padding, batch_bytes, .. } = outcome.measured;
            assert_eq!(padding, of_plain.measured.padding);
            if documents == Joined {
                let wide = of_plain.measured.batch_bytes.unwrap();
                assert_eq!(batch_bytes, Some(wide * dtype.dtype().bits() / 32));
            }
        }
    }
}

/// With any number of workers, prefetch depth, pool and source.
#[test]
fn results_do_not_depend_on_the_loader() {
    let (plain, _) = trained(Loader::default());
    for workers in [1, 2, 3, 9] {
        for (prefetch, pinned) in [(0, true), (1, false), (2, true), (40, true)] {
            let loader = Loader { workers, prefetch, pinned, ..Loader::default() };
            assert_eq!(trained(loader).0, plain, "{loader:?}");
        }
    }
    for source in [DataResidence::Ram, DataResidence::Device] {
        for dtype in [IdDtype::U8, IdDtype::U16, IdDtype::I32] {
            for (workers, prefetch) in [(0, 0), (2, 1), (1, 2)] {
                let loader = Loader { workers, prefetch, source, dtype, ..Loader::default() };
                assert_eq!(trained(loader).0, plain, "{loader:?}");
            }
        }
    }
}

/// The whole token row on host or device. With the row on the device, batches contain only the offsets of samples.
#[test]
fn held_data_is_in_the_ledger() {
    let (_, plain) = trained(Loader::default());
    let source = |source| trained(Loader { source, dtype: IdDtype::U8, ..Loader::default() }).1.measured;
    let (plain, ram, device) = (plain.measured, source(DataResidence::Ram), source(DataResidence::Device));
    let folder = tempfile::tempdir().unwrap();
    let tokens = self::source(&config(folder.path(), Loader::default())).contents().row_len().unwrap() as u64;
    let context = testing::small().sample().positions().unwrap() as u64;
    let rounded = |bytes: u64| bytes.next_multiple_of(256);
    let batches = |bytes: u64| 2 * rounded(5 * context * bytes);
    let host = |measured: &Measured| measured.host_peak_bytes.unwrap();
    assert_eq!(host(&ram) + batches(4), host(&plain) + batches(1) + rounded(tokens));
    assert_eq!(host(&device) + batches(4), host(&plain) + rounded(5 * 2 * 4));
    assert_eq!(device.batch_bytes, Some(5 * 2 * 4));
    // In addition to the row: two words for each sample of a micro-batch.
    let inputs = |measured: &Measured| measured.live[Role::Input].unwrap();
    let most = inputs(&plain) + rounded(tokens) + rounded(2 * 2 * 4);
    assert!((rounded(tokens)..=most).contains(&inputs(&device)), "{}", inputs(&device));
}

#[test]
fn steps_wait_for_the_delay_unless_batches_are_prefetched() {
    let delay = 2.0;
    let waited = |workers, prefetch| {
        let (_, outcome) = trained(Loader { workers, prefetch, delay, ..Loader::default() });
        (outcome.measured.data_wait_ms.unwrap(), outcome.measured.loading_hidden)
    };
    // Five samples in a row without workers; three in the largest share of two workers.
    let (alone, hidden) = waited(0, 0);
    assert!(alone >= 10.0 && hidden.is_none(), "{alone} ms, {hidden:?}");
    let (shared, _) = waited(2, 0);
    assert!(shared >= 6.0, "{shared} ms");
    // A step computes for less time than loading takes, so that only a part can be hidden.
    let hidden = waited(5, 3).1.unwrap();
    assert!(hidden > 0.0, "{hidden}");
}

#[test]
fn each_prefetched_batch_takes_host_memory() {
    let folder = tempfile::tempdir().unwrap();
    let input = |loader: Loader, pool: Pool| {
        let config = config(folder.path(), loader);
        let program = compile(&config, &testing::target()).unwrap();
        let predicted = predict(&program, &testing::target(), RunSchedule::of(&config));
        match pool {
            Pool::Pinned => predicted.pinned.steady_peak().live[Role::Input],
            _ => predicted.host.steady_peak().live[Role::Input],
        }
    };
    let context = testing::small().sample().positions().unwrap() as u64;
    // Tokens and targets with their alignment, and the optimizer's scalars.
    let batches = |count: u64| 2 * (count * 5 * context * 4).next_multiple_of(256);
    let numbers = input(Loader::default(), Pool::Pinned) - batches(1);
    for (prefetch, on_the_device) in [(1, 0), (2, 2), (3, 2)] {
        let loader = Loader { workers: 1, prefetch, ..Loader::default() };
        let expected = batches(prefetch as u64 + 1) + numbers;
        assert_eq!(input(loader, Pool::Pinned), expected);
        let pageable = Loader { pinned: false, ..loader };
        assert_eq!(input(pageable, Pool::Pinned), numbers);
        // Pageable and pinned memory together.
        assert_eq!(input(pageable, Pool::Host), expected);
        // On the device: the current batch and the next one, if batches are prefetched to the device.
        let on_device = |loader: Loader| {
            let config = config(folder.path(), loader);
            let program = compile(&config, &testing::target()).unwrap();
            let start = program.section(compile::SectionKind::Start).unwrap();
            let inputs = start
                .live_out
                .iter()
                .map(|&id| program.value(id))
                .filter(|value| value.role == Role::Input && value.pool == Pool::Device);
            inputs.map(|value| value.ty.bytes().next_multiple_of(256)).sum::<u64>()
        };
        assert_eq!(on_device(loader), batches(on_the_device), "{prefetch} ahead");
    }
}

#[test]
fn effects_contain_the_loading_of_batches() {
    let context = testing::small().sample().positions().unwrap() as u64;
    let (_, plain) = trained(Loader::default());
    assert_eq!(plain.measured.batch_bytes, Some(2 * 5 * context * 4));
    assert!(!plain.measured.effects.contains(" per batch"), "{}", plain.measured.effects);
    assert_eq!(plain.measured.batches_ahead, None);
    let (_, one_ahead) = trained(Loader { workers: 2, prefetch: 1, ..Loader::default() });
    assert_eq!(one_ahead.measured.batches_ahead, None);
    // All batches are requested before the first step.
    let (_, ahead) = trained(Loader { workers: 2, prefetch: 40, ..Loader::default() });
    let uploaded = ahead.measured.batches_ahead.unwrap();
    assert!(uploaded > 0.0, "{uploaded}");
    let told = [" per batch", "2 workers", "% waiting for data", "% of loading hidden"];
    assert!(told.iter().all(|told| ahead.measured.effects.contains(told)), "{}", ahead.measured.effects);
}

/// Three samples in a batch of five or of three: missing samples are masked, and the loss is the mean over the others.
#[test]
fn incomplete_last_batch_has_the_loss_of_its_samples() {
    let learnt = |batch_size: usize, last_batch: LastBatch, loader: Loader| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), loader);
        let context = config.sample().positions().unwrap();
        let text: String = (0..3 * context + 5).map(|i| char::from(b'a' + (i * i % 23) as u8)).collect();
        let file = folder.path().join("short.txt");
        std::fs::write(&file, text).unwrap();
        config.data = Data::Text(Text::new(vec![file], 1.0));
        config.evaluation = None;
        (config.train.batch_size, config.strategy.accumulate) = (batch_size, 2);
        (config.train.shuffle, config.train.last_batch) = (true, last_batch);
        let data = source(&config);
        config.set_data_properties(data.contents());
        let outcome = run(config, data, folder.path()).unwrap();
        let log = std::fs::read_to_string(folder.path().join(STEPS_FILE)).unwrap();
        let loss = |line: &str| line.split(',').nth(1).unwrap().parse::<f64>().unwrap();
        let losses: Vec<f64> = log.lines().skip(1).map(loss).collect();
        (losses, outcome.measured.digest, outcome.measured.padding)
    };
    let (whole, _, padding) = learnt(3, LastBatch::Drop, Loader::default());
    assert_eq!(padding, None);
    let (kept, digest, padding) = learnt(5, LastBatch::Keep, Loader::default());
    assert_eq!(padding, Some(0.4));
    for (kept, whole) in kept.iter().zip(&whole) {
        assert!((kept - whole).abs() <= 1e-5 * whole, "{kept} and {whole}");
    }
    for source in [DataResidence::Stream, DataResidence::Ram, DataResidence::Device] {
        let loader = Loader { workers: 2, prefetch: 2, source, dtype: IdDtype::U16, ..Loader::default() };
        assert_eq!(learnt(5, LastBatch::Keep, loader), (kept.clone(), digest.clone(), padding), "{source:?}");
    }
}

/// A batch is uploaded during the step before, with either queue delayed.
#[test]
fn batches_are_prefetched_to_the_device() {
    for source in [DataResidence::Stream, DataResidence::Device] {
        let mut config = testing::small();
        (config.train.batch_size, config.strategy.accumulate) = (5, 3);
        let plain = super::trace(&config);
        // Graph replays use fixed addresses, but the batch slot changes between steps.
        config.strategy.graph = true;
        config.strategy.loader =
            Loader { workers: 1, prefetch: 2, source, dtype: IdDtype::U16, ..Loader::default() };
        let program = compile(&config, &testing::target()).unwrap();
        let devices = [
            testing::device(testing::target()),
            testing::delayed_device(testing::target(), Delay::Compute),
            testing::delayed_device(testing::target(), Delay::Copy),
        ];
        for mut device in devices {
            let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
            engine.start().unwrap();
            super::hold(&mut engine, &config).unwrap();
            let samples = config.train.batch_size;
            let put = |engine: &mut Engine, slot: usize, step: usize| {
                for filled in super::batch(&config, step, samples).all() {
                    let mut memory = engine.lend(slot, 0..samples, &filled.part).unwrap();
                    memory.copy_from_slice(&filled.bytes);
                }
            };
            put(&mut engine, 0, 0);
            let mut digests = Vec::new();
            for step in 0..super::STEPS {
                let (slot, next) = (step % 3, (step + 1) % 3);
                // The evaluation reuses the slot of the finished step.
                let has_next = step + 1 < super::STEPS;
                if has_next {
                    put(&mut engine, next, step + 1);
                }
                engine.step_on(slot, has_next.then_some(next), &config.numbers(step + 1)).unwrap();
                digests.push(engine.digest().unwrap());
                put(&mut engine, slot, 99);
                engine.evaluate_on(slot).unwrap();
            }
            assert_eq!(digests, plain.digests, "{source:?}");
            assert_eq!(engine.counts().batches_ahead, super::STEPS as u64 - 1);
            engine.close().unwrap();
        }
    }
}

/// An evaluation batch of another size than the step's, larger or smaller, has the same samples in any loader, and memory
/// of its own.
#[test]
fn evaluation_batches_of_their_own_size_have_the_same_samples() {
    let evaluated = |loader: Loader, batch_size: Option<usize>, batches: usize| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), loader);
        config.evaluation = Some(Evaluation { every: 3, batches, batch_size, ..Evaluation::default() });
        let data = source(&config);
        config.set_data_properties(data.contents());
        let target = testing::target();
        let predicted = predict(&compile(&config, &target).unwrap(), &target, RunSchedule::of(&config));
        let Measured { loss_eval, digest, host_reserved_peak_bytes, evaluation_peak_bytes, .. } =
            run(config, data, folder.path()).unwrap().measured;
        assert_eq!(host_reserved_peak_bytes, Some(predicted.host.reserved_peak));
        let peak = predicted.device.phase_peak(Phase::Evaluation).live.total();
        assert_eq!(evaluation_peak_bytes, Some(peak));
        (loss_eval.unwrap(), digest)
    };
    let (loss, digest) = evaluated(Loader::default(), None, 4);
    let mut losses = Vec::new();
    for (batch_size, batches) in [(2, 10), (20, 1)] {
        for source in [DataResidence::Stream, DataResidence::Ram, DataResidence::Device] {
            for (workers, prefetch) in [(0, 0), (2, 2)] {
                let loader = Loader { workers, prefetch, source, dtype: IdDtype::U16, ..Loader::default() };
                let found = evaluated(loader, Some(batch_size), batches);
                assert!((found.0 - loss).abs() <= 1e-5 * loss, "{loader:?}: {} and {loss}", found.0);
                assert_eq!(found.1, digest, "{loader:?}");
                losses.push((batch_size, found.0));
            }
        }
    }
    losses.dedup();
    assert_eq!(losses.len(), 2, "{losses:?}");
}

/// A source of synthetic batches.
#[derive(Debug)]
struct SyntheticBatches {
    config: RunConfig,
}

impl SyntheticBatches {
    fn fill(&self, number: u64, samples: Range<u64>, batch: &mut Batch) {
        let whole = super::batch(&self.config, number as usize, self.config.train.batch_size);
        for filled in batch.parts_mut() {
            let sample = filled.part.ty.bytes();
            let range = (samples.start * sample) as usize..(samples.end * sample) as usize;
            filled.bytes.copy_from_slice(&whole.part(filled.part.name).unwrap().bytes[range]);
        }
    }
}

impl Source for SyntheticBatches {
    fn contents(&self) -> &dyn Contents {
        unreachable!("the contents are not read")
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        self.fill(step.number, samples, batch);
        Ok(())
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        let all = self.config.train.batch_size as u64;
        self.fill(99, samples.start % all..(samples.end - 1) % all + 1, batch);
        Ok(())
    }
}

/// A source that fails in a step.
#[derive(Debug)]
struct FailingSource {
    data: Box<dyn Source>,
    step: u64,
}

impl Source for FailingSource {
    fn contents(&self) -> &dyn Contents {
        self.data.contents()
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        match step.number == self.step && samples.contains(&4) {
            true => Err(DataError::Changed { path: "lost".into() }),
            false => self.data.fill_training(step, samples, batch),
        }
    }

    fn fill_evaluation(&self, of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        self.data.fill_evaluation(of, samples, batch)
    }
}

/// Even if a worker fails ahead of time, the run fails in the step that needs the batch.
#[test]
fn lost_data_fails_the_run_in_its_step() {
    for (workers, prefetch) in [(0, 0), (1, 0), (2, 3), (9, 40)] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), Loader { workers, prefetch, ..Loader::default() });
        let data = Box::new(FailingSource { data: source(&config), step: 2 });
        match run(config, data, folder.path()) {
            Err(RunError::Data(DataError::Changed { path })) => assert_eq!(path, Path::new("lost")),
            other => panic!("{other:?}"),
        }
        let log = std::fs::read_to_string(folder.path().join(STEPS_FILE)).unwrap();
        assert_eq!(log.lines().count(), 3, "a header and two steps");
    }
}
