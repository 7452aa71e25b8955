//! What runs leave behind.

mod row;

pub use row::{Row, Status};
