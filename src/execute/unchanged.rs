//! How much of what a run trains stays as it is: what a step changes by less than half of a last place is lost where parameters
//! are stored in 16 bits, rounded to the nearest, and nothing keeps what was rounded off.

use std::ops::Range;

use super::engine::Engine;
use compile::Program;
use memory::Failure;
use ops::{DType, Member, Rounding, ValueId, WeightFormat};

/// What is looked at of each tensor: so many pieces of so many numbers, in equal distances, for rows of a weight may differ.
const PIECES: usize = 8;
const PIECE: usize = 32;

/// What a run trains, compared with what it was after the first step.
pub(super) struct Unchanged {
    rounded: Option<Rounded>,
    first: Option<First>,
}

/// A moment of a run.
struct First {
    sample: Vec<u8>,
    skipped_steps: u64,
}

impl Unchanged {
    pub(super) fn of(program: &Program) -> Unchanged {
        Unchanged { rounded: Rounded::of(program), first: None }
    }

    /// To be called after the first step.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) fn first_step_is_done(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        if let Some(rounded) = &self.rounded {
            let skipped_steps = engine.counts().skipped_steps;
            self.first = Some(First { sample: rounded.read(engine)?, skipped_steps });
        }
        Ok(())
    }

    /// The share of what is trained that is the same after so many steps. None where no update rounds, or none was made:
    /// of steps that were left out something else is to be said.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) fn share_since_first_step(
        &self,
        engine: &mut Engine,
        steps: u64,
    ) -> Result<Option<f64>, Failure> {
        let (Some(rounded), Some(first)) = (&self.rounded, &self.first) else { return Ok(None) };
        let skipped = engine.counts().skipped_steps - first.skipped_steps;
        if steps - 1 <= skipped {
            return Ok(None);
        }
        Ok(Some(rounded.share_of_same(&first.sample, &rounded.read(engine)?)))
    }
}

/// The tensors that this may happen to. Tables that are looked up in are none of them: a row that no sample has seen is rightly
/// as it was.
struct Rounded {
    tensors: Vec<Tensor>,
}

struct Tensor {
    bucket: ValueId,
    dtype: DType,
    member: Member,
}

impl Rounded {
    /// None where no update rounds what it changes.
    fn of(program: &Program) -> Option<Rounded> {
        let mut tensors = Vec::new();
        for (index, bucket) in program.buckets.iter().enumerate() {
            let dtype = program.ty(bucket.parameters).dtype;
            let is_rounded = bucket.format.weights == WeightFormat::InPlace(Rounding::Nearest);
            if bucket.trainable && is_rounded && dtype != DType::F32 {
                let parameters = program.parameters.iter().filter(|parameter| parameter.bucket == index);
                let members =
                    parameters.zip(bucket.members.iter()).filter(|(parameter, _)| !parameter.looked_up);
                tensors.extend(members.map(|(_, &member)| Tensor {
                    bucket: bucket.parameters,
                    dtype,
                    member,
                }));
            }
        }
        (!tensors.is_empty()).then_some(Rounded { tensors })
    }

    /// The sample as it is now.
    ///
    /// # Errors
    /// A device that fails.
    fn read(&self, engine: &mut Engine) -> Result<Vec<u8>, Failure> {
        let mut sample = Vec::new();
        for tensor in &self.tensors {
            for piece in tensor.pieces() {
                sample.extend(engine.read_part(tensor.bucket, piece.start, piece.len())?);
            }
        }
        Ok(sample)
    }

    /// The share of all numbers of these tensors that are the same in two samples, bit for bit, as far as samples tell.
    fn share_of_same(&self, before: &[u8], after: &[u8]) -> f64 {
        let (mut same, mut all, mut begin) = (0.0, 0.0, 0);
        for tensor in &self.tensors {
            let (count, size) =
                (tensor.pieces().map(|piece| piece.len()).sum::<usize>(), tensor.dtype.bytes() as usize);
            let range = begin..begin + count * size;
            begin = range.end;
            let pairs = before[range.clone()].chunks(size).zip(after[range].chunks(size));
            let unchanged = pairs.filter(|(before, after)| before == after).count();
            let numbers = tensor.member.elements() as f64;
            same += numbers * unchanged as f64 / count as f64;
            all += numbers;
        }
        same / all
    }
}

impl Tensor {
    /// The elements of its bucket that are looked at.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (begin, len) = (self.member.offset, self.member.elements());
        let (pieces, piece) = if len <= PIECES * PIECE { (1, len) } else { (PIECES, PIECE) };
        (0..pieces).map(move |index| {
            let start = begin + index * (len / pieces);
            start..start + piece
        })
    }
}
