//! Micro-batches that are padded to their longest document: results, memory and work.

use super::{batch, train_on};
use base::units::Bytes;
use data::{Batch, Contents, DataError, Part, Sample, SampleLengths};
use spec::*;
use testing::compile;

/// A data set of documents.
#[derive(Debug)]
struct DocumentLengths(SampleLengths);

impl Contents for DocumentLengths {
    fn digest(&self) -> &str {
        ""
    }

    fn sample_lengths(&self, _sample: &Sample) -> Option<SampleLengths> {
        Some(self.0.clone())
    }

    fn parts(&self) -> &'static [&'static str] {
        &[]
    }

    fn part(&self, _requested: &Part) -> Option<Part> {
        None
    }

    fn check_size(&self, _sample: &Sample, _evaluates: bool) -> Result<(), DataError> {
        Ok(())
    }
}

/// The run on documents of 1 to 16 tokens, each micro-batch padded to the longest.
fn padded_to_batch(config: &RunConfig, multiple: usize) -> RunConfig {
    let text = Text {
        documents: DocumentArrangement::Padded,
        pad_to: PadTo::Batch,
        pad_to_multiple_of: multiple,
        ..Text::new(vec!["/nowhere".into()], 0.9)
    };
    let mut config = RunConfig { data: Data::Text(text), ..config.clone() };
    let training = vec![3, 1, 2, 5, 4, 2, 9, 3, 2, 1, 4, 16];
    config
        .set_data_properties(&DocumentLengths(SampleLengths { training, evaluation: vec![7, 2, 3, 11, 1] }));
    let lengths = config.lengths.as_ref().expect("the documents are known");
    assert!(lengths.distinct().len() > 1 || multiple == 8, "{lengths:?}");
    config
}

/// The batch of a step, masked behind the length of each micro-batch.
fn masked_batch(config: &RunConfig, step: usize, samples: usize) -> Batch {
    let lengths = config.lengths.as_ref().expect("lengths vary");
    let (context, size) =
        (config.sample().positions().unwrap(), config.loaded()[1].ty.dtype.bytes() as usize);
    let micro_batch = if step == 99 { config.evaluation_batch() } else { None };
    let micro_batch = micro_batch.unwrap_or(config.micro_batch());
    let mut whole = batch(config, step, samples);
    let targets = whole.parts_mut().iter_mut().find(|filled| filled.part.name == "targets").unwrap();
    for (sample, memory) in targets.samples_mut().enumerate() {
        let length = match step {
            99 => lengths.evaluation(0, sample / micro_batch),
            _ => lengths.training(step, sample / micro_batch),
        };
        assert_eq!(memory.len(), context * size);
        memory[length * size..].fill(u8::MAX);
    }
    whole
}

/// The losses of a run: of each step, and of the evaluation after the last. `train_on` asserts that memory, FLOPs and
/// transfers are as predicted.
fn losses(config: &RunConfig, of_batches: &RunConfig) -> Vec<f64> {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let batch = |step, samples| masked_batch(of_batches, step, samples);
    let trace = train_on(config, &program, device.as_mut(), &batch).unwrap();
    trace.losses.into_iter().map(f64::from).chain([trace.evaluation]).collect()
}

fn assert_same_losses(config: &RunConfig, padded: &RunConfig) {
    let to_context = RunConfig { lengths: None, ..padded.clone() };
    let (found, expected) = (losses(padded, padded), losses(&to_context, padded));
    for (found, expected) in found.iter().zip(&expected) {
        let close = (found - expected).abs() <= 1e-5 * expected;
        assert!(close, "{:?}: {found} and {expected}", config.strategy);
    }
}

fn caching(expandable_segments: bool) -> Allocator {
    let settings =
        Caching { max_split_size_mb: None, expandable_segments, garbage_collection_threshold: None };
    Allocator::Caching(settings)
}

