//! The interface of losses.

use super::{Op, RowSlice, TensorType};

/// An operation that computes a loss, or the contribution of some rows to it.
///
/// The gradient is that of input 0; output 0 is the loss f32[1]. A model's losses are summed: each has its own scope,
/// and all but the first use the accumulating form, whose previous loss is the output of the one before.
pub trait Loss {
    /// The share of its rows in the batch, from 0 to 1.
    fn share(&self, inputs: &[TensorType]) -> f64;

    /// The same loss for a micro-batch with this share of the batch.
    fn of_share(&self, share: f32) -> Op;

    /// The form that also returns the gradient of input 0, as an additional output.
    fn with_gradient(&self) -> Op;

    /// The form whose gradient, but not the loss, is multiplied by the loss scale; returned with the input index of the
    /// loss scale.
    fn scaled(&self) -> (usize, Op);

    /// The same loss on a slice of the rows of input 0, which then contains only these rows. The other inputs are
    /// unchanged.
    fn sliced(&self, rows: RowSlice) -> Op;
}
