//! Work on all of the machine's processors.

use std::sync::LazyLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool of this program's own: of the global one, rayon takes it that the system has threads to spare.
static THREADS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| ThreadPoolBuilder::new().build().ok());

/// What each item becomes, in their order: on a thread for each processor, or one after the other on this thread
/// where the system gives no others.
pub fn map<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
    match &*THREADS {
        Some(threads) => threads.install(|| items.into_par_iter().map(work).collect()),
        None => items.into_iter().map(work).collect(),
    }
}
