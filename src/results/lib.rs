//! Results: rows, their columns, CSV files and the crash-safe store.

mod cell;
mod collect;
mod columns;
pub mod csv;
mod foreign;
mod header;
mod pytorch_row;
mod row;
mod rows;
mod settings;
mod speeds;
mod store;

pub use collect::{CollectError, Collected, collect};
pub use columns::documented;
pub use columns::fields;
pub use pytorch_row::pytorch_row;
pub use row::{Row, Status};
pub use rows::{measured_row, planned_row, predicted_row};
pub use settings::Settings;
pub use speeds::learned;
pub use store::{
    Claim, Committed, Dumps, Expected, ExpectedRun, PrivateFolder, Store, StoreError, experiments, run_folder,
};
