//! What every crate uses: sizes, statistics, threads, files and text.
//!
//! - [`units`]: sizes; [`statistics`]: medians and intervals; [`parallel`]: work on all processors; [`temporary`]: files
//!   until they are complete; [`regular`]: files that can be read; [`brief`]: what somebody wrote, in messages;
//!   [`documented`](mod@documented): what fields of structs are

pub mod brief;
pub mod documented;
pub mod parallel;
pub mod regular;
pub mod statistics;
pub mod temporary;
pub mod units;
pub mod user_cache;
