//! Adafactor: factored variances, one per row and one per column.

use super::{State, UpdateRule};
use crate::{Members, Processor, Shape, StateFormat, WorkspaceLimits};

/// Adafactor (Shazeer and Stern 2018), without momentum and with the relative step size, as PyTorch computes it. From
/// the squares of a gradient `g` [R, C] it keeps a running mean per row, `r`, and per column, `c`; for a vector one per
/// element. At step `t` the new value has weight `t^beta2_decay`. The variance of an element is `v = r c / mean(r)`,
/// and the direction `u = g / max(sqrt(v), epsilon)`, divided by `rms(u) / clip_threshold` if that is above 1. The
/// parameter is first multiplied by `1 - learning_rate * weight_decay`; then `u` is subtracted, times
/// `min(learning_rate, 1 / sqrt(t))`, times the larger of `scale_epsilon` and the root mean square of the parameter
/// before the decay.
///
/// State: `r` followed by `c` for each matrix, the variances of each vector.
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

    /// The state is small, so it is f32 in every format.
    fn states(&self, _format: StateFormat) -> Vec<State> {
        vec![State::factors("variance")]
    }

    /// The weight of the new value in the means, and the upper bound of the learning rate.
    fn corrections(&self, step: usize) -> Vec<f64> {
        let step = step as f64;
        vec![step.powf(self.beta2_decay), 1.0 / step.sqrt()]
    }

    /// The CPU updates tensors one after the other, a GPU all at once.
    fn workspace(&self, members: &Members, limits: &WorkspaceLimits) -> u64 {
        let lens = members.iter().map(|member| Factored::of(&member.shape).scratch_len());
        let len = match limits.processor {
            Processor::Cpu => lens.max().unwrap_or(0),
            Processor::Cuda => lens.sum(),
        };
        (len * size_of::<f32>()) as u64
    }
}

/// A tensor's factorization: a vector is a single row without a row variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factored {
    pub is_matrix: bool,
    pub rows: usize,
    pub columns: usize,
}

impl Factored {
    /// The largest number of row blocks with separate partial sums: a constant, so that sums do not depend on the
    /// number of threads.
    const MOST_BLOCKS: usize = 128;

    pub fn of(shape: &Shape) -> Factored {
        let is_matrix = shape.dims().len() > 1;
        Factored { is_matrix, rows: shape.rows(), columns: shape.last() }
    }

    /// The number of variances: of rows, followed by columns.
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

    /// Scratch memory in f32 elements, an even number: two f64 sums per block, then one sum per block and column, then
    /// two numbers for the whole tensor.
    pub fn scratch_len(&self) -> usize {
        (self.blocks() * (4 + self.columns) + 2).next_multiple_of(2)
    }
}
