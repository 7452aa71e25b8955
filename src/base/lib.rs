//! Shared utilities: sizes, statistics, threads, files and text.
//!
//! - [`units`]: byte sizes and counts
//! - [`rates`]: bytes and FLOPs per second
//! - [`statistics`]: medians and intervals
//! - [`parallel`]: a thread pool over all processors
//! - [`temporary`]: files and folders under temporary names until they are complete
//! - [`regular`]: reading of regular files only
//! - [`globs`]: the files that a glob matches
//! - [`shell`]: words of shell commands
//! - [`brief`]: truncation of user text in messages
//! - [`documented`](mod@documented): structs with documented fields
//! - [`user_cache`]: the user's cache folder

pub mod brief;
pub mod documented;
pub mod globs;
pub mod parallel;
pub mod rates;
pub mod regular;
pub mod search;
pub mod shell;
pub mod statistics;
pub mod temporary;
pub mod units;
pub mod user_cache;
