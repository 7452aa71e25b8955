//! Samples that separate documents: one document per sample (padded), or several (packed).
//!
//! A document of n tokens gives n - 1 pairs of token and target, the next token. A document longer than a sample is cut
//! into several documents. The rest of a sample is padding: tokens 0 with targets -1.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::iter;
use std::ops::Range;

use super::row;
use super::slices::ReadTokens;
use super::{
    Batch, Contents, DataError, FilledPart, KeyedCount, Note, Part, PartRole, Sample, SampleLengths, Source,
    Split, TrainingStep,
};
use ops::TensorType;

/// How documents become samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Documents {
    /// All documents are concatenated; samples are slices of the whole.
    Joined,
    /// One document per sample, with padding.
    Padded,
    /// Several documents per sample, separated by a block-diagonal attention mask.
    Packed,
}

const PADDED: &[&str] = &["tokens", "targets", "weights"];
const PACKED: &[&str] = &["tokens", "targets", "weights", "starts"];

impl Documents {
    /// The parts of a sample beside tokens and targets, for samples of `context` = T tokens: `weights`, f32[], scales
    /// the loss of its targets so that the mean over all positions is the mean over the unmasked targets of the step
    /// (PyTorch: `ignore_index`); `starts`, i32[T], is
    /// the position where each token's document begins.
    pub fn parts(self, context: usize) -> Vec<Part> {
        let ty = TensorType::i32(&[context]);
        let starts = Part { role: PartRole::Position, name: "starts", ty, below: None };
        match self {
            Documents::Joined => Vec::new(),
            Documents::Padded => vec![row::weights()],
            Documents::Packed => vec![row::weights(), starts],
        }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Documents::Joined => &PACKED[..2],
            Documents::Padded => PADDED,
            Documents::Packed => PACKED,
        }
    }
}

/// The documents of a token row, without the tokens.
#[derive(Clone, Debug)]
pub(super) struct DocumentSet {
    pub(super) digest: String,
    /// All tokens are below this count.
    pub(super) below: KeyedCount,
    /// Padded or packed.
    pub(super) documents: Documents,
    /// End of each document in the row.
    pub(super) ends: Vec<u64>,
    /// The ranges of tokens that are no targets, in order.
    pub(super) masked: Vec<Range<u64>>,
    /// Number of documents in the training split, which comes first.
    pub(super) training: usize,
    pub(super) notes: Vec<Note>,
}

/// Documents arranged in samples of `context` tokens.
#[derive(Debug)]
pub(super) struct DocumentSamples<R> {
    row: R,
    contents: DocumentSet,
    context: usize,
    training: SampleLayout,
    evaluation: SampleLayout,
}

/// A slice of the token row, from one document.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DocumentSlice {
    first: usize,
    len: usize,
    /// Number of targets that are not masked; at least one.
    targets: usize,
}

/// The slices of each sample.
#[derive(Debug, Default, PartialEq)]
struct SampleLayout {
    /// In the order of samples.
    pieces: Vec<DocumentSlice>,
    /// End of each sample's slices in `pieces`.
    ends: Vec<usize>,
}

impl DocumentSet {
    /// The ranges of documents in the row.
    fn ranges(&self, documents: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let begin =
            move |document: usize| document.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        documents.map(move |document| begin(document)..self.ends[document] as usize)
    }

    /// The masked parts of a range of tokens.
    fn masked_within(&self, tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let first = self.masked.partition_point(|range| range.end as usize <= tokens.start);
        let overlapping =
            self.masked[first..].iter().take_while(move |range| (range.start as usize) < tokens.end);
        overlapping
            .map(move |range| (range.start as usize).max(tokens.start)..(range.end as usize).min(tokens.end))
    }

