//! Adafactor: variances as products of those of rows and of columns.

use super::{State, UpdateRule};
use crate::{Members, Processor, Shape, StateFormat, WorkspaceLimits};

/// Adafactor (Shazeer and Stern 2018), without momentum and with the parameter's own scale, as PyTorch computes it. Of the squares of
/// a gradient `g` [R, C] it keeps a mean for each row, `r`, and for each column, `c`; those of a vector each by itself. Of these
/// means the share `t^beta2_decay` is new at step `t`. The variance of an element is `v = r c / mean(r)`, and the direction
/// `u = g / max(sqrt(v), epsilon)`, divided by its root mean square over `clip_threshold` where that is above 1. The parameter first
/// loses `learning_rate * weight_decay` of itself, then takes `u` times `min(learning_rate, 1 / sqrt(t))` times its own root mean
/// square before that, which counts as no less than `scale_epsilon`.
///
/// State: `r` and behind it `c` of each matrix, the variances of each vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Adafactor {
    pub beta2_decay: f64,
    pub epsilon: f32,
    pub scale_epsilon: f32,
    pub clip_threshold: f32,
    pub weight_decay: f32,
}

impl UpdateRule for Adafactor {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    /// Few as they are, in f32 whatever states are stored in.
    fn states(&self, _format: StateFormat) -> Vec<State> {
        vec![State::factors("variance")]
    }

    /// The share of the means that is new, and the most that a learning rate is.
    fn corrections(&self, step: usize) -> Vec<f64> {
        let step = step as f64;
        vec![step.powf(self.beta2_decay), 1.0 / step.sqrt()]
    }

    /// The CPU updates tensors one after the other, a card all at once.
    fn workspace(&self, members: &Members, limits: &WorkspaceLimits) -> u64 {
        let lens = members.iter().map(|member| Factored::of(&member.shape).scratch_len());
        let len = match limits.processor {
            Processor::Cpu => lens.max().unwrap_or(0),
            Processor::Cuda => lens.sum(),
        };
        (len * size_of::<f32>()) as u64
    }
}

/// A tensor as Adafactor sees it: a vector is one row, which has no variance of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factored {
    pub is_matrix: bool,
    pub rows: usize,
    pub columns: usize,
}

impl Factored {
    /// Runs of rows whose sums are made by themselves: a number that depends on nothing else, so that sums do not either.
    const MOST_BLOCKS: usize = 128;

    pub fn of(shape: &Shape) -> Factored {
        let is_matrix = shape.dims().len() > 1;
        Factored { is_matrix, rows: shape.rows(), columns: shape.last() }
    }

    /// How many variances there are: those of rows, and behind them those of columns.
    pub fn variances(&self) -> usize {
        self.rows_with_variances() + self.columns
    }

    pub fn rows_with_variances(&self) -> usize {
        if self.is_matrix { self.rows } else { 0 }
    }

    pub fn rows_per_block(&self) -> usize {
        self.rows.div_ceil(Factored::MOST_BLOCKS)
    }

    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(self.rows_per_block())
    }

    /// Scratch memory in f32s, an even number: for each block two sums in f64; then for each a sum of each column; then two numbers
    /// of the whole tensor.
    pub fn scratch_len(&self) -> usize {
        (self.blocks() * (4 + self.columns) + 2).next_multiple_of(2)
    }
}
