//! Text whose bytes are its tokens.
//!
//! B sequences in a batch, T positions in a sequence (the context).

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use super::{DataError, DigestCache, digest, files, sampling};

/// Files of text in the order of their sorted paths, one after the other, in memory.
#[derive(Debug)]
pub struct TextFiles {
    text: Vec<u8>,
    splits: Splits,
    digest: String,
}

/// What the planner must know of text, without keeping it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub digest: String,
    pub splits: Splits,
}

/// Bytes to train on, from the front, and to evaluate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splits {
    pub training: usize,
    pub evaluation: usize,
}

impl Splits {
    /// # Errors
    ///
    /// A share that is none.
    pub fn of(bytes: usize, split: f64) -> Result<Splits, DataError> {
        if !(split > 0.0 && split <= 1.0) {
            return Err(DataError::BadSplit { split });
        }
        let training = ((bytes as f64 * split) as usize).min(bytes);
        Ok(Splits { training, evaluation: bytes - training })
    }

    /// Whether sequences of a context fit: each needs one byte more than its length, the last target.
    pub fn check(&self, context: usize, evaluates: bool) -> Result<(), DataError> {
        if self.training <= context {
            return Err(DataError::TrainingTooShort { bytes: self.training as u64, context });
        }
        if evaluates && self.evaluation <= context {
            return Err(DataError::EvaluationTooShort {
                bytes: self.evaluation as u64,
                context,
                largest_split: self.largest_split(context),
            });
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

impl TextFiles {
    /// Reads all files that the absolute paths and globs name.
    ///
    /// # Errors
    ///
    /// No match, unreadable files, no text at all.
    pub fn open(paths: &[PathBuf], split: f64) -> Result<TextFiles, DataError> {
        let files = files::find(paths)?;
        let mut text = Vec::new();
        let mut digests = Vec::with_capacity(files.len());
        for path in &files {
            let contents =
                fs::read(path).map_err(|error| DataError::Unreadable { path: path.clone(), error })?;
            digests.push(digest::of_bytes(&contents));
            text.extend_from_slice(&contents);
        }
        if text.is_empty() {
            return Err(DataError::Empty { files: files.len() });
        }
        let splits = Splits::of(text.len(), split)?;
        Ok(TextFiles { text, splits, digest: digest::combine(&digests) })
    }

    /// Looks at the files without keeping them; what was digested before is not read again.
    ///
    /// # Errors
    ///
    /// As [`TextFiles::open`].
    pub fn inspect(paths: &[PathBuf], split: f64, cache: &mut DigestCache) -> Result<Summary, DataError> {
        let files = files::find(paths)?;
        let mut digests = Vec::with_capacity(files.len());
        for path in &files {
            let digest =
                cache.of_file(path).map_err(|error| DataError::Unreadable { path: path.clone(), error })?;
            digests.push(digest);
        }
        let bytes: u64 = digests.iter().map(|digest| digest.bytes).sum();
        if bytes == 0 {
            return Err(DataError::Empty { files: files.len() });
        }
        Ok(Summary { digest: digest::combine(&digests), splits: Splits::of(bytes as usize, split)? })
    }

    /// Names the data: equal to what [`TextFiles::inspect`] finds.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn splits(&self) -> Splits {
        self.splits
    }

    /// Fills in samples of a training step, one row of `context` tokens for each of `samples`; the targets
    /// (B, T) are the tokens (B, T) one position later. Each sample is a pure function of seed, step and its
    /// number within the step.
    ///
    /// The training split is longer than `context`, which [`Splits::check`] sees to.
    pub fn training_batch(
        &self,
        seed: u64,
        step: u64,
        samples: Range<u64>,
        context: usize,
        tokens: &mut [i32],
        targets: &mut [i32],
    ) {
        let split = &self.text[..self.splits.training];
        let starts = (split.len() - context) as u64;
        for ((sample, tokens), targets) in
            samples.zip(tokens.chunks_exact_mut(context)).zip(targets.chunks_exact_mut(context))
        {
            window(split, sampling::start(seed, step, sample, starts) as usize, tokens, targets);
        }
    }

    /// Fills in batch number `index` of the evaluation split: its windows one after the other without overlap,
    /// from the front again after the last. As many as fit `tokens` (B, T).
    ///
    /// The evaluation split is longer than `context`, which [`Splits::check`] sees to.
    pub fn evaluation_batch(&self, index: u64, context: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let split = &self.text[self.splits.training..];
        let windows = ((split.len() - 1) / context) as u64;
        let first = index * (tokens.len() / context) as u64;
        for ((number, tokens), targets) in
            (first..).zip(tokens.chunks_exact_mut(context)).zip(targets.chunks_exact_mut(context))
        {
            window(split, (number % windows) as usize * context, tokens, targets);
        }
    }
}

/// Copies `tokens.len()` bytes from `start`, and those one later.
fn window(split: &[u8], start: usize, tokens: &mut [i32], targets: &mut [i32]) {
    let bytes = &split[start..=start + tokens.len()];
    for (token, byte) in tokens.iter_mut().zip(bytes) {
        *token = i32::from(*byte);
    }
    for (target, byte) in targets.iter_mut().zip(&bytes[1..]) {
        *target = i32::from(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text in which every byte says where it is.
    fn counting(bytes: u8, split: f64) -> TextFiles {
        let text: Vec<u8> = (0..bytes).collect();
        let splits = Splits::of(text.len(), split).unwrap();
        TextFiles { text, splits, digest: String::new() }
    }

    fn training(data: &TextFiles, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
        let size = (samples.end - samples.start) as usize * context;
        let (mut tokens, mut targets) = (vec![-1; size], vec![-1; size]);
        data.training_batch(3, 5, samples, context, &mut tokens, &mut targets);
        (tokens, targets)
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let data = counting(100, 0.9);
        let (tokens, targets) = training(&data, 0..50, 8);
        assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
        assert!(targets.iter().all(|target| (1..90).contains(target)));
    }

    #[test]
    fn micro_batches_draw_what_the_batch_draws() {
        let data = counting(200, 1.0);
        let whole = training(&data, 0..8, 16);
        let mut parts = (Vec::new(), Vec::new());
        for first in [0, 2, 4, 6] {
            let (tokens, targets) = training(&data, first..first + 2, 16);
            parts.0.extend(tokens);
            parts.1.extend(targets);
        }
        assert_eq!(whole, parts);
    }

    #[test]
    fn the_shortest_text_has_one_sample() {
        let data = counting(9, 1.0);
        assert!(data.splits().check(8, false).is_ok());
        assert_eq!(training(&data, 0..1, 8).0, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(matches!(
            data.splits().check(9, false),
            Err(DataError::TrainingTooShort { bytes: 9, context: 9 })
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
        let batch = |index| {
            let (mut tokens, mut targets) = (vec![0; 12], vec![0; 12]);
            data.evaluation_batch(index, 6, &mut tokens, &mut targets);
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
        let error = splits.check(64, true).unwrap_err();
        assert!(
            matches!(error, DataError::EvaluationTooShort { bytes: 50, largest_split: Some(0.93), .. }),
            "{error:?}"
        );
        assert_eq!(error.key(), "data.text.split");
        assert!(splits.check(64, false).is_ok());
        assert!(Splits::of(1000, 0.93).unwrap().check(64, true).is_ok());

        let error = Splits::of(1000, 0.9).unwrap().check(600, true).unwrap_err();
        assert!(matches!(error, DataError::EvaluationTooShort { largest_split: None, .. }));
        assert_eq!(error.key(), "context");
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
        let data = TextFiles::open(&paths, 0.5).unwrap();
        assert_eq!(data.text, b"hello world");
        let summary = TextFiles::inspect(&paths, 0.5, &mut DigestCache::default()).unwrap();
        assert_eq!(summary.digest, data.digest());
        assert_eq!(summary.splits, data.splits());
        assert_eq!(summary.splits, Splits { training: 5, evaluation: 6 });

        // The same files elsewhere are the same data; other contents are not.
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("x.txt"), "hello ").unwrap();
        fs::write(copy.path().join("y.txt"), "world").unwrap();
        assert_eq!(TextFiles::open(&[copy.path().join("*")], 0.5).unwrap().digest(), data.digest());
        fs::write(copy.path().join("y.txt"), "World").unwrap();
        assert_ne!(TextFiles::open(&[copy.path().join("*")], 0.5).unwrap().digest(), data.digest());
    }

    #[test]
    fn empty_files_are_no_data() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("empty")];
        fs::write(&paths[0], "").unwrap();
        assert!(matches!(TextFiles::open(&paths, 0.9), Err(DataError::Empty { files: 1 })));
        let error = TextFiles::inspect(&paths, 0.9, &mut DigestCache::default()).unwrap_err();
        assert!(matches!(error, DataError::Empty { files: 1 }));
    }
}
