//! `spec` against what tests know of it, where that takes whole experiments.

mod cases;
mod forbidden;
mod keys;
mod parameters;
mod recompute;
