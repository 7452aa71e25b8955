//! A cell of a table.

use crate::text::one_line;

/// The text of a figure, and its exact number, by which rows are ordered.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub text: String,
    pub value: Option<f64>,
}

impl Cell {
    pub(crate) fn new(text: String, value: f64) -> Cell {
        Cell { text, value: Some(value) }
    }

    pub(crate) fn text(text: &str) -> Cell {
        Cell { text: text.to_owned(), value: None }
    }

    /// A number in the format of `show`. Always `Some`: the last expression of a column's cell.
    pub(crate) fn number(value: f64, show: fn(f64) -> String) -> Option<Cell> {
        Some(Cell::new(show(value), value))
    }

    /// The value of a swept key.
    pub(crate) fn key(value: &str) -> Cell {
        Cell { text: one_line(value), value: value.parse().ok().filter(|number: &f64| number.is_finite()) }
    }
}
