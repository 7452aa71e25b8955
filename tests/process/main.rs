//! Tests that measure the whole process: one at a time.

mod allocations;
mod leak;
#[path = "../program/test_folder/mod.rs"]
mod test_folder;

use std::sync::{Mutex, MutexGuard, PoisonError};

static PROCESS: Mutex<()> = Mutex::new(());

/// Locks out the other tests of this process.
fn alone() -> MutexGuard<'static, ()> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}
