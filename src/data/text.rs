//! Text whose bytes are its tokens.
//!
//! A sample is a stretch of T tokens (the context), as `tokens`, and as `targets` what follows each of them.

use std::ops::Range;
use std::path::PathBuf;

use super::{
    Batch, Contents, DataError, DataSet, DigestCache, Filled, Given, Part, Sample, Source, Split, digest,
    files, sampling,
};
use crate::ops::TensorType;
use crate::regular;
use crate::units::Bytes;

/// The parts of a sample. Of number n, all tokens lie n places later in the text than those of number 0.
const PARTS: &[&str] = &["tokens", "targets"];

/// What a byte can be.
const BYTES: Given = Given { key: "data.text.tokens", count: 256 };

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
struct Text {
    text: Vec<u8>,
    contents: Summary,
}

/// What is known of text without keeping it.
#[derive(Clone, Debug, PartialEq)]
struct Summary {
    digest: String,
    splits: Splits,
}

/// Bytes to train on, from the front, and to evaluate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Splits {
    training: usize,
    evaluation: usize,
}

impl Splits {
    /// # Errors
    ///
    /// A share that is none.
    fn of(bytes: usize, split: f64) -> Result<Splits, DataError> {
        if !(split > 0.0 && split <= 1.0) {
            return Err(DataError::BadSplit { split });
        }
        let training = ((bytes as f64 * split) as usize).min(bytes);
        Ok(Splits { training, evaluation: bytes - training })
    }

    /// Whether a sample fits: it needs one byte more than its length, the last target.
    fn check(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        let context = context(sample.parts.iter());
        let too_short = |split: Split, bytes: usize, largest_split: Option<f64>| DataError::TooShort {
            split,
            found: bytes as u64,
            least: context as u64 + 1,
            unit: "byte",
            material: "text",
            length: sample.length,
            largest_split,
        };
        if self.training <= context {
            return Err(too_short(Split::Training, self.training, None));
        }
        if evaluates && self.evaluation <= context {
            return Err(too_short(Split::Evaluation, self.evaluation, self.largest_split(context)));
        }
        Ok(())
    }

    fn largest_split(&self, context: usize) -> Option<f64> {
        let total = self.training + self.evaluation;
        let fits = |hundredths: &usize| {
            let split = Splits::of(total, *hundredths as f64 / 100.0);
            split.is_ok_and(|split| split.training > context && split.evaluation > context)
        };
        (1..100).rev().find(fits).map(|hundredths| hundredths as f64 / 100.0)
    }
}

impl TextSet {
    pub fn new(paths: &[PathBuf], split: f64) -> TextSet {
        TextSet { paths: paths.to_vec(), split }
    }

    fn read(&self) -> Result<Text, DataError> {
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
        let splits = Splits::of(text.len(), self.split)?;
        Ok(Text { text, contents: Summary { digest: digest::combine(&digests), splits } })
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
        let splits = Splits::of(bytes as usize, self.split).map_err(|error| vec![error])?;
        Ok(Summary { digest: digest::combine(&digests), splits })
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

    fn open(&self) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(self.read()?))
    }
}

impl Contents for Summary {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    /// Tokens in a row, as many as are asked for.
    fn part(&self, asked: &Part) -> Option<Part> {
        let ty = TensorType::i32(&[asked.ty.elements()]);
        PARTS.contains(&asked.name).then_some(Part { name: asked.name, ty, below: Some(BYTES) })
    }

    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        self.splits.check(sample, evaluates)
    }
}

/// Places in the text that a sample takes, the last target apart.
fn context<'a>(parts: impl Iterator<Item = &'a Part>) -> usize {
    parts.map(|part| part.ty.elements()).max().unwrap_or(0)
}

impl Source for Text {
    fn contents(&self) -> &dyn Contents {
        &self.contents
    }

    fn fill_training(&self, seed: u64, step: u64, samples: Range<u64>, batch: &mut Batch) {
        let split = &self.text[..self.contents.splits.training];
        let starts = (split.len() - context(batch.parts().iter().map(|filled| &filled.part))) as u64;
        for filled in batch.parts_mut() {
            fill(filled, split, samples.clone(), |sample| {
                sampling::start(seed, step, sample, starts) as usize
            });
        }
    }

    /// Windows one after the other without overlap.
    fn fill_evaluation(&self, samples: Range<u64>, batch: &mut Batch) {
        let split = &self.text[self.contents.splits.training..];
        let context = context(batch.parts().iter().map(|filled| &filled.part));
        let windows = ((split.len() - 1) / context) as u64;
        for filled in batch.parts_mut() {
            fill(filled, split, samples.clone(), |sample| (sample % windows) as usize * context);
        }
    }
}

/// Copies a part of each sample, which begins where `start` says.
fn fill(filled: &mut Filled, split: &[u8], samples: Range<u64>, start: impl Fn(u64) -> usize) {
    let later = PARTS.iter().position(|name| *name == filled.part.name).expect("checked: a part there is");
    for (sample, memory) in samples.zip(filled.samples_mut()) {
        let (tokens, _) = memory.as_chunks_mut();
        for (token, byte) in tokens.iter_mut().zip(&split[start(sample) + later..]) {
            *token = i32::from(*byte).to_ne_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::data::Blame;

    /// Text in which every byte says where it is.
    fn counting(bytes: u8, split: f64) -> Text {
        let text: Vec<u8> = (0..bytes).collect();
        let splits = Splits::of(text.len(), split).unwrap();
        Text { text, contents: Summary { digest: String::new(), splits } }
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

    fn training(data: &Text, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
        filled((samples.end - samples.start) as usize, context, |batch| {
            data.fill_training(3, 5, samples, batch);
        })
    }

    fn evaluation(data: &Text, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
        filled((samples.end - samples.start) as usize, context, |batch| {
            data.fill_evaluation(samples, batch);
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
        let splits = Splits::of(1000, 0.95).unwrap();
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
        assert!(Splits::of(1000, 0.93).unwrap().check(&sample(64), true).is_ok());

        let error = Splits::of(1000, 0.9).unwrap().check(&sample(600), true).unwrap_err();
        assert!(matches!(error, DataError::TooShort { split: Split::Evaluation, largest_split: None, .. }));
        assert_eq!(error.blame(), Blame::Key("context"));
    }

    #[test]
    fn splits_are_shares() {
        assert_eq!(Splits::of(10, 1.0).unwrap(), Splits { training: 10, evaluation: 0 });
        for split in [0.0, -0.5, 1.5, f64::NAN] {
            assert!(matches!(Splits::of(10, split), Err(DataError::BadSplit { .. })));
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
        assert_eq!(data.text, b"hello world");
        let summary = TextSet::new(&paths, 0.5).summarise(&mut DigestCache::default()).unwrap();
        assert_eq!(summary, data.contents);
        assert_eq!(summary.splits, Splits { training: 5, evaluation: 6 });

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
        assert!(matches!(data.open(), Err(DataError::Empty { files: 1 })));
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
