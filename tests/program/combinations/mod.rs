//! Tests of `spec` that need whole experiments: combinations of keys, conflicts, published models.

mod cases;
mod conflicts;
mod keys;
mod parameters;
mod recompute;