    /// Counts the documents without a sample: those of one token, and those of which all targets are masked.
    pub(super) fn left_out(&self) -> (usize, usize) {
        let (mut short, mut masked) = (0, 0);
        for document in self.ranges(0..self.ends.len()) {
            let targets = document.len() - 1;
            let hidden: usize =
                self.masked_within(document.start + 1..document.end).map(|range| range.len()).sum();
            short += usize::from(targets == 0);
            masked += usize::from(targets > 0 && hidden == targets);
        }
        (short, masked)
    }

    fn arrange(&self, documents: Range<usize>, context: usize) -> SampleLayout {
        let pieces = self.pieces(documents, context);
        match self.documents {
            Documents::Packed => SampleLayout::packed(pieces, context),
            _ => SampleLayout::of(pieces.map(|piece| vec![piece])),
        }
    }

    /// The parts of documents, of at most `context` tokens, that have a target which is not masked.
    fn pieces(&self, documents: Range<usize>, context: usize) -> impl Iterator<Item = DocumentSlice> {
        self.ranges(documents).flat_map(move |range| {
            let last = range.start.max(range.end.saturating_sub(1));
            (range.start..last)
                .step_by(context)
                .map(move |first| (first, context.min(last - first)))
                .map(|(first, len)| {
                    let masked = self.masked_within(first + 1..first + 1 + len).map(|range| range.len());
                    DocumentSlice { first, len, targets: len - masked.sum::<usize>() }
                })
                .filter(|piece| piece.targets > 0)
        })
    }
}

impl SampleLayout {
    fn of(samples: impl Iterator<Item = Vec<DocumentSlice>>) -> SampleLayout {
        let mut all = SampleLayout::default();
        for pieces in samples {
            all.pieces.extend(pieces);
            all.ends.push(all.pieces.len());
        }
        all
    }

    /// Best-fit packing in the order of pieces; of equally full samples, the first is taken.
    fn packed(pieces: impl Iterator<Item = DocumentSlice>, context: usize) -> SampleLayout {
        let mut samples: Vec<Vec<DocumentSlice>> = Vec::new();
        // (room, sample) of all samples with room.
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
        SampleLayout::of(samples.into_iter())
    }

    fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// The pieces of a sample; empty for a missing sample.
    fn pieces(&self, sample: Option<u64>) -> &[DocumentSlice] {
        let Some(sample) = sample.map(|sample| sample as usize) else { return &[] };
        let begin = sample.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[begin..self.ends[sample]]
    }

    /// The number of padding tokens of these samples.
    fn padding(&self, samples: impl Iterator<Item = Option<u64>>, context: usize) -> u64 {
        let filled = |sample| self.pieces(sample).iter().map(|piece| piece.len).sum::<usize>();
        samples.map(|sample| (context - filled(sample)) as u64).sum()
    }

    /// The loss weight per target: tokens over targets of these samples.
    fn weight(&self, samples: impl Iterator<Item = Option<u64>>, context: usize) -> f32 {
        let (mut tokens, mut targets) = (0, 0);
        for sample in samples {
            tokens += context;
            targets += self.pieces(sample).iter().map(|piece| piece.targets).sum::<usize>();
        }
        (tokens as f64 / targets as f64) as f32
    }
}

impl Contents for DocumentSet {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn samples(&self, sample: &Sample) -> u64 {
        self.arrange(0..self.training, context(sample)).count()
    }

    fn sample_lengths(&self, sample: &Sample) -> Option<SampleLengths> {
        let lengths = |documents: Range<usize>| {
            self.pieces(documents, context(sample)).map(|piece| piece.len as u32).collect()
        };
        (self.documents == Documents::Padded).then(|| SampleLengths {
            training: lengths(0..self.training),
            evaluation: lengths(self.training..self.ends.len()),
        })
    }

    fn first_documents(&self, sample: &Sample) -> Option<SampleLengths> {
        let lengths = |documents: Range<usize>| {
            let samples = self.arrange(documents, context(sample));
            let first = |number| samples.pieces(Some(number)).first().map_or(0, |piece| piece.len as u32);
            (0..samples.count()).map(first).collect()
        };
        (self.documents == Documents::Packed).then(|| SampleLengths {
            training: lengths(0..self.training),
            evaluation: lengths(self.training..self.ends.len()),
        })
    }

