//! Tokens that a Markov chain makes: how much of them is chance is known, so that a loss has a floor to reach.

use std::iter;
use std::ops::Range;
use std::path::PathBuf;

use super::stretches::PARTS;
use super::{
    Batch, Contents, DataError, DataSet, DigestCache, Filled, Given, Part, Sample, Source, TrainingStep,
    digest, sampling,
};
use ops::TensorType;

/// What each token is followed by: one of as many others, the first of them twice as often as the second, three times as
/// often as the third, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticSet {
    /// How many tokens there are.
    pub tokens: usize,
    /// Of each of them; no more than there are tokens.
    pub successors: usize,
    pub seed: u64,
}

/// Draws that have nothing to do with each other.
#[derive(Clone, Copy)]
enum Of {
    Successors,
    Training,
    Evaluation,
}

impl Of {
    fn site(self) -> u64 {
        match self {
            Of::Successors => 0x7375_6363_6573_736f,
            Of::Training => 0x7472_6169_6e69_6e67,
            Of::Evaluation => 0x6576_616c_7561_7465,
        }
    }
}

/// The chain.
#[derive(Debug)]
struct Chain {
    set: SyntheticSet,
    /// Of each token.
    successors: Vec<u32>,
    /// The share of draws, of 2^64, that are below the end of each successor.
    bounds: Vec<u64>,
    contents: Described,
}

/// What is known of it unmade.
#[derive(Debug)]
struct Described {
    digest: String,
    below: Given,
}

impl SyntheticSet {
    fn below(&self) -> Given {
        Given { key: "data.synthetic.tokens", count: self.tokens }
    }

    fn described(&self) -> Described {
        let SyntheticSet { tokens, successors, seed } = self;
        let text = format!("a Markov chain of {tokens} tokens, {successors} successors, seed {seed}");
        Described { digest: digest::combine(&[digest::of_bytes(text.as_bytes())]), below: self.below() }
    }

    /// How often each successor comes, in their order.
    fn shares(&self) -> impl Iterator<Item = f64> {
        let weights = |rank: usize| 1.0 / (rank + 1) as f64;
        let sum: f64 = (0..self.successors).map(weights).sum();
        (0..self.successors).map(move |rank| weights(rank) / sum)
    }

    fn chain(&self) -> Chain {
        let mut successors = Vec::with_capacity(self.tokens * self.successors);
        for token in 0..self.tokens as u64 {
            let begin = successors.len();
            let mut draws = (0..).map(|draw| self.draw(Of::Successors, [token, draw, 0]));
            while successors.len() < begin + self.successors {
                // One that is there already is drawn again, so that all are others.
                let next =
                    sampling::part_of(draws.next().expect("there is no end of draws"), self.tokens as u64);
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
        Chain { successors, bounds, contents: self.described(), set: self.clone() }
    }

    fn draw(&self, of: Of, [a, b, c]: [u64; 3]) -> u64 {
        sampling::draw(sampling::draw(self.seed, of.site(), a, b), of.site(), c, 0)
    }
}

impl Chain {
    /// The part of each sample of a chain that `draw` decides, place by place.
    fn fill(&self, filled: &mut Filled, samples: Range<u64>, draw: impl Fn(u64, u64) -> u64) {
        let later = PARTS.iter().position(|name| *name == filled.part.name);
        let later = later.expect("checked: a part there is");
        for (sample, mut tokens) in samples.zip(filled.ids_mut()) {
            let first = sampling::part_of(draw(sample, 0), self.set.tokens as u64) as usize;
            let after = |&(token, place): &(usize, u64)| {
                Some((self.after(token, draw(sample, place + 1)), place + 1))
            };
            let chain = iter::successors(Some((first, 0)), after);
            tokens.put(chain.skip(later).map(|(token, _)| token as u32));
        }
    }

    fn after(&self, token: usize, draw: u64) -> usize {
        // Rounded down, the last bound may be less than a draw.
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

    fn below(&self, part: &str) -> Option<Given> {
        PARTS.contains(&part).then_some(SyntheticSet::below(self))
    }

    fn inspect(&self, _cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        Ok(Box::new(self.described()))
    }

    fn open(&self, _sample: &Sample, _cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(self.chain()))
    }

    /// The entropy of what follows a token, which is the same of each: a chain remembers no more.
    fn least_loss(&self) -> Option<f64> {
        Some(self.shares().map(|share| share * share.recip().ln()).sum())
    }
}

impl Contents for Described {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    fn part(&self, asked: &Part) -> Option<Part> {
        let ty = TensorType::i32(&[asked.ty.elements()]);
        PARTS.contains(&asked.name).then_some(Part { name: asked.name, ty, below: Some(self.below) })
    }

    /// There is no end of it.
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
        // The run's seed decides which samples there are, the chain's what they are made by.
        let of_step = sampling::draw(step.seed, Of::Training.site(), step.number, 0);
        for filled in batch.parts_mut() {
            self.fill(filled, samples.clone(), |sample, place| {
                self.set.draw(Of::Training, [of_step, sample, place])
            });
        }
        Ok(())
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        for filled in batch.parts_mut() {
            self.fill(filled, samples.clone(), |sample, place| {
                self.set.draw(Of::Evaluation, [0, sample, place])
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
        let part = |name| Part { name, ty: TensorType::i32(&[context]), below: None };
        vec![part("tokens"), part("targets")]
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
    fn any_range_of_samples_is_what_it_is_in_the_whole() {
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

    /// What comes after a token, counted, has the entropy that is said, in training and in evaluation, and each of the chains
    /// another.
    #[test]
    fn so_much_of_it_is_chance_as_is_said() {
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
                        let there = counts.iter().filter(|count| **count > 0.0);
                        assert!(there.clone().count() <= successors);
                        there.map(|count| -count * (count / sum).ln()).sum::<f64>()
                    })
                    .sum();
                // Of 100,000 tokens, a hundred numbers were fitted, which is a thousandth at the most.
                assert!((entropy / tokens.len() as f64 - expected).abs() < 5e-3, "{successors}: {entropy}");
            }
        }
    }

    #[test]
    fn another_chain_has_another_digest() {
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
