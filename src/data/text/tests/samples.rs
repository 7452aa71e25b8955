//! Samples of a text: their tokens and targets, the split, and parts that a text does not provide.

use std::ops::Range;

use super::*;
use crate::{Batch, ErrorKey, Order, Part, Split, TrainingStep};
use ops::TensorType;

/// Text in memory.
#[derive(Debug)]
struct Text(Vec<u8>);

impl ReadTokens for Text {
    fn read(&self, first: usize, mut tokens: Ids<'_>) -> Result<(), DataError> {
        tokens.put(self.0[first..].iter().map(|byte| u32::from(*byte)));
        Ok(())
    }
}

/// Text in which every byte is its own position.
fn counting(bytes: u8, split: f64) -> RowSlices<Text> {
    let text: Vec<u8> = (0..bytes).collect();
    let splits = Splits::of(text.len(), split, UNITS).unwrap();
    let contents = RowSummary { digest: String::new(), splits, below: BYTES, notes: Vec::new() };
    RowSlices { row: Text(text), contents }
}

fn sample(context: usize) -> Sample {
    let parts = crate::row::parts(context, Some(given("vocabulary", 300))).to_vec();
    Sample { parts, length: Some(given("context", context)) }
}

/// The tokens and targets of a filled batch.
fn filled(samples: usize, context: usize, fill: impl FnOnce(&mut Batch)) -> (Vec<i32>, Vec<i32>) {
    let mut batch = Batch::new(&sample(context).parts, samples);
    fill(&mut batch);
    let numbers = |name| {
        let (numbers, _) = batch.part(name).unwrap().bytes.as_chunks();
        numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    };
    (numbers("tokens"), numbers("targets"))
}

fn training(data: &RowSlices<Text>, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
    filled((samples.end - samples.start) as usize, context, |batch| {
        data.fill_training(
            &TrainingStep { seed: 3, number: 5, samples: 8, order: Order::Drawn },
            samples,
            batch,
        )
        .unwrap();
    })
}

fn evaluation(data: &RowSlices<Text>, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
    filled((samples.end - samples.start) as usize, context, |batch| {
        data.fill_evaluation(8, samples, batch).unwrap();
    })
}

#[test]
fn targets_are_the_next_tokens() {
    let data = counting(100, 0.9);
    let (tokens, targets) = training(&data, 0..50, 8);
    assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
    assert!(targets.iter().all(|target| (1..90).contains(target)));
}

/// Micro-batches, ranks and workers share a step.
#[test]
fn sample_ranges_match_the_whole_step() {
    let data = counting(200, 0.6);
    for draw in [training, evaluation] {
        let whole = draw(&data, 0..8, 16);
        for range in [0..1, 0..3, 2..5, 3..8, 7..8] {
            let numbers = range.start as usize * 16..range.end as usize * 16;
            let (tokens, targets) = draw(&data, range, 16);
            assert_eq!(tokens, whole.0[numbers.clone()]);
            assert_eq!(targets, whole.1[numbers]);
        }
    }
}