/// Padding has no gradient, so shapes do not matter: with learned and rotary positions, and with every strategy that
/// treats the sizes of values.
#[test]
fn results_do_not_depend_on_padded_lengths() {
    let changes: [fn(&mut RunConfig); 10] = [
        |_| {},
        |config| (config.train.batch_size, config.strategy.accumulate) = (5, 3),
        |config| (config.strategy.recompute, config.strategy.accumulate) = (Recompute::Block, 4),
        |config| (config.strategy.allocator, config.strategy.accumulate) = (caching(false), 2),
        |config| (config.strategy.allocator, config.strategy.release) = (caching(true), Release::Scope),
        |config| {
            (config.strategy.allocator, config.strategy.gradients) = (Allocator::Direct, Gradients::Zero)
        },
        |config| (config.strategy.attention, config.strategy.loss_chunks) = (Attention::Materialized, 2),
        |config| {
            config.strategy.offload = Offload {
                parameters: true,
                optimizer: true,
                activations: ActivationOffload::From(Bytes(0)),
                ..Offload::default()
            };
        },
        |config| {
            config.strategy.loader =
                Loader { workers: 1, prefetch: 2, dtype: IdDtype::U16, ..Loader::default() };
            config.strategy.init = Init::Lazy;
        },
        |config| config.evaluation.as_mut().unwrap().batch_size = Some(3),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut config = testing::small();
        change(&mut config);
        let positions = [Positions::Learned, Positions::Rotary][number % 2];
        let config = testing::reshaped(config, |model| model.positions = positions);
        let multiple = if config.strategy.loss_chunks > 1 { 2 } else { 1 };
        assert_same_losses(&config, &padded_to_batch(&config, multiple));
    }
}

/// The program of a shorter micro-batch is that of a model whose context is as short.
#[test]
fn shorter_micro_batch_has_the_memory_and_work_of_its_length() {
    let config = testing::reshaped(testing::small(), |model| model.positions = Positions::Rotary);
    let padded = padded_to_batch(&config, 1);
    let program = compile(&padded, &testing::target()).unwrap();
    for length in padded.lengths.as_ref().unwrap().distinct() {
        let short = testing::reshaped(padded.clone(), |model| model.context = length);
        let expected = compile(&RunConfig { lengths: None, ..short }, &testing::target()).unwrap();
        let found = program.at_length(length);
        for (found, expected) in found.values.iter().zip(&expected.values) {
            let of_whole_batches = found.shape_source.batch_buffer().is_some();
            assert!(found.ty == expected.ty || of_whole_batches, "{length}: {found:?} and {expected:?}");
        }
        let work =
            |program: &compile::Program| program.sections.iter().map(|of| of.model_flops).collect::<Vec<_>>();
        assert_eq!(work(found), work(&expected), "{length}");
    }
}

/// With lengths that vary, each prediction follows the batches: `train_on` compares it with the ledger.
#[test]
fn random_combinations_follow_their_lengths() {
    let combinations = testing::tenth(if testing::on_cuda() { 8 } else { 300 });
    for (number, choice) in testing::sample(combinations).into_iter().enumerate() {
        let mut config = testing::small_with(&choice.of_one_rank());
        if config.sample().positions().is_none() {
            continue;
        }
        // `rules` refuses these keys with lengths that vary.
        let Strategy { graph, leak, keep, .. } = &mut config.strategy;
        (*graph, *leak) = (false, None);
        keep.clear();
        config.strategy.loader.source = DataResidence::Stream;
        config.strategy.loader.dtype = IdDtype::I32;
        if let Some(evaluation) = &mut config.evaluation {
            evaluation.collect = None;
        }
        let multiple = [1, 2, 8][number % 3];
        // Slices have the same number at every length.
        if config.strategy.loss_chunks > 2 || multiple == 1 {
            config.strategy.loss_chunks = 1;
        }
        let padded = padded_to_batch(&config, multiple);
        losses(&padded, &padded);
    }
}
