//! Routing of a mixture of experts: each row is processed by the K experts with the largest probabilities (Shazeer et
//! al. 2017).
//!
//! E experts, K experts per row, R = N*K pairs of a row and one of its experts. Pairs are sorted by expert. Their number
//! does not depend on the routing, and so neither does memory.

use super::{Op, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs, expect_type};

/// Probabilities `softmax(logits)`, of which each row's K largest are its weights. Ties select the lowest indices.
///
/// Input: logits num[..,E]. Outputs: the weights f32[..,K], largest first; each pair's place among the sorted ones
/// i32[..,K]; the inverse permutation: each sorted pair's index among all pairs i32[R]; and the number of pairs of each
/// expert and all experts before it i32[E].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// K.
    pub experts_per_row: usize,
    /// Whether the weights of a row are divided by their sum.
    pub normalize: bool,
}

/// Gradient of [`Route`]'s logits. The routing itself has none.
///
/// Inputs: logits num[..,E], the gradient of the weights f32[..,K]. Output: dlogits, with the type of the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteBackward {
    /// As in the forward operation.
    pub normalize: bool,
}

/// The most pairs whose places an i32 can hold: the limit of a run's batch.
pub const MOST_PAIRS: usize = i32::MAX as usize;

/// Checks K of E experts.
fn expect_experts(operation: &'static str, per_row: usize, experts: usize) -> Result<(), TypeError> {
    if (1..=experts).contains(&per_row) {
        return Ok(());
    }
    Err(TypeError { operation, problem: format!("cannot choose {per_row} of {experts} experts") })
}

impl Operation for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        let logits = inputs[0];
        expect_float(self.name(), "logits", &logits)?;
        let (experts, pairs) = (logits.shape.last(), logits.shape.rows() * self.experts_per_row);
        expect_experts(self.name(), self.experts_per_row, experts)?;
        let weights = TensorType::f32(logits.shape.with_last(self.experts_per_row).dims());
        let [places, order] = [weights.shape.dims(), &[pairs]].map(TensorType::i32);
        Ok(vec![weights, places, order, TensorType::i32(&[experts])])
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let inputs = vec![tape.input(0), tape.output_gradient(0)];
        let op = Op::RouteBackward(RouteBackward { normalize: self.normalize });
        tape.contribute(op, inputs, 0, 0, &[]);
    }
}

impl Operation for RouteBackward {
    fn name(&self) -> &'static str {
        "route-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        let [logits, dweights] = [inputs[0], inputs[1]];
        expect_float(self.name(), "logits", &logits)?;
        expect_experts(self.name(), dweights.shape.last(), logits.shape.last())?;
        let weights = logits.shape.with_last(dweights.shape.last());
        expect_type(self.name(), "the gradient of the weights", &dweights, TensorType::f32(weights.dims()))?;
        Ok(vec![logits])
    }
}
