//! Everything before a run's memory is allocated: its folder is read, its program compiled, algorithms of matmuls are
//! chosen, and the process is warmed up.

mod prepared;
mod prime;
pub(crate) mod products;

pub use prepared::DATA_FILE;
pub(crate) use prepared::Prepared;
pub use prime::prime;
pub(crate) use products::MatmulAlgorithmSources;
pub use products::PRODUCTS_FILE;
