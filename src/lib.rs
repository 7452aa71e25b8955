//! A declarative experiment runner that compares memory strategies for training neural networks.
//!
//! Data takes one way through it, and each module may use only those above it in this list:
//!
//! - [`units`]: sizes; [`statistics`]: medians and intervals; [`parallel`]: work on all processors; `temporary`: files
//!   until they are complete; `regular`: files that can be read; `brief`: what somebody wrote, in messages;
//!   `documented`: what fields of structs are
//! - [`ops`]: the vocabulary of a training step
//! - [`device`], [`data`]: where it runs and what it is fed
//! - [`spec`]: what the user wrote, resolved
//! - [`graph`], [`compile`], [`memory`]: a model, its program, its memory
//! - [`plan`]: all runs of an experiment, predicted
//! - [`execute`]: one run, measured
//! - [`results`], [`compare`]: rows, tables, advice
//! - [`cli`]: the commands

pub(crate) mod brief;
pub mod cli;
pub mod compare;
pub mod compile;
pub mod data;
pub mod device;
pub(crate) mod documented;
pub mod execute;
pub mod graph;
pub mod memory;
pub mod ops;
pub mod parallel;
pub mod plan;
pub(crate) mod regular;
pub mod results;
pub mod spec;
pub mod statistics;
pub(crate) mod temporary;
#[cfg(test)]
pub(crate) mod testing;
pub mod units;
mod user_cache;
