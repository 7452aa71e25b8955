//! Muon: orthogonalized momentum of matrices.

use super::{Moment, UpdateRule};
use crate::{Arithmetic, DType, DynamicMap, Member, Members, WorkspaceLimits};

/// MomentUm Orthogonalized by Newton-Schulz (Jordan et al. 2024), as in PyTorch. It updates matrices, including each of
/// several matrices stacked in one parameter. Momentum: `m += (1 - momentum) (g - m)`. The start value `x` is `m`, or
/// with `nesterov` `g + momentum (m - g)`, divided by the larger of its norm and `epsilon`. Then `steps` Newton-Schulz
/// iterations
///
/// `x = a x + (b y + c y y) x`, where `y = x x^T`
///
/// bring all singular values close to 1; a tall matrix uses `y = x^T x` on the other side. The last `x` is also
/// multiplied by the factor of `adjust`. The parameter is first multiplied by `1 - learning_rate * weight_decay`; then
/// `learning_rate * x` is subtracted.
///
/// State: `m`.
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    pub momentum: f64,
    pub nesterov: bool,
    pub weight_decay: f32,
    pub steps: usize,
    pub epsilon: f32,
    pub adjust: Adjust,
    /// The dtype of the matmul operands; `tf32` allows f32 operands to be rounded to TF32.
    pub dtype: DType,
    pub tf32: bool,
}

/// The scale factor of a matrix's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjust {
    /// `sqrt(max(1, rows / columns))`.
    Original,
    /// `0.2 * sqrt(max(rows, columns))`, which matches the RMS of AdamW updates (Liu et al. 2025).
    MatchRmsAdamW,
}

impl Adjust {
    fn factor(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self {
            Adjust::Original => (rows / columns).max(1.0).sqrt(),
            Adjust::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// Offsets in the scratch memory of an update, in bytes, for the largest parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MuonScratch {
    /// The start value of `x`, in f32; later every second `x`.
    pub direction: u64,
    /// `x` in the matmul dtype.
    pub factors: u64,
    /// `y` of the largest matrix.
    pub gram: u64,
    /// `b y + c y y`.
    pub polynomial: u64,
    /// Partial sums of squares, f64.
    pub sums: u64,
    /// The workspace of the matmuls, up to the end.
    pub product: u64,
}

impl Muon {
    /// `a`, `b` and `c`.
    pub const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];

    /// The number of partial sums of squares: a constant, so that sums do not depend on the number of threads.
    pub const SUMS: usize = 128;

    pub fn scratch(&self, members: &Members) -> MuonScratch {
        let elements = members.iter().map(Member::elements).max().unwrap_or(0);
        let square = members.iter().flat_map(sides).map(|(short, _)| short * short).max().unwrap_or(0);
        let mut end = 0u64;
        let mut next = |dtype: DType, len: usize| {
            let begin = end;
            end = (begin + dtype.bytes_of(len)).next_multiple_of(PART_ALIGNMENT);
            begin
        };
        MuonScratch {
            direction: next(DType::F32, elements),
            factors: next(self.dtype, elements),
            gram: next(self.dtype, square),
            polynomial: next(self.dtype, square),
            sums: next(DType::F32, 2 * Muon::SUMS),
            product: end,
        }
    }

    /// The factor of the result of an iteration: 1, and for the last the factor of `adjust`.
    pub fn scale_of(&self, step: usize, rows: usize, columns: usize) -> f32 {
        if step + 1 == self.steps { self.adjust.factor(rows, columns) as f32 } else { 1.0 }
    }

    /// The elements that partial sum `run` covers, of `elements`.
    pub fn summed(run: usize, elements: usize) -> std::ops::Range<usize> {
        let each = elements.div_ceil(Muon::SUMS);
        (run * each).min(elements)..((run + 1) * each).min(elements)
    }
}

/// Alignment of the parts of the scratch memory, in bytes.
const PART_ALIGNMENT: u64 = 256;

/// The shorter and the longer side of each matrix of a parameter.
fn sides(member: &Member) -> impl Iterator<Item = (usize, usize)> {
    let columns = member.shape.last();
    member.matrices().map(move |rows| (rows.len().min(columns), rows.len().max(columns)))
}

impl UpdateRule for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn moments(&self) -> &'static [Moment] {
        const { &[Moment { name: "momentum", scales: "momentum.scales", map: DynamicMap::Signed }] }
    }

    fn workspace(&self, members: &Members, limits: &WorkspaceLimits) -> u64 {
        self.scratch(members).product + limits.threads as u64 * limits.product_bytes_per_thread
    }

    fn flops(&self, members: &Members) -> u64 {
        let flops = |(short, long): (usize, usize)| {
            let (short, long) = (short as u64, long as u64);
            2 * short * short * (2 * long + short)
        };
        self.steps as u64 * members.iter().flat_map(sides).map(flops).sum::<u64>()
    }

    fn iterations(&self) -> usize {
        self.steps
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        (self.dtype, self.tf32) = (arithmetic.matrices, arithmetic.tf32);
    }
}
