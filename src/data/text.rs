//! Text whose bytes are its tokens.

use std::path::PathBuf;

use super::stretches::{PARTS, Row, Splits, Stretches, Summary};
use super::{Contents, DataError, DataSet, DigestCache, Given, Source, digest, files};
use crate::regular;
use crate::units::Bytes;

/// What a byte can be.
const BYTES: Given = Given { key: "data.text.tokens", count: 256 };

/// What there is of it.
const UNITS: [&str; 2] = ["byte", "text"];

/// Files of text in the order of their sorted paths, one after the other.
#[derive(Debug)]
pub struct TextSet {
    /// Absolute paths and globs.
    paths: Vec<PathBuf>,
    /// The share, from the front, that is trained on; the rest is evaluated on.
    split: f64,
}

/// Text in memory.
#[derive(Debug)]
struct Text(Vec<u8>);

impl Row for Text {
    fn read(&self, first: usize, tokens: &mut [[u8; 4]]) -> Result<(), DataError> {
        for (token, byte) in tokens.iter_mut().zip(&self.0[first..]) {
            *token = i32::from(*byte).to_ne_bytes();
        }
        Ok(())
    }
}

impl TextSet {
    pub fn new(paths: &[PathBuf], split: f64) -> TextSet {
        TextSet { paths: paths.to_vec(), split }
    }

    fn read(&self) -> Result<Stretches<Text>, DataError> {
        let first = |errors: Vec<DataError>| errors.into_iter().next().unwrap_or(DataError::NoPaths);
        let files = files::find(&self.paths).map_err(first)?;
        let mut text = Vec::new();
        let mut digests = Vec::with_capacity(files.len());
        for path in &files {
            let contents = regular::read(path, Bytes(u64::MAX))
                .map_err(|error| DataError::Unreadable { path: path.clone(), error })?;
            digests.push(digest::of_bytes(&contents));
            text.extend_from_slice(&contents);
        }
        if text.is_empty() {
            return Err(DataError::Empty { files: files.len() });
        }
        let splits = Splits::of(text.len(), self.split, UNITS)?;
        let contents = Summary { digest: digest::combine(&digests), splits, below: BYTES };
        Ok(Stretches { row: Text(text), contents })
    }

