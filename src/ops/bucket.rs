//! How tensors lie in a flat bucket.

use std::ops::Range;
use std::sync::Arc;

use super::{DType, Shape, TensorType};

/// Members begin at multiples of this many bytes: what vector loads and matrix libraries like best.
const ALIGNMENT: usize = 256;

/// One tensor of a bucket. Between members lies padding that nothing reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// In elements from the start of the bucket.
    pub offset: usize,
    pub shape: Shape,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Of the parameter's random numbers.
    pub site: u32,
    pub stacked: Stacked,
}

/// How many rows each of the matrices has that lie in one parameter, one below the other, as those of queries, keys and values do.
/// By default it is one matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stacked([usize; Stacked::MOST]);

impl Stacked {
    const MOST: usize = 3;

    /// Panics if these are more matrices than any layer has.
    pub fn new(rows: &[usize]) -> Stacked {
        let mut stacked = Stacked::default();
        stacked.0[..rows.len()].copy_from_slice(rows);
        stacked
    }
}

/// The tensors of a bucket, in order.
pub type Members = Arc<[Member]>;

impl Member {
    /// A tensor of one matrix or none, at the start of a bucket.
    pub fn new(shape: Shape, decay: bool, site: u32) -> Member {
        Member { offset: 0, shape, decay, site, stacked: Stacked::default() }
    }

    /// How many elements it has.
    #[inline]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// The rows of each matrix that lies in it.
    pub fn matrices(&self) -> impl Iterator<Item = Range<usize>> {
        let Stacked(rows) = match self.stacked {
            Stacked([0, ..]) => Stacked::new(&[self.shape.rows()]),
            stacked => stacked,
        };
        debug_assert_eq!(rows.iter().sum::<usize>(), self.shape.rows(), "its matrices are all of it");
        let mut end = 0;
        rows.into_iter().filter(|&rows| rows > 0).map(move |rows| {
            end += rows;
            end - rows..end
        })
    }
}

/// Gives tensors their offsets, one after the other. Returns them with the bucket's type. What lies as they do may be of
/// dtypes down to the narrowest.
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
