//! Muon: the momentum of a matrix, made orthogonal.

use super::{Moment, UpdateRule};
use crate::{Arithmetic, DType, DynamicMap, Member, Members, WorkspaceLimits};

/// MomentUm Orthogonalized by Newton-Schulz (Jordan et al. 2024), as PyTorch has it. It updates matrices: where several lie in one
/// parameter, each by itself. Momentum: `m += (1 - momentum) (g - m)`. Of it, or with `nesterov` of `g + momentum (m - g)`,
/// divided by its norm, which counts as no less than `epsilon`, `steps` times
///
/// `x = a x + (b y + c y y) x`, where `y = x x^T`
///
/// makes a matrix whose singular values are all near 1; of a tall one, the same from the other side. The last `x` is also multiplied by
/// what `adjust` says. The parameter first loses `learning_rate * weight_decay` of itself, then takes `x` times the learning rate.
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
    /// Of the products: what their factors are rounded to, and for f32 whether to even less.
    pub dtype: DType,
    pub tf32: bool,
}

/// What the update of a matrix is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjust {
    /// The root of rows over columns, where that is more than 1.
    Original,
    /// 0.2 times the root of the longer side, which makes changes as large as those of AdamW (Liu et al. 2025).
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

/// Where things lie in the scratch memory of an update, in bytes from its beginning. All is of one parameter, the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MuonScratch {
    /// What becomes `x`, in f32; later every other `x`.
    pub direction: u64,
    /// `x`, in the type of the products.
    pub factors: u64,
    /// `y` of the largest matrix.
    pub gram: u64,
    /// `b y + c y y`.
    pub polynomial: u64,
    /// Sums of squares in f64.
    pub sums: u64,
    /// What products use themselves, up to the end.
    pub product: u64,
}

impl Muon {
    /// `a`, `b` and `c`.
    pub const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];

    /// Runs of elements whose squares are added up by themselves: a number that depends on nothing else, so that sums do not either.
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

    /// What a step makes is multiplied by that: the last one's by what `adjust` says of the matrix.
    pub fn scale_of(&self, step: usize, rows: usize, columns: usize) -> f32 {
        if step + 1 == self.steps { self.adjust.factor(rows, columns) as f32 } else { 1.0 }
    }

    /// Which of its elements a run adds up, of so many.
    pub fn summed(run: usize, elements: usize) -> std::ops::Range<usize> {
        let each = elements.div_ceil(Muon::SUMS);
        (run * each).min(elements)..((run + 1) * each).min(elements)
    }
}

/// What a part of the scratch memory begins at a multiple of.
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
        let of_step = |(short, long): (usize, usize)| {
            let (short, long) = (short as u64, long as u64);
            2 * short * short * (2 * long + short)
        };
        self.steps as u64 * members.iter().flat_map(sides).map(of_step).sum::<u64>()
    }

    fn iterations(&self) -> usize {
        self.steps
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        (self.dtype, self.tf32) = (arithmetic.matrices, arithmetic.tf32);
    }
}
