//! What losses have in common.

use super::{Op, Slice, TensorType};

/// An operation that computes a loss, or what some rows contribute to it.
///
/// Input 0 is what it has a gradient for, and output 0 the loss f32[1]. Several of a model's add up: each has a scope of its
/// own and, but for the first, is the accumulating form, whose previous loss is the one before it.
pub trait Loss {
    /// What its rows are of the batch, of 1.
    fn share(&self, inputs: &[TensorType]) -> f64;

    /// The same on a micro-batch that is this much of its batch.
    fn of_share(&self, share: f32) -> Op;

    /// The same that also gives the gradient of input 0, as one more output.
    fn with_gradient(&self) -> Op;

    /// The same whose gradient, not the loss, is multiplied by the loss scale; and which input that is.
    fn scaled(&self) -> (usize, Op);

    /// The same on some of the rows of input 0, of which there are then only these. The other inputs stay as they are.
    fn sliced(&self, rows: Slice) -> Op;
}
