//! Tokens from a Markov chain of known entropy, which is the lowest reachable loss.

use std::iter;
use std::ops::Range;
use std::path::PathBuf;

use super::row::{self, PARTS};
use super::{
    Batch, Contents, DataError, DataSet, DigestCache, FilledPart, KeyedCount, Part, PartRole, Sample, Source,
    TrainingStep, digest, sampling,
};

/// A Markov chain: each token has `successors` possible next tokens, with probabilities proportional to 1, 1/2, 1/3,
/// ...
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticSet {
    /// Size of the vocabulary.
    pub tokens: usize,
    /// Number of possible next tokens per token, at most `tokens`.
    pub successors: usize,
    pub seed: u64,
}

/// Independent sites of random draws.
#[derive(Clone, Copy)]
enum Site {
    Successors,
    Training,
    Evaluation,
}

impl Site {
    fn number(self) -> u64 {
        match self {
            Site::Successors => 0x7375_6363_6573_736f,
            Site::Training => 0x7472_6169_6e69_6e67,
            Site::Evaluation => 0x6576_616c_7561_7465,
        }
    }
}

#[derive(Debug)]
struct Chain {
    set: SyntheticSet,
    /// [tokens, successors]
    successors: Vec<u32>,
    /// Cumulative probabilities of the successors, times 2^64.
    bounds: Vec<u64>,
    contents: ChainContents,
}

/// The properties of the chain.
#[derive(Debug)]
struct ChainContents {
    digest: String,
    below: KeyedCount,
}

impl SyntheticSet {
    fn below(&self) -> KeyedCount {
        KeyedCount { key: "data.synthetic.tokens", count: self.tokens }
    }

    fn chain_contents(&self) -> ChainContents {
        let SyntheticSet { tokens, successors, seed } = self;
        let text = format!("a Markov chain of {tokens} tokens, {successors} successors, seed {seed}");
        ChainContents { digest: digest::combine(&[digest::of_bytes(text.as_bytes())]), below: self.below() }
    }

    /// The probabilities of the successors, in their order.
    fn shares(&self) -> impl Iterator<Item = f64> {
        let weights = |rank: usize| 1.0 / (rank + 1) as f64;
        let sum: f64 = (0..self.successors).map(weights).sum();
        (0..self.successors).map(move |rank| weights(rank) / sum)
    }

    fn chain(&self) -> Chain {
        let mut successors = Vec::with_capacity(self.tokens * self.successors);
        for token in 0..self.tokens as u64 {
            let begin = successors.len();
            let mut draws = (0..).map(|draw| self.draw(Site::Successors, [token, draw, 0]));
            while successors.len() < begin + self.successors {
                // Duplicates are drawn again, so that all successors differ.
                let next = sampling::scale(draws.next().expect("the draws are infinite"), self.tokens as u64);
                if !successors[begin..].contains(&(next as u32)) {
                    successors.push(next as u32);
                }
            }
        }
        let mut sum = 0.0;
        let bounds = self.shares().map(|share| {
            sum += share;
            (sum * 2f64.powi(64)) as u64
        });
        let bounds = bounds.collect();
        Chain { successors, bounds, contents: self.chain_contents(), set: self.clone() }
    }

    fn draw(&self, site: Site, [a, b, c]: [u64; 3]) -> u64 {
        sampling::draw(sampling::draw(self.seed, site.number(), a, b), site.number(), c, 0)
    }
}

impl Chain {
    /// Fills one part of the samples with chains; `draw(sample, position)` decides each token.
    fn fill(&self, filled: &mut FilledPart, samples: Range<u64>, draw: impl Fn(u64, u64) -> u64) {
        let shift = row::places_later(filled.part.role);
        let shift = shift.expect("`check` accepted only parts of the chain");
        for (sample, mut tokens) in samples.zip(filled.ids_mut()) {
            let first = sampling::scale(draw(sample, 0), self.set.tokens as u64) as usize;
            let next = |&(token, position): &(usize, u64)| {
                Some((self.next_token(token, draw(sample, position + 1)), position + 1))
            };
            let chain = iter::successors(Some((first, 0)), next);
            tokens.put(chain.skip(shift).map(|(token, _)| token as u32));
        }
    }

    fn next_token(&self, token: usize, draw: u64) -> usize {
        // The last bound is rounded down, so a draw may exceed it.
        let rank = self.bounds.partition_point(|bound| *bound <= draw).min(self.bounds.len() - 1);
        self.successors[token * self.set.successors + rank] as usize
    }
}

impl DataSet for SyntheticSet {
    fn name(&self) -> &'static str {
        "synthetic"
    }

    fn paths(&self) -> &[PathBuf] {
        &[]
    }

    fn is_known_unread(&self) -> bool {
        true
    }

    fn has_epochs(&self) -> bool {
        false
    }

    fn below(&self, part: PartRole) -> Option<KeyedCount> {
        part.is_stored().then_some(SyntheticSet::below(self))
    }

    fn inspect(&self, _cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        Ok(Box::new(self.chain_contents()))
    }

    fn open(&self, _sample: &Sample, _cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(self.chain()))
    }

    /// The entropy of the next token, which is the same for every token.
    fn least_loss(&self) -> Option<f64> {
        Some(self.shares().map(|share| share * share.recip().ln()).sum())
    }
}

