//! What allocators that keep freed memory tell of themselves.

use std::ops::AddAssign;

/// What was done with a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheWork {
    pub allocations: u64,
    /// Those of them for which the system was not asked.
    pub hits: u64,
    /// Blocks of which an allocation took a part, and the rest became another block.
    pub splits: u64,
    /// Bytes that went back to the system.
    pub returned_bytes: u64,
}

/// Free memory between storages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    pub bytes: u64,
    /// Of the largest of them.
    pub largest: u64,
}

impl CacheWork {
    pub fn since(&self, before: &CacheWork) -> CacheWork {
        self.with(before, |now, before| now - before)
    }

    pub(crate) fn times(&self, times: u64) -> CacheWork {
        self.with(self, |own, _| own * times)
    }

    fn with(&self, other: &CacheWork, of_both: impl Fn(u64, u64) -> u64) -> CacheWork {
        CacheWork {
            allocations: of_both(self.allocations, other.allocations),
            hits: of_both(self.hits, other.hits),
            splits: of_both(self.splits, other.splits),
            returned_bytes: of_both(self.returned_bytes, other.returned_bytes),
        }
    }
}

impl AddAssign for CacheWork {
    fn add_assign(&mut self, more: CacheWork) {
        *self = self.with(&more, |so_far, more| so_far + more);
    }
}
