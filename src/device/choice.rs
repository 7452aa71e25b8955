//! What a device chooses by time: the algorithms of matrix products, which differ in speed and, where they sum in another
//! order, in the last bits of what they compute.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ops::{Op, TensorType};

/// An operation and what it will be launched on.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub op: Op,
    pub inputs: Vec<TensorType>,
    pub outputs: Vec<TensorType>,
    /// Bytes of scratch memory.
    pub workspace: u64,
}

/// How products of one shape are computed. Who has it stored computes the same bits again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Sizes, types and what is fused to it: everything that a choice is made for.
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
    Stored,
    /// There was no memory to time them in: it is the library's first recommendation.
    Untimed,
}

impl fmt::Display for Choice {
    /// A line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { product, choice, candidates_ms, .. } = self;
        let source = match self.source {
            Source::Timed => "timed",
            Source::Cache => "from the cache",
            Source::Stored => "stored with the run",
            Source::Untimed => "not timed for want of memory",
        };
        write!(f, "product {product}: {choice}; {source}")?;
        if candidates_ms.is_empty() { Ok(()) } else { write!(f, ", candidates in ms: {candidates_ms}") }
    }
}
