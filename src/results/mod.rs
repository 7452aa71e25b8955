//! What runs leave behind.

mod cell;
pub mod csv;
mod row;

pub use row::{Row, Status};
