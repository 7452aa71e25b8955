//! Statistics of caching allocators.

use std::ops::AddAssign;

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
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
pub struct FreeMemory {
    pub bytes: u64,
    /// Bytes of the largest free block.
    pub largest: u64,
}

impl CacheStats {
    pub fn since(&self, before: &CacheStats) -> CacheStats {
        self.zip_with(before, |now, before| now - before)
    }

    pub(crate) fn times(&self, times: u64) -> CacheStats {
        self.zip_with(self, |own, _| own * times)
    }

    fn zip_with(&self, other: &CacheStats, combine: impl Fn(u64, u64) -> u64) -> CacheStats {
        CacheStats {
            allocations: combine(self.allocations, other.allocations),
            hits: combine(self.hits, other.hits),
            splits: combine(self.splits, other.splits),
            returned_bytes: combine(self.returned_bytes, other.returned_bytes),
        }
    }
}

impl AddAssign for CacheStats {
    fn add_assign(&mut self, more: CacheStats) {
        *self = self.zip_with(&more, |so_far, more| so_far + more);
    }
}
