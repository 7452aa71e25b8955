//! Losses of single elements: the mean of a function of prediction and target, or the sum of predictions.

use super::{
    DType, Loss, LossTerms, Op, Operand, Operation, Processor, Tape, TensorType, TypeError, WorkspaceLimits,
    expect_float, expect_type,
};

/// The loss of an element with prediction x and target t.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossFunction {
    /// `(x - t)^2`
    SquaredError,
    /// `-t ln(p) - (1 - t) ln(1 - p)` with `p = 1 / (1 + e^-x)`: binary cross-entropy of a logit.
    BinaryCrossEntropy,
    /// `x`, without a target. Elements are summed: their number and the share of a micro-batch do not count. With
    /// weights, the samples whose weight is not 0 count.
    Sum { rows_of_sample: usize },
}

/// The mean of a function over all elements, or their sum, with an optional gradient.
///
/// The inputs and outputs of [`LossTerms`], with a prediction num[..,M] and, unless it is a sum, targets f32[..,M].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseLoss {
    pub terms: LossTerms,
    pub function: LossFunction,
}

impl LossFunction {
    /// One row per sample for a sum.
    pub const ALL: [LossFunction; 3] = [
        LossFunction::SquaredError,
        LossFunction::BinaryCrossEntropy,
        LossFunction::Sum { rows_of_sample: 1 },
    ];

    /// The same function; a sum of samples with this number of rows.
    pub fn with_rows(self, rows_of_sample: usize) -> LossFunction {
        if self.is_sum() { LossFunction::Sum { rows_of_sample } } else { self }
    }

    pub fn is_sum(self) -> bool {
        matches!(self, LossFunction::Sum { .. })
    }

    /// The loss and its derivative by x: the reference for kernels.
    pub fn value_and_slope(self, x: f64, target: f64) -> (f64, f64) {
        match self {
            LossFunction::SquaredError => ((x - target).powi(2), 2.0 * (x - target)),
            LossFunction::BinaryCrossEntropy => {
                let share = 1.0 / (1.0 + (-x).exp());
                (x.max(0.0) - x * target + (-x.abs()).exp().ln_1p(), share - target)
            }
            LossFunction::Sum { .. } => (x, 1.0),
        }
    }
}

impl ElementwiseLoss {
    /// Rows per partial sum of the loss: fixed, so that the result does not depend on the number of threads.
    pub const ROWS_PER_PARTIAL: usize = 32;

    pub fn of(function: LossFunction, terms: LossTerms) -> ElementwiseLoss {
        ElementwiseLoss { terms: LossTerms { targets: !function.is_sum(), ..terms }, function }
    }

    /// The factor of each element's loss, without its sample's weight. `elements`: of all rows.
    pub fn factor(&self, elements: f64) -> f64 {
        match self.function.is_sum() {
            true => f64::from(self.terms.weight),
            false => f64::from(self.terms.factor()) / elements,
        }
    }

    /// The factor of the loss of a sample with this weight.
    pub fn sample_factor(&self, weight: f32) -> f32 {
        match self.function.is_sum() {
            true => f32::from(weight != 0.0),
            false => weight,
        }
    }
}

impl Operation for ElementwiseLoss {
    fn name(&self) -> &'static str {
        match (self.function, self.terms.gradient) {
            (LossFunction::SquaredError, false) => "squared-error",
            (LossFunction::SquaredError, true) => "squared-error-with-gradient",
            (LossFunction::BinaryCrossEntropy, false) => "binary-cross-entropy",
            (LossFunction::BinaryCrossEntropy, true) => "binary-cross-entropy-with-gradient",
            (LossFunction::Sum { .. }, false) => "sum",
            (LossFunction::Sum { .. }, true) => "sum-with-gradient",
        }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        self.terms.expect_inputs(self.name(), inputs)?;
        let outputs = self.terms.outputs(self.name(), inputs, self.all_rows(inputs), TensorType::scalar())?;
        expect_float(self.name(), "the prediction", &inputs[0])?;
        if self.terms.targets {
            let targets =
                TensorType { dtype: DType::F32, shape: inputs[1].shape.with_last(inputs[0].shape.last()) };
            expect_type(self.name(), "the targets", &inputs[1], targets)?;
        }
        Ok(outputs)
    }

    /// CPU: one f64 partial loss per `ROWS_PER_PARTIAL` rows. GPU: one f32 per row.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let rows = inputs[0].shape.rows();
        let bytes = match limits.processor {
            Processor::Cpu => rows.div_ceil(Self::ROWS_PER_PARTIAL) * size_of::<f64>(),
            Processor::Cuda => rows * size_of::<f32>(),
        };
        bytes as u64
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 1 { Operand::Full } else { Operand::Any }
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        self.terms.updates()
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.terms.gradient { &[(1, 0)] } else { &[] }
    }

    fn as_loss(&self) -> Option<&dyn Loss> {
        Some(self)
    }

    /// The forward pass has already computed the gradient.
    fn backward(&self, tape: &mut dyn Tape) {
        let gradient = tape.output(1);
        tape.pass(0, gradient);
    }

    fn accumulating(&self) -> Option<Op> {
        Some(self.with_terms(LossTerms { accumulate: true, ..self.terms }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[0]
    }
}

impl Loss for ElementwiseLoss {
    fn terms(&self) -> &LossTerms {
        &self.terms
    }

    fn all_rows(&self, inputs: &[TensorType]) -> Option<usize> {
        match self.function {
            LossFunction::SquaredError | LossFunction::BinaryCrossEntropy => Some(inputs[1].shape.rows()),
            LossFunction::Sum { rows_of_sample } if self.terms.weighted => {
                Some(inputs[self.terms.weights()].elements() * rows_of_sample)
            }
            LossFunction::Sum { .. } => None,
        }
    }

    fn is_sum(&self) -> bool {
        self.function.is_sum()
    }

    fn with_terms(&self, terms: LossTerms) -> Op {
        Op::ElementwiseLoss(ElementwiseLoss { terms, ..*self })
    }
}
