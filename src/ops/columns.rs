//! Ranges of columns: of the parts of a stacked linear layer's output, such as queries, keys and values.

use super::{
    Op, Operand, Operation, OutputRole, Shape, Sizes, Tape, TensorType, TypeError, expect_float,
    expect_inputs, expect_type,
};

/// The place of M of W columns, independent of the sizes: parts behind the first one have equal widths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ColumnPlace {
    /// The first M.
    Start,
    /// The last M (1), the M before them (2), and so on.
    FromEnd(usize),
}

/// `y = x`, with the part added to M of its columns. Inputs: x num[..,W], part num[..,M]. Output: y num[..,W].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddColumns {
    pub place: ColumnPlace,
}

/// M of x's columns. Input: x num[..,W]. Output: part num[..,M].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TakeColumns {
    pub place: ColumnPlace,
    /// M.
    pub columns: usize,
}

impl ColumnPlace {
    /// The first of the M = `columns` columns, of W = `width`. `None` if there are fewer.
    pub fn first(self, width: usize, columns: usize) -> Option<usize> {
        match self {
            ColumnPlace::Start => (columns <= width).then_some(0),
            ColumnPlace::FromEnd(number) => width.checked_sub(number * columns),
        }
    }
}

/// The shape with another innermost dimension.
fn with_last(shape: &Shape, last: usize) -> Shape {
    let mut dims = shape.dims().to_vec();
    if let Some(innermost) = dims.last_mut() {
        *innermost = last;
    }
    Shape::new(&dims)
}

/// # Errors
/// x has fewer columns.
fn expect_columns(
    operation: &'static str,
    x: &TensorType,
    place: ColumnPlace,
    columns: usize,
) -> Result<(), TypeError> {
    let problem = || format!("x is {x}, which has no {columns} columns at {place:?}");
    place
        .first(x.shape.last(), columns)
        .map(|_| ())
        .ok_or_else(|| TypeError { operation, problem: problem() })
}

impl Operation for AddColumns {
    fn name(&self) -> &'static str {
        "add-columns"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        let [x, part] = [inputs[0], inputs[1]];
        expect_float(self.name(), "x", &x)?;
        let columns = part.shape.last();
        expect_columns(self.name(), &x, self.place, columns)?;
        expect_type(self.name(), "part", &part, TensorType { shape: with_last(&x.shape, columns), ..x })?;
        Ok(vec![x])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    /// The columns of x that it changes, the part, and the changed columns.
    fn bytes(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        3 * inputs[1].bytes()
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        tape.pass(0, dy);
        if tape.wants(1) {
            assert!(tape.partial(1).is_none(), "the part of a stacked output has one reader");
            let op = TakeColumns { place: self.place, columns: tape.input_type(1).shape.last() };
            tape.emit(Op::TakeColumns(op), vec![dy], &[OutputRole::Gradient(1)]);
        }
    }
}

impl Operation for TakeColumns {
    fn name(&self) -> &'static str {
        "take-columns"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        expect_float(self.name(), "x", &inputs[0])?;
        expect_columns(self.name(), &inputs[0], self.place, self.columns)?;
        Ok(vec![TensorType { shape: with_last(&inputs[0].shape, self.columns), ..inputs[0] }])
    }

    /// The columns of x that it reads, and the output.
    fn bytes(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        2 * outputs[0].bytes()
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.columns = sizes.outputs[0].shape.last();
    }
}