    fn parts(&self) -> &'static [&'static str] {
        self.documents.names()
    }

    fn part(&self, requested: &Part) -> Option<Part> {
        let added = || self.documents.parts(requested.ty.elements());
        let find = || added().into_iter().find(|part| part.role == requested.role);
        row::slice(requested, self.below).or_else(find)
    }

    /// A document needs two tokens to give a sample, and a target that is not masked.
    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        let too_few = |split| DataError::TooShort {
            split,
            found: 0,
            least: 1,
            unit: match self.masked.is_empty() {
                true => "document of two tokens or more",
                false => "document with a target that is not masked",
            },
            material: "documents",
            length: None,
            largest_split: None,
        };
        let is_empty = |documents| self.pieces(documents, context(sample)).next().is_none();
        if is_empty(0..self.training) {
            return Err(too_few(Split::Training));
        }
        if evaluates && is_empty(self.training..self.ends.len()) {
            return Err(too_few(Split::Evaluation));
        }
        Ok(())
    }
}

/// Tokens per sample.
fn context(sample: &Sample) -> usize {
    sample.parts.iter().map(|part| part.ty.elements()).max().unwrap_or(0).max(1)
}

impl<R: ReadTokens> DocumentSamples<R> {
    pub(super) fn new(row: R, contents: DocumentSet, sample: &Sample) -> DocumentSamples<R> {
        let context = context(sample);
        let training = contents.arrange(0..contents.training, context);
        let evaluation = contents.arrange(contents.training..contents.ends.len(), context);
        DocumentSamples { row, contents, context, training, evaluation }
    }

    /// Fills one part of these samples.
    fn fill<'a>(
        &'a self,
        filled: &mut FilledPart,
        weight: f32,
        samples: impl Iterator<Item = &'a [DocumentSlice]>,
    ) -> Result<(), DataError> {
        let role = filled.part.role;
        if role == PartRole::Weight {
            filled.fill_with(weight);
            return Ok(());
        }
        for (pieces, mut rest) in samples.zip(filled.ids_mut()) {
            let mut position = 0;
            for piece in pieces {
                let (mut numbers, remaining) = rest.split_at(piece.len);
                match role {
                    PartRole::Input => self.row.read(piece.first, numbers)?,
                    PartRole::Target => {
                        let first = piece.first + 1;
                        self.row.read(first, numbers.reborrow())?;
                        for masked in self.contents.masked_within(first..first + piece.len) {
                            numbers.mask(masked.start - first..masked.end - first);
                        }
                    }
                    _ => numbers.put(iter::repeat(position as u32)),
                }
                (rest, position) = (remaining, position + piece.len);
            }
            match role {
                PartRole::Input => rest.put(iter::repeat(0)),
                PartRole::Target => {
                    let all = 0..rest.len();
                    rest.mask(all);
                }
                _ => rest.put(iter::repeat(position as u32)),
            }
        }
        Ok(())
    }
}

impl<R: ReadTokens> Source for DocumentSamples<R> {
    fn contents(&self) -> &dyn Contents {
        &self.contents
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let index = |sample| step.sample_index(sample, self.training.count());
        let weight = self.training.weight((0..step.samples).map(index), self.context);
        batch.set_padding(self.training.padding(samples.clone().map(index), self.context));
        batch.parts_mut().iter_mut().try_for_each(|filled| {
            self.fill(filled, weight, samples.clone().map(|sample| self.training.pieces(index(sample))))
        })
    }

    fn fill_evaluation(&self, of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        let index = |sample| Some(sample % self.evaluation.count());
        let weight = self.evaluation.weight((0..of).map(index), self.context);
        batch.parts_mut().iter_mut().try_for_each(|filled| {
            self.fill(filled, weight, samples.clone().map(|sample| self.evaluation.pieces(index(sample))))
        })
    }
}

#[cfg(test)]
mod tests;
