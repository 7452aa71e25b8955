//! A whole experiment file: the files that it extends, its strategies and its sweep.

pub(crate) mod ablation;
pub(crate) mod document;
pub(crate) mod load;
mod overrides;
pub(crate) mod strategies;
pub(crate) mod written;
