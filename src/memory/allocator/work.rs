//! Statistics of caching allocators.

use std::ops::AddAssign;

/// Work of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheWork {
    pub allocations: u64,
    /// Allocations that were served without a request to the system.
    pub hits: u64,
    /// Blocks that an allocation split.
    pub splits: u64,
    /// Bytes returned to the system.
    pub returned_bytes: u64,
}

/// Free memory between storages (fragmentation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    pub bytes: u64,
    /// Bytes of the largest free block.
    pub largest: u64,
}

impl CacheWork {
    pub fn since(&self, before: &CacheWork) -> CacheWork {
        self.zip_with(before, |now, before| now - before)
    }

    pub(crate) fn times(&self, times: u64) -> CacheWork {
        self.zip_with(self, |own, _| own * times)
    }

    fn zip_with(&self, other: &CacheWork, combine: impl Fn(u64, u64) -> u64) -> CacheWork {
        CacheWork {
            allocations: combine(self.allocations, other.allocations),
            hits: combine(self.hits, other.hits),
            splits: combine(self.splits, other.splits),
            returned_bytes: combine(self.returned_bytes, other.returned_bytes),
        }
    }
}

impl AddAssign for CacheWork {
    fn add_assign(&mut self, more: CacheWork) {
        *self = self.zip_with(&more, |so_far, more| so_far + more);
    }
}
