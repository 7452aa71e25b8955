//! Measures the share of parameters that updates do not change. With parameters in 16 bits, rounded to nearest and
//! without master weights, updates smaller than half a ULP are rounded away.

use std::collections::HashSet;
use std::ops::Range;

use super::Engine;
use compile::Program;
use memory::Failure;
use ops::{DType, Member, Rounding, ValueId, WeightFormat};

/// Each tensor is sampled in this many pieces of this many elements, at equal distances, since the rows of a weight may
/// differ.
const PIECES: usize = 8;
const PIECE: usize = 32;

/// Compares a run's parameters with those after the first step.
pub(crate) struct Unchanged {
    rounded: Option<RoundedTensors>,
    first: Option<FirstStep>,
}

/// The state after the first step.
struct FirstStep {
    sample: Vec<u8>,
    skipped_steps: u64,
}

impl Unchanged {
    pub(crate) fn new(program: &Program) -> Unchanged {
        Unchanged { rounded: RoundedTensors::new(program), first: None }
    }

    /// Samples the parameters. Call it after the first step.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn record_first_step(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        if let Some(rounded) = &self.rounded {
            let skipped_steps = engine.counts().skipped_steps;
            self.first = Some(FirstStep { sample: rounded.read(engine)?, skipped_steps });
        }
        Ok(())
    }

    /// The share of parameters that is unchanged after `steps` steps. `None` if no update rounds, or if all steps after
    /// the first were skipped.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn share_since_first_step(
        &self,
        engine: &mut Engine,
        steps: u64,
    ) -> Result<Option<f64>, Failure> {
        let (Some(rounded), Some(first)) = (&self.rounded, &self.first) else { return Ok(None) };
        let skipped = engine.counts().skipped_steps - first.skipped_steps;
        if steps - 1 <= skipped {
            return Ok(None);
        }
        Ok(Some(rounded.unchanged_share(&first.sample, &rounded.read(engine)?)))
    }
}

/// The tensors whose updates are rounded. Lookup tables are excluded: rows that no sample reads are rightly unchanged.
struct RoundedTensors {
    tensors: Vec<Tensor>,
}

struct Tensor {
    bucket: ValueId,
    dtype: DType,
    member: Member,
}

impl RoundedTensors {
    /// `None` if no update rounds parameters.
    fn new(program: &Program) -> Option<RoundedTensors> {
        let looked_up = program.parameters.iter().filter(|parameter| parameter.looked_up);
        let tables: HashSet<u32> = looked_up.map(|parameter| parameter.site).collect();
        let mut tensors = Vec::new();
        for bucket in &program.buckets {
            let dtype = program.ty(bucket.parameters).dtype;
            let is_rounded = bucket.format.weights == WeightFormat::InPlace(Rounding::Nearest);
            if bucket.trainable && is_rounded && dtype != DType::F32 {
                let own = program.own_members(bucket);
                let members = own.iter().filter(|member| !tables.contains(&member.site));
                tensors.extend(members.map(|&member| Tensor { bucket: bucket.parameters, dtype, member }));
            }
        }
        (!tensors.is_empty()).then_some(RoundedTensors { tensors })
    }

    /// Reads the current sample.
    ///
    /// # Errors
    /// A device that fails.
    fn read(&self, engine: &mut Engine) -> Result<Vec<u8>, Failure> {
        let mut sample = Vec::new();
        for tensor in &self.tensors {
            for piece in tensor.pieces() {
                sample.extend(engine.read_elements(tensor.bucket, piece.start, piece.len())?);
            }
        }
        Ok(sample)
    }

    /// Estimates from two samples the share of the tensors' elements that are bitwise equal.
    fn unchanged_share(&self, before: &[u8], after: &[u8]) -> f64 {
        let (mut unchanged_elements, mut all, mut begin) = (0.0, 0.0, 0);
        for tensor in &self.tensors {
            let (count, size) =
                (tensor.pieces().map(|piece| piece.len()).sum::<usize>(), tensor.dtype.bytes() as usize);
            let range = begin..begin + count * size;
            begin = range.end;
            let pairs = before[range.clone()].chunks(size).zip(after[range].chunks(size));
            let unchanged = pairs.filter(|(before, after)| before == after).count();
            let numbers = tensor.member.elements() as f64;
            unchanged_elements += numbers * unchanged as f64 / count as f64;
            all += numbers;
        }
        unchanged_elements / all
    }
}

impl Tensor {
    /// The sampled element ranges of its bucket.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (begin, len) = (self.member.offset, self.member.elements());
        let (pieces, piece) = if len <= PIECES * PIECE { (1, len) } else { (PIECES, PIECE) };
        (0..pieces).map(move |index| {
            let start = begin + index * (len / pieces);
            start..start + piece
        })
    }
}
