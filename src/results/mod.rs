//! What runs leave behind.

mod cell;
pub mod csv;
mod row;
mod store;
mod stub;

pub use row::{Row, Status};
pub use store::{Committed, PrivateFolder, RESULT_FILE, Store, StoreError};
pub use stub::{measured_row, planned_row};
