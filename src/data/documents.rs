//! Samples that keep documents apart: each has one, or as many as there is room for.
//!
//! Of a document of n tokens, n - 1 are seen, each with what follows it as its target; of one that is longer than a sample,
//! parts are, each as a document of its own. What is left of a sample is padding: tokens of 0 whose targets are -1.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::iter;
use std::ops::Range;

use super::row::{WEIGHTS, weights};
use super::stretches::Row;
use super::{Batch, Contents, DataError, Filled, Given, Part, Sample, Source, Split, TrainingStep};
use ops::TensorType;

/// How documents become samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Documents {
    /// Samples are stretches of all of them, one after the other.
    Joined,
    /// A sample has one.
    Padded,
    /// A sample has several, which see nothing of each other.
    Packed,
}

const PADDED: &[&str] = &["tokens", "targets", "weights"];
const PACKED: &[&str] = &["tokens", "targets", "weights", "starts"];

impl Documents {
    /// What a sample of so many tokens has beside them and their targets: what its targets count for, f32[], so that all of
    /// a step's count for as much as all tokens would; and of each token where its document begins, i32[T].
    pub fn parts(self, context: usize) -> Vec<Part> {
        let names = &self.names()[2..];
        let starts = |name| Part { name, ty: TensorType::i32(&[context]), below: None };
        names.iter().map(|&name| if name == WEIGHTS { weights() } else { starts(name) }).collect()
    }

    /// Whether some of a part may be masked: what nothing is told from.
    pub fn mask(self, part: &str) -> bool {
        self != Documents::Joined && part == "targets"
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Documents::Joined => &PACKED[..2],
            Documents::Padded => PADDED,
            Documents::Packed => PACKED,
        }
    }
}

/// What is known of documents that lie in a row.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) digest: String,
    /// What their tokens are all below.
    pub(super) below: Given,
    /// Never joined.
    pub(super) documents: Documents,
    /// Where each ends.
    pub(super) ends: Vec<u64>,
    /// How many of them, from the front, are trained on.
    pub(super) training: usize,
}

/// Documents in samples of one length.
#[derive(Debug)]
pub(super) struct Arranged<R> {
    row: R,
    contents: Described,
    context: usize,
    training: Samples,
    evaluation: Samples,
}

/// A stretch of the row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    first: usize,
    len: usize,
}

/// What samples are made of.
#[derive(Debug, Default, PartialEq)]
struct Samples {
    /// Sample after sample.
    pieces: Vec<Piece>,
    /// Where the pieces of each sample end.
    ends: Vec<usize>,
}

impl Described {
    /// Of some documents: the row's places of each.
    fn places(&self, documents: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let begin =
            move |document: usize| document.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        documents.map(move |document| begin(document)..self.ends[document] as usize)
    }

    /// Those from which there is something to learn.
    fn counted(&self, documents: Range<usize>) -> usize {
        self.places(documents).filter(|places| places.len() > 1).count()
    }

    fn arranged(&self, documents: Range<usize>, context: usize) -> Samples {
        let pieces = self.places(documents).flat_map(|places| {
            let last = places.start.max(places.end.saturating_sub(1));
            (places.start..last)
                .step_by(context)
                .map(move |first| Piece { first, len: context.min(last - first) })
        });
        match self.documents {
            Documents::Packed => Samples::packed(pieces, context),
            _ => Samples::of(pieces.map(|piece| vec![piece])),
        }
    }
}

impl Samples {
    fn of(samples: impl Iterator<Item = Vec<Piece>>) -> Samples {
        let mut all = Samples::default();
        for pieces in samples {
            all.pieces.extend(pieces);
            all.ends.push(all.pieces.len());
        }
        all
    }

    /// Each piece where it leaves the least room, as they come; of samples with as much, in the first.
    fn packed(pieces: impl Iterator<Item = Piece>, context: usize) -> Samples {
        let mut samples: Vec<Vec<Piece>> = Vec::new();
        // With the room that there is in each, if there is any.
        let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
        for piece in pieces {
            let tightest = open.range((piece.len, 0)..).next().copied();
            let (room, sample) = tightest.unwrap_or_else(|| {
                samples.push(Vec::new());
                (context, samples.len() - 1)
            });
            open.remove(&(room, sample));
            samples[sample].push(piece);
            if room > piece.len {
                open.insert((room - piece.len, sample));
            }
        }
        Samples::of(samples.into_iter())
    }

    fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// None of one that is missing.
    fn pieces(&self, sample: Option<u64>) -> &[Piece] {
        let Some(sample) = sample.map(|sample| sample as usize) else { return &[] };
        let begin = sample.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[begin..self.ends[sample]]
    }

    /// What each target counts for if all of these samples together are to count for as many as there are tokens.
    fn weight(&self, samples: impl Iterator<Item = Option<u64>>, context: usize) -> f32 {
        let (mut tokens, mut targets) = (0, 0);
        for sample in samples {
            tokens += context;
            targets += self.pieces(sample).iter().map(|piece| piece.len).sum::<usize>();
        }
        (tokens as f64 / targets as f64) as f32
    }
}

impl Contents for Described {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn samples(&self, sample: &Sample) -> u64 {
        self.arranged(0..self.training, context(sample)).count()
    }

    fn parts(&self) -> &'static [&'static str] {
        self.documents.names()
    }

    fn part(&self, asked: &Part) -> Option<Part> {
        let tokens = TensorType::i32(&[asked.ty.elements()]);
        let known = match asked.name {
            name @ ("tokens" | "targets") => Part { name, ty: tokens, below: Some(self.below) },
            name => self.documents.parts(asked.ty.elements()).into_iter().find(|part| part.name == name)?,
        };
        Some(known)
    }

    /// A document has a sample if there are two tokens of it.
    fn check_size(&self, _sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        let too_few = |split| DataError::TooShort {
            split,
            found: 0,
            least: 1,
            unit: "document of two tokens or more",
            material: "documents",
            length: None,
            largest_split: None,
        };
        if self.counted(0..self.training) == 0 {
            return Err(too_few(Split::Training));
        }
        if evaluates && self.counted(self.training..self.ends.len()) == 0 {
            return Err(too_few(Split::Evaluation));
        }
        Ok(())
    }
}

/// Tokens of a sample.
fn context(sample: &Sample) -> usize {
    sample.parts.iter().map(|part| part.ty.elements()).max().unwrap_or(0).max(1)
}

impl<R: Row> Arranged<R> {
    pub(super) fn new(row: R, contents: Described, sample: &Sample) -> Arranged<R> {
        let context = context(sample);
        let training = contents.arranged(0..contents.training, context);
        let evaluation = contents.arranged(contents.training..contents.ends.len(), context);
        Arranged { row, contents, context, training, evaluation }
    }

    /// A part of each of these samples.
    fn fill<'a>(
        &'a self,
        filled: &mut Filled,
        weight: f32,
        samples: impl Iterator<Item = &'a [Piece]>,
    ) -> Result<(), DataError> {
        let name = filled.part.name;
        if name == WEIGHTS {
            filled.fill_with(weight);
            return Ok(());
        }
        for (pieces, mut rest) in samples.zip(filled.ids_mut()) {
            let mut place = 0;
            for piece in pieces {
                let (mut numbers, later) = rest.split_at(piece.len);
                match name {
                    "tokens" => self.row.read(piece.first, numbers)?,
                    "targets" => self.row.read(piece.first + 1, numbers)?,
                    _ => numbers.put(iter::repeat(place as u32)),
                }
                (rest, place) = (later, place + piece.len);
            }
            match name {
                "tokens" => rest.put(iter::repeat(0)),
                "targets" => rest.mask(),
                _ => rest.put(iter::repeat(place as u32)),
            }
        }
        Ok(())
    }
}

impl<R: Row> Source for Arranged<R> {
    fn contents(&self) -> &dyn Contents {
        &self.contents
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let chosen = |sample| step.chosen(sample, self.training.count());
        let weight = self.training.weight((0..step.samples).map(chosen), self.context);
        batch.parts_mut().iter_mut().try_for_each(|filled| {
            self.fill(filled, weight, samples.clone().map(|sample| self.training.pieces(chosen(sample))))
        })
    }

    fn fill_evaluation(&self, of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        let kept = |sample| Some(sample % self.evaluation.count());
        let weight = self.evaluation.weight((0..of).map(kept), self.context);
        batch.parts_mut().iter_mut().try_for_each(|filled| {
            self.fill(filled, weight, samples.clone().map(|sample| self.evaluation.pieces(kept(sample))))
        })
    }
}

#[cfg(test)]
mod tests;
