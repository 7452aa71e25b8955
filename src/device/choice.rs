//! What a device chooses by time: the algorithms of matrix products, which differ in speed and, where they sum in another
//! order, in the last bits of what they compute.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Pool;
use ops::{Op, TensorType};

/// Where memory that was asked for begins: at a multiple of as many bytes at least. More makes no difference to any kernel.
pub(super) const ALIGNMENT: u64 = 256;

/// An operand that is not there yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    pub ty: TensorType,
    /// How many bytes it begins behind a multiple of `ALIGNMENT`, as far as its own alignment tells.
    pub offset: u64,
}

impl Placed {
    /// Of what begins as many bytes into memory that was asked for. Of all such offsets that are multiples of the same power
    /// of two, the least stands for the others.
    pub fn new(ty: TensorType, offset: u64) -> Placed {
        let power = offset & offset.wrapping_neg();
        Placed { ty, offset: if power < ALIGNMENT { power } else { 0 } }
    }

    /// Bytes of memory that hold it where it begins.
    pub fn end(&self) -> u64 {
        self.offset + self.ty.bytes()
    }
}

/// An operation and what it will be launched on.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Whose processor computes it, on memory of its own.
    pub home: Pool,
    pub op: Op,
    pub inputs: Vec<Placed>,
    pub outputs: Vec<Placed>,
    /// Bytes of scratch memory.
    pub workspace: u64,
}

impl Work {
    /// The input whose place an output takes.
    pub fn place(&self, output: usize) -> Option<usize> {
        let mut aliases = self.op.updates().iter().chain(self.op.may_overwrite());
        let fits = |input: usize| self.inputs[input] == self.outputs[output];
        aliases.find(|alias| alias.0 == output && fits(alias.1)).map(|alias| alias.1)
    }
}

/// How products of one shape are computed. Who has it stored computes the same bits again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Sizes, types and what is fused to it: all that a choice is made for, with `alignment`.
    pub product: String,
    /// In words: the library's numbers for the algorithm, or `apart` where a kernel finishes what the library
    /// multiplies.
    pub choice: String,
    pub source: Source,
    /// What each candidate took when they were timed, in the library's order of recommendation, `apart` last.
    pub candidates_ms: String,
    /// The card and the versions that it was made with. It holds for no others.
    pub setting: String,
    /// The library's own description of the algorithm, as hexadecimal numbers; empty for `apart`.
    pub algorithm: String,
    /// Which operands begin at less than a multiple of 256 bytes, and of how many they do; nearly always none.
    #[serde(default)]
    pub alignment: String,
}

/// From where a run has a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The candidates were timed for this run.
    Timed,
    /// They were timed for another run, on the same card with the same versions.
    Cache,
    /// It was stored with the run that this one repeats.
    LoadParameter,
    /// There was no memory to time them in: it is the library's first recommendation.
    Untimed,
}

impl fmt::Display for Choice {
    /// A line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { product, choice, candidates_ms, alignment, .. } = self;
        let source = match self.source {
            Source::Timed => "timed",
            Source::Cache => "from the cache",
            Source::LoadParameter => "stored with the run",
            Source::Untimed => "not timed for want of memory",
        };
        write!(f, "product {product}")?;
        if !alignment.is_empty() {
            write!(f, ", alignment {alignment}")?;
        }
        write!(f, ": {choice}; {source}")?;
        if candidates_ms.is_empty() { Ok(()) } else { write!(f, ", candidates in ms: {candidates_ms}") }
    }
}