    fn summarise(&self, cache: &mut DigestCache) -> Result<Summary, Vec<DataError>> {
        let files = files::find(&self.paths)?;
        let (mut digests, mut errors) = (Vec::with_capacity(files.len()), Vec::new());
        for path in &files {
            match cache.of_file(path) {
                Ok(digest) => digests.push(digest),
                Err(error) => errors.push(DataError::Unreadable { path: path.clone(), error }),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let bytes: u64 = digests.iter().map(|digest| digest.bytes).sum();
        if bytes == 0 {
            return Err(vec![DataError::Empty { files: files.len() }]);
        }
        let splits = Splits::of(bytes as usize, self.split, UNITS).map_err(|error| vec![error])?;
        Ok(Summary { digest: digest::combine(&digests), splits, below: BYTES })
    }
}

impl DataSet for TextSet {
    fn name(&self) -> &'static str {
        "text"
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn is_known_unread(&self) -> bool {
        true
    }

    fn below(&self, part: &str) -> Option<Given> {
        PARTS.contains(&part).then_some(BYTES)
    }

    fn inspect(&self, cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        Ok(Box::new(self.summarise(cache)?))
    }

    fn open(&self, _cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(self.read()?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::ops::Range;

    use super::*;
    use crate::data::{Batch, Blame, Part, Sample, Split};
    use crate::ops::TensorType;

    /// Text in which every byte says where it is.
    fn counting(bytes: u8, split: f64) -> Stretches<Text> {
        let text: Vec<u8> = (0..bytes).collect();
        let splits = Splits::of(text.len(), split, UNITS).unwrap();
        let contents = Summary { digest: String::new(), splits, below: BYTES };
        Stretches { row: Text(text), contents }
    }

    fn given(key: &'static str, count: usize) -> Given {
        Given { key, count }
    }

    fn sample(context: usize) -> Sample {
        let part =
            |name| Part { name, ty: TensorType::i32(&[context]), below: Some(given("vocabulary", 300)) };
        let parts = vec![part("tokens"), part("targets")];
        Sample { parts, length: Some(given("context", context)), tokens: Some(context) }
    }

    /// The tokens and targets of as many samples as are filled in.
    fn filled(samples: usize, context: usize, fill: impl FnOnce(&mut Batch)) -> (Vec<i32>, Vec<i32>) {
        let mut batch = Batch::new(&sample(context).parts, samples);
        fill(&mut batch);
        let numbers = |name| {
            let (numbers, _) = batch.part(name).unwrap().bytes.as_chunks();
            numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
        };
        (numbers("tokens"), numbers("targets"))
    }

    fn training(data: &Stretches<Text>, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
        filled((samples.end - samples.start) as usize, context, |batch| {
            data.fill_training(3, 5, samples, batch).unwrap();
        })
    }

    fn evaluation(data: &Stretches<Text>, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
        filled((samples.end - samples.start) as usize, context, |batch| {
            data.fill_evaluation(samples, batch).unwrap();
        })
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let data = counting(100, 0.9);
        let (tokens, targets) = training(&data, 0..50, 8);
        assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
        assert!(targets.iter().all(|target| (1..90).contains(target)));
    }

    /// Ranks and workers could share a batch, and micro-batches do.
    #[test]
    fn any_range_of_samples_is_what_it_is_in_the_whole() {
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
    fn the_shortest_text_has_one_sample() {
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
    fn an_evaluation_split_that_is_too_short_says_which_would_do() {
        let splits = Splits::of(1000, 0.95, UNITS).unwrap();
        let error = splits.check(&sample(64), true).unwrap_err();
        assert!(
            matches!(
                error,
                DataError::TooShort { split: Split::Evaluation, found: 50, largest_split: Some(0.93), .. }
            ),
            "{error:?}"
        );
        assert_eq!(error.blame(), Blame::Data("split"));
        assert!(splits.check(&sample(64), false).is_ok());
        assert!(Splits::of(1000, 0.93, UNITS).unwrap().check(&sample(64), true).is_ok());

        let error = Splits::of(1000, 0.9, UNITS).unwrap().check(&sample(600), true).unwrap_err();
        assert!(matches!(error, DataError::TooShort { split: Split::Evaluation, largest_split: None, .. }));
        assert_eq!(error.blame(), Blame::Key("context"));
    }

    #[test]
    fn splits_are_shares() {
        let whole = Splits::of(10, 1.0, UNITS).unwrap();
        assert_eq!((whole.training, whole.evaluation), (10, 0));
        for split in [0.0, -0.5, 1.5, f64::NAN] {
            assert!(matches!(Splits::of(10, split, UNITS), Err(DataError::BadSplit { .. })));
        }
    }

    #[test]
    fn the_parent_sees_what_the_child_reads() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.txt"), "world").unwrap();
        fs::write(folder.path().join("a.txt"), "hello ").unwrap();
        let paths = [folder.path().join("*.txt")];
        let read = |paths: &[PathBuf]| TextSet::new(paths, 0.5).read().unwrap();
        let data = read(&paths);
        assert_eq!(data.row.0, b"hello world");
        let summary = TextSet::new(&paths, 0.5).summarise(&mut DigestCache::default()).unwrap();
        assert_eq!(summary, data.contents);
        assert_eq!((summary.splits.training, summary.splits.evaluation), (5, 6));

        // The same files elsewhere are the same data; other contents are not.
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("x.txt"), "hello ").unwrap();
        fs::write(copy.path().join("y.txt"), "world").unwrap();
        assert_eq!(read(&[copy.path().join("*")]).contents, data.contents);
        fs::write(copy.path().join("y.txt"), "World").unwrap();
        assert_ne!(read(&[copy.path().join("*")]).contents.digest, data.contents.digest);
    }

    #[test]
    fn empty_files_are_no_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        fs::write(&path, "").unwrap();
        let data = TextSet::new(&[path], 0.9);
        assert!(matches!(data.open(&mut DigestCache::default()), Err(DataError::Empty { files: 1 })));
        let error = data.inspect(&mut DigestCache::default()).unwrap_err();
        assert!(matches!(&error[..], [DataError::Empty { files: 1 }]));
    }

    #[test]
    fn a_byte_is_below_256_before_and_after_it_was_read() {
        let (set, data) = (TextSet::new(&[], 0.9), counting(100, 0.9));
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

    /// A model for pictures, one that has half as many targets, one that counts tokens in f32.
    #[test]
    fn a_model_that_asks_for_other_parts_is_told_both_sides() {
        let (set, data) = (TextSet::new(&[], 0.9), counting(100, 0.9));
        let check = |parts: Vec<Part>| {
            set.check(data.contents(), &Sample { parts, length: None, tokens: None }, true)
        };
        assert!(check(sample(8).parts).is_ok());

        let tokens = sample(8).parts[0];
        let image = Part { name: "image", ty: TensorType::f32(&[28, 28]), below: None };
        let error = check(vec![tokens, image]).unwrap_err();
        let expected = "the model asks for `image`, which data.text does not have: its samples have `tokens` and \
                        `targets`";
        assert_eq!((error.to_string().as_str(), error.blame()), (expected, Blame::DataSet));

        let floats = Part { ty: TensorType::f32(&[8]), ..tokens };
        let error = check(vec![floats]).unwrap_err();
        let expected = "the model asks for `tokens` as f32[8], and data.text has it as i32[8]";
        assert_eq!((error.to_string().as_str(), error.blame()), (expected, Blame::DataSet));

        let square = Part { ty: TensorType::i32(&[4, 4]), ..tokens };
        assert!(matches!(check(vec![square]), Err(DataError::OtherType { .. })));
        let long = Part { ty: TensorType::i32(&[64]), ..tokens };
        let error = check(vec![long]).unwrap_err();
        let expected = "the evaluation split has 10 bytes; a sample needs at least 65";
        assert_eq!((error.to_string().as_str(), error.blame()), (expected, Blame::DataSet));
        assert_eq!(error.help(), "use more text");
    }
}
