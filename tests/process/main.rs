//! What is measured of a whole process: one test at a time.

mod allocations;
mod leak;
#[path = "../program/place/mod.rs"]
mod place;

use std::sync::{Mutex, MutexGuard, PoisonError};

static PROCESS: Mutex<()> = Mutex::new(());

/// Keeps the process to one test.
fn alone() -> MutexGuard<'static, ()> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}
