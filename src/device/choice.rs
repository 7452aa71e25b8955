//! Autotuned choices of a device: matmul algorithms. They differ in speed and, because of the summation order, in the
//! last bits of their results.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Pool;
use ops::{Op, TensorType};

/// Minimum alignment of allocations, in bytes. No kernel benefits from a larger one.
pub(super) const ALIGNMENT: u64 = 256;

/// A future operand: its type and alignment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    pub ty: TensorType,
    /// Offset from a multiple of `ALIGNMENT`, reduced to its largest power-of-two factor.
    pub offset: u64,
}

impl Placed {
    /// For an operand at an offset in an allocation. All offsets with the same largest power-of-two factor are
    /// represented by that factor.
    pub fn new(ty: TensorType, offset: u64) -> Placed {
        let power = offset & offset.wrapping_neg();
        Placed { ty, offset: if power < ALIGNMENT { power } else { 0 } }
    }

    /// Size of an allocation that holds the operand at its offset.
    pub fn end(&self) -> u64 {
        self.offset + self.ty.bytes()
    }
}

/// An operation and the operands of its future launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The memory of the operands, and thus the processor that runs the operation.
    pub home: Pool,
    pub op: Op,
    pub inputs: Vec<Placed>,
    pub outputs: Vec<Placed>,
    /// Workspace size in bytes.
    pub workspace: u64,
}

impl Work {
    /// The input that an output overwrites, if any.
    pub fn place(&self, output: usize) -> Option<usize> {
        let mut aliases = self.op.updates().iter().chain(self.op.may_overwrite());
        let fits = |input: usize| self.inputs[input] == self.outputs[output];
        aliases.find(|alias| alias.0 == output && fits(alias.1)).map(|alias| alias.1)
    }
}

/// The algorithm for matmuls of one shape. A run with the stored choice reproduces the same bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Sizes, types and epilogue: with `alignment`, the key of the choice.
    pub product: String,
    /// Readable: the library's configuration numbers of the algorithm, or `apart` if a separate kernel computes the
    /// epilogue.
    pub choice: String,
    pub source: Source,
    /// The candidates' times, in the library's order of recommendation, `apart` last.
    pub candidates_ms: String,
    /// The card and the library versions. The choice is invalid for others.
    pub setting: String,
    /// The library's opaque description of the algorithm in hexadecimal; empty for `apart`.
    pub algorithm: String,
    /// Operands with an alignment below 256 bytes, with that alignment; nearly always empty.
    #[serde(default)]
    pub alignment: String,
}

/// The source of a run's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The candidates were timed for this run.
    Timed,
    /// The candidates were timed for another run, on the same card with the same versions.
    Cache,
    /// Stored with the run that this run repeats.
    Stored,
    /// The library's first recommendation: there was no memory for timing.
    Untimed,
}

impl fmt::Display for Choice {
    /// A line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { product, choice, candidates_ms, alignment, .. } = self;
        let source = match self.source {
            Source::Timed => "timed",
            Source::Cache => "from the cache",
            Source::Stored => "stored with the run",
            Source::Untimed => "not timed: too little memory",
        };
        write!(f, "matmul {product}")?;
        if !alignment.is_empty() {
            write!(f, ", alignment {alignment}")?;
        }
        write!(f, ": {choice}; {source}")?;
        if candidates_ms.is_empty() { Ok(()) } else { write!(f, ", candidates in ms: {candidates_ms}") }
    }
}
