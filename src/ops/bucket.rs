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
}

/// The tensors of a bucket, in order.
pub type Members = Arc<[Member]>;

impl Member {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }
}

/// One tensor after the other, each with whether it decays. Returns them with the bucket's type. What lies as they do may be
/// of dtypes down to the narrowest.
pub fn lay_out(
    tensors: impl Iterator<Item = (Shape, bool)>,
    dtype: DType,
    narrowest: DType,
) -> (Members, TensorType) {
    let mut end = 0usize;
    let members = tensors.map(|(shape, decay)| {
        let offset = end.next_multiple_of(ALIGNMENT / narrowest.bytes() as usize);
        end = offset + shape.elements();
        Member { offset, shape, decay }
    });
    let members = members.collect();
    (members, TensorType::new(dtype, &[end]))
}
