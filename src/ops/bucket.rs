//! The layout of tensors in a flat parameter buffer (bucket).

use std::ops::Range;
use std::sync::Arc;

use super::{DType, Shape, TensorType};

/// Alignment of bucket members in bytes, for vector loads and matmul libraries.
const ALIGNMENT: usize = 256;

/// One tensor of a bucket. Kernels neither read nor write the padding between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Elements from the start of the bucket.
    pub offset: usize,
    pub shape: Shape,
    /// Whether weight decay applies.
    pub decay: bool,
    /// The site of the parameter's random numbers.
    pub site: u32,
    pub stacked: StackedRows,
}

/// Row counts of the matrices stacked in one parameter, such as queries, keys and values. The default is a single
/// matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackedRows {
    counts: [usize; StackedRows::MOST],
    /// Further groups of matrices with the same row counts, one for each expert but the first.
    repeats: usize,
}

impl StackedRows {
    const MOST: usize = 3;

    /// Panics on more than `MOST` matrices.
    pub fn new(rows: &[usize]) -> StackedRows {
        let mut stacked = StackedRows::default();
        stacked.counts[..rows.len()].copy_from_slice(rows);
        stacked
    }

    /// The same matrices for each expert.
    pub fn of_experts(self, experts: usize) -> StackedRows {
        StackedRows { repeats: experts - 1, ..self }
    }

    /// The row ranges of the matrices in a parameter of `rows` rows.
    pub fn ranges(self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let StackedRows { mut counts, repeats } = self;
        if counts[0] == 0 {
            counts[0] = rows / (1 + repeats);
        }
        let group: usize = counts.iter().sum();
        debug_assert_eq!(group * (1 + repeats), rows, "stacked matrices must cover all rows");
        (0..=repeats).flat_map(move |index| {
            let mut end = index * group;
            counts.into_iter().filter(|&count| count > 0).map(move |count| {
                end += count;
                end - count..end
            })
        })
    }
}

/// The tensors of a bucket, in order.
pub type Members = Arc<[Member]>;

impl Member {
    /// A tensor at the start of a bucket, without stacked matrices.
    pub fn new(shape: Shape, decay: bool, site: u32) -> Member {
        Member { offset: 0, shape, decay, site, stacked: StackedRows::default() }
    }

    /// The number of elements.
    #[inline]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// The row ranges of its stacked matrices.
    pub fn matrices(&self) -> impl Iterator<Item = Range<usize>> {
        self.stacked.ranges(self.shape.rows())
    }
}

/// Assigns consecutive offsets to tensors; returns them with the bucket's type. The offsets are aligned for every dtype
/// down to `narrowest`, so that buffers of other dtypes can share the layout.
pub fn lay_out(
    tensors: impl Iterator<Item = Member>,
    dtype: DType,
    narrowest: DType,
) -> (Members, TensorType) {
    let mut end = 0usize;
    let members = tensors.map(|member| {
        let offset = end.next_multiple_of(8 * ALIGNMENT / narrowest.bits() as usize);
        end = offset + member.elements();
        Member { offset, ..member }
    });
    let members = members.collect();
    (members, TensorType::new(dtype, &[end]))
}
