//! What a child found out.

use serde::{Deserialize, Serialize};

/// Everything that a run measured, but for what goes into files of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub ended: Ended,
    pub peak_bytes: Option<u64>,
    pub tokens_per_s: Option<f64>,
    pub loss_last: Option<f64>,
}

/// How training ended: all are results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Complete,
    OutOfMemory,
    Diverged,
}