#[test]
fn shortest_text_has_one_sample() {
    let data = counting(9, 1.0);
    assert!(data.contents.splits.check(&sample(8), false).is_ok());
    assert_eq!(training(&data, 0..1, 8).0, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(matches!(
        data.contents.splits.check(&sample(9), false),
        Err(DataError::TooShort { split: Split::Training, found: 9, least: 10, .. })
    ));
}

#[test]
fn every_start_is_drawn() {
    let data = counting(12, 1.0);
    let (tokens, _) = training(&data, 0..200, 8);
    let firsts: std::collections::BTreeSet<i32> = tokens.chunks_exact(8).map(|row| row[0]).collect();
    assert_eq!(firsts, (0..4).collect());
}

#[test]
fn evaluation_windows_follow_each_other_and_wrap() {
    let data = counting(100, 0.8);
    let batch = |index: u64| {
        let (tokens, targets) = evaluation(&data, 2 * index..2 * index + 2, 6);
        assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
        (tokens[0], tokens[6])
    };
    // 20 bytes, 19 with a target: three windows of six.
    assert_eq!(batch(0), (80, 86));
    assert_eq!(batch(1), (92, 80));
    assert_eq!(batch(2), (86, 92));
    assert_eq!(batch(3), batch(0));
}

#[test]
fn short_evaluation_split_suggests_the_largest_split() {
    let splits = Splits::of(1000, 0.95, UNITS).unwrap();
    let error = splits.check(&sample(64), true).unwrap_err();
    assert!(
        matches!(
            error,
            DataError::TooShort { split: Split::Evaluation, found: 50, largest_split: Some(0.93), .. }
        ),
        "{error:?}"
    );
    assert_eq!(error.blame(), ErrorKey::Data("split"));
    assert!(splits.check(&sample(64), false).is_ok());
    assert!(Splits::of(1000, 0.93, UNITS).unwrap().check(&sample(64), true).is_ok());

    let error = Splits::of(1000, 0.9, UNITS).unwrap().check(&sample(600), true).unwrap_err();
    assert!(matches!(error, DataError::TooShort { split: Split::Evaluation, largest_split: None, .. }));
    assert_eq!(error.blame(), ErrorKey::Key("context"));
}

#[test]
fn split_must_be_above_zero_and_at_most_one() {
    let whole = Splits::of(10, 1.0, UNITS).unwrap();
    assert_eq!((whole.training, whole.evaluation), (10, 0));
    for split in [0.0, -0.5, 1.5, f64::NAN] {
        assert!(matches!(Splits::of(10, split, UNITS), Err(DataError::BadSplit { .. })));
    }
}

#[test]
fn bytes_are_below_256_before_and_after_reading() {
    let (set, data) = (plain(&[], 0.9), counting(100, 0.9));
    let mut sample = sample(8);
    for (vocabulary, suits) in [(256, true), (255, false)] {
        sample.parts[1].below = Some(given("vocabulary", vocabulary));
        for checked in [set.check_known(&sample), set.check(data.contents(), &sample, true)] {
            let expected = "vocabulary = 255 is less than the 256 targets of data.text";
            assert_eq!(
                checked.map_err(|error| error.to_string()).err(),
                (!suits).then(|| expected.to_owned())
            );
        }
    }
}

/// A part that is missing, and parts of another type or shape.
#[test]
fn mismatched_parts_are_reported_with_both_types() {
    let (set, data) = (plain(&[], 0.9), counting(100, 0.9));
    let check = |parts: Vec<Part>| set.check(data.contents(), &Sample { parts, length: None }, true);
    assert!(check(sample(8).parts).is_ok());

    let tokens = sample(8).parts[0];
    let error = check(vec![tokens, Part::seeds()]).unwrap_err();
    let expected = "the model needs `seeds`, which data.text does not provide: its samples have `tokens` and \
                    `targets`";
    assert_eq!((error.to_string().as_str(), error.blame()), (expected, ErrorKey::DataSet));

    let floats = Part { ty: TensorType::f32(&[8]), ..tokens };
    let error = check(vec![floats]).unwrap_err();
    let expected = "the model needs `tokens` as f32[8], but data.text provides it as i32[8]";
    assert_eq!((error.to_string().as_str(), error.blame()), (expected, ErrorKey::DataSet));

    let square = Part { ty: TensorType::i32(&[4, 4]), ..tokens };
    assert!(matches!(check(vec![square]), Err(DataError::OtherType { .. })));
    let long = Part { ty: TensorType::i32(&[64]), ..tokens };
    let error = check(vec![long]).unwrap_err();
    let expected = "the evaluation split has 10 bytes; a sample needs at least 65";
    assert_eq!((error.to_string().as_str(), error.blame()), (expected, ErrorKey::DataSet));
    assert_eq!(error.help(), "use more text");
}
