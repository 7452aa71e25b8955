//! How tensors lie in a flat bucket.

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
}

/// The tensors of a bucket, in order.
pub type Members = Arc<[Member]>;

impl Member {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.elements()
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