impl Contents for ChainContents {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    fn part(&self, requested: &Part) -> Option<Part> {
        row::slice(requested, self.below)
    }

    /// Never fails: the chain is infinite.
    fn check_size(&self, _sample: &Sample, _evaluates: bool) -> Result<(), DataError> {
        Ok(())
    }
}

impl Source for Chain {
    fn contents(&self) -> &dyn Contents {
        &self.contents
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        // The run's seed selects the samples; the chain's seed defines the chain.
        let step_draw = sampling::draw(step.seed, Site::Training.number(), step.number, 0);
        for filled in batch.parts_mut() {
            self.fill(filled, samples.clone(), |sample, position| {
                self.set.draw(Site::Training, [step_draw, sample, position])
            });
        }
        Ok(())
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        for filled in batch.parts_mut() {
            self.fill(filled, samples.clone(), |sample, position| {
                self.set.draw(Site::Evaluation, [0, sample, position])
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Order;

    const SET: SyntheticSet = SyntheticSet { tokens: 50, successors: 3, seed: 7 };

    fn parts(context: usize) -> Vec<Part> {
        row::parts(context, None).to_vec()
    }

    fn filled(context: usize, samples: usize, fill: impl Fn(&mut Batch)) -> [Vec<i32>; 2] {
        let mut batch = Batch::new(&parts(context), samples);
        fill(&mut batch);
        ["tokens", "targets"].map(|name| {
            let (numbers, _) = batch.part(name).unwrap().bytes.as_chunks();
            numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
        })
    }

    fn training(source: &dyn Source, [seed, step]: [u64; 2], samples: Range<u64>) -> [Vec<i32>; 2] {
        filled(64, samples.clone().count(), |batch| {
            source
                .fill_training(
                    &TrainingStep { seed, number: step, samples: 8, order: Order::Drawn },
                    samples.clone(),
                    batch,
                )
                .unwrap();
        })
    }

    #[test]
    fn sample_ranges_match_the_whole_step() {
        let source = SET.open(&Sample::NONE, &mut DigestCache::default()).unwrap();
        let [tokens, targets] = training(&*source, [3, 5], 0..8);
        assert!(
            tokens.chunks(64).zip(targets.chunks(64)).all(|(tokens, targets)| tokens[1..] == targets[..63])
        );
        assert!(tokens.iter().all(|token| (0..50).contains(token)));
        for range in [0..1, 2..5, 7..8] {
            let numbers = range.start as usize * 64..range.end as usize * 64;
            let [part, after] = training(&*source, [3, 5], range);
            assert_eq!((&part[..], &after[..]), (&tokens[numbers.clone()], &targets[numbers]));
        }
        for other in [[4, 5], [3, 6]] {
            assert_ne!(training(&*source, other, 0..8)[0], tokens);
        }
    }

    /// For training and evaluation samples, and for several chains.
    #[test]
    fn entropy_of_samples_matches_least_loss() {
        for (successors, expected) in [(1, 0.0), (2, 0.636_514), (3, 0.994_924)] {
            let set = SyntheticSet { successors, ..SET };
            assert!((set.least_loss().unwrap() - expected).abs() < 1e-5, "{successors}");
            let source = set.open(&Sample::NONE, &mut DigestCache::default()).unwrap();
            let evaluation = filled(1000, 100, |batch| source.fill_evaluation(100, 0..100, batch).unwrap());
            let of_training = filled(1000, 100, |batch| {
                source
                    .fill_training(
                        &TrainingStep { seed: 1, number: 2, samples: 100, order: Order::Drawn },
                        0..100,
                        batch,
                    )
                    .unwrap()
            });
            for [tokens, targets] in [evaluation, of_training] {
                let mut counts = vec![0.0; 50 * 50];
                for (token, target) in tokens.iter().zip(&targets) {
                    counts[*token as usize * 50 + *target as usize] += 1.0;
                }
                let entropy: f64 = counts
                    .chunks(50)
                    .map(|counts| {
                        let sum: f64 = counts.iter().sum();
                        let seen = counts.iter().filter(|count| **count > 0.0);
                        assert!(seen.clone().count() <= successors);
                        seen.map(|count| -count * (count / sum).ln()).sum::<f64>()
                    })
                    .sum();
                // 100,000 tokens estimate about a hundred probabilities: a bias of about a thousandth.
                assert!((entropy / tokens.len() as f64 - expected).abs() < 5e-3, "{successors}: {entropy}");
            }
        }
    }

    #[test]
    fn different_chains_have_different_digests() {
        let digest = |set: &SyntheticSet| {
            let contents = set.inspect(&mut DigestCache::default()).unwrap();
            let source = set.open(&Sample::NONE, &mut DigestCache::default()).unwrap();
            assert_eq!(contents.digest(), source.contents().digest());
            contents.digest().to_owned()
        };
        let others = [
            SyntheticSet { seed: 8, ..SET },
            SyntheticSet { tokens: 51, ..SET },
            SyntheticSet { successors: 4, ..SET },
        ];
        for other in &others {
            assert_ne!(digest(other), digest(&SET));
        }
    }
}
