//! Caches freed device memory, as PyTorch's allocator does. Host memory is requested value by value.
//!
//! A request gets the smallest free block that is large enough. The rest becomes a block of its own, and coalesces
//! with free neighbours when freed. So free memory can be fragmented: no block is large enough although their sum is.
//! A rest that is too small to divide stays part of the block, and counts as allocated.
//!
//! PyTorch has pools per stream, and withholds a block that another stream has used until an event completes. Here
//! programs free a storage only after the compute queue, whose order allocations follow, has waited for all its users
//! (`compile/events.rs`): one queue needs pools, and every free block can be reused at once.

mod expandable;
mod policy;
mod pool;
#[cfg(test)]
mod tests;

use policy::{Class, Policy};
use pool::{Address, BlockPool};

use super::direct::Direct;
use super::{Allocator, CacheStats, Concatenation, FreeMemory, Location, rounded};
use crate::system::System;
use compile::Program;
use device::{DeviceError, Pool, Target};
use ops::ValueId;

/// The cached pool.
const POOL: Pool = Pool::Device;

pub(super) struct Caching<'a> {
    program: &'a Program,
    policy: Policy,
    /// By class.
    pools: [BlockPool; Class::ALL.len()],
    /// By class: the number of searches for a block.
    searches: [u64; Class::ALL.len()],
    /// The allocator of the other pools.
    others: Direct<'a>,
    stats: CacheStats,
}

/// The rounding of device storages.
pub(super) fn unit(target: &Target) -> u64 {
    policy::unit(target.alignment.0)
}

impl<'a> Caching<'a> {
    pub(super) fn new(program: &'a Program, settings: spec::Caching) -> Caching<'a> {
        Caching {
            program,
            policy: Policy::of(settings),
            pools: Default::default(),
            searches: Default::default(),
            others: Direct::new(program),
            stats: CacheStats::default(),
        }
    }

    fn is_cached(&self, storage: ValueId) -> bool {
        self.program.value(storage).pool == POOL
    }

    /// Allocates a storage in a cached block or in new memory from the system.
    fn allocate_block(
        &mut self,
        storage: ValueId,
        bytes: u64,
        system: &mut System<'_>,
    ) -> Result<Location, DeviceError> {
        let class = Class::of(bytes);
        self.searches[class as usize] += 1;
        self.stats.allocations += 1;
        let (address, block) = match self.find_cached(class, bytes) {
            Some(cached) => {
                self.stats.hits += 1;
                cached
            }
            None => self.request_block(class, bytes, system)?,
        };
        let is_split = self.policy.splits(class, block, bytes);
        self.stats.splits += u64::from(is_split);
        let taken = if is_split { bytes } else { block };
        Ok(self.pools[class as usize].claim(address, taken, storage))
    }

    /// Frees a block of `bytes` bytes.
    fn free_block(&mut self, bytes: u64, location: Location) {
        let class = Class::of(bytes) as usize;
        self.pools[class].free(location, self.searches[class]);
    }

    fn find_cached(&self, class: Class, bytes: u64) -> Option<(Address, u64)> {
        let pool = &self.pools[class as usize];
        if self.policy.expandable {
            return pool.best_fit_expandable(bytes);
        }
        pool.best_fit(bytes).filter(|&(_, block)| self.policy.serves(block, bytes))
    }

    /// Requests a block from the system. If that is refused, by the limit or by the system, cached memory is returned
    /// and the request is repeated.
    fn request_block(
        &mut self,
        class: Class,
        bytes: u64,
        system: &mut System<'_>,
    ) -> Result<(Address, u64), DeviceError> {
        self.collect_garbage(system)?;
        let is_refused = |result: &Result<_, _>| {
            matches!(result, Err(DeviceError::BeyondLimit { .. } | DeviceError::OutOfMemory { .. }))
        };
        let mut result = self.request_memory(class, bytes, system);
        if is_refused(&result) && self.release_oversize(bytes, system)? {
            result = self.request_memory(class, bytes, system);
        }
        if is_refused(&result) {
            self.empty(system)?;
            result = self.request_memory(class, bytes, system);
        }
        result
    }

    fn request_memory(
        &mut self,
        class: Class,
        bytes: u64,
        system: &mut System<'_>,
    ) -> Result<(Address, u64), DeviceError> {
        let pool = &mut self.pools[class as usize];
        if self.policy.expandable {
            return expandable::grow(pool, class, bytes, system);
        }
        let segment = policy::segment(bytes, system.target().page.0);
        let buffer = system.request(POOL, segment)?;
        Ok((pool.add(buffer, segment), segment))
    }

    /// Returns the smallest oversize segment that is large enough for a request; without one, the largest oversize
    /// segments until their sum is. Returns whether the sum is large enough.
    fn release_oversize(&mut self, bytes: u64, system: &mut System<'_>) -> Result<bool, DeviceError> {
        let Some(oversize) = self.policy.oversize() else { return Ok(false) };
        let class = Class::of(bytes);
        let needed = bytes.max(oversize);
        // With large pages, parts of segments can be oversize.
        let whole = self.pools[class as usize].wholly_free().into_iter();
        let mut whole: Vec<(u64, Address)> = whole
            .map(|(address, block, _)| (block, address))
            .filter(|(block, _)| *block >= oversize)
            .collect();
        whole.sort_unstable();
        if let Some(&(_, address)) = whole.iter().find(|(block, _)| *block >= needed) {
            return self.release_segment(class, address, system).map(|()| true);
        }
        let mut released = 0;
        while released < needed
            && let Some((block, address)) = whole.pop()
        {
            self.release_segment(class, address, system)?;
            released += block;
        }
        Ok(released >= needed)
    }

    /// If reserved bytes exceed a share of the limit, returns large segments that have been free for at least the
    /// average age of the free ones, until the excess is gone.
    fn collect_garbage(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        let Some(threshold) = self.policy.garbage_collection_threshold else { return Ok(()) };
        let most = (threshold * system.target().available_at(POOL) as f64) as u64;
        let excess = system.reserved(POOL).saturating_sub(most);
        let now = self.searches[Class::Large as usize];
        let mut free = self.pools[Class::Large as usize].wholly_free();
        let mut reclaimed = 0;
        while reclaimed < excess && !free.is_empty() {
            let age = |since: u64| now - since;
            let ages: u64 = free.iter().map(|&(_, _, since)| age(since)).sum();
            let average = ages as f64 / free.len() as f64;
            // Returns all old segments, so that collection is not soon repeated.
            let (old, young): (Vec<_>, Vec<_>) =
                free.into_iter().partition(|&(_, _, since)| age(since) as f64 >= average);
            free = young;
            for (address, bytes, _) in old {
                self.release_segment(Class::Large, address, system)?;
                reclaimed += bytes;
            }
        }
        Ok(())
    }

    /// Returns a segment that is one block to the system.
    fn release_segment(
        &mut self,
        class: Class,
        address: Address,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        let (buffer, bytes) = self.pools[class as usize].drop_segment(address);
        self.stats.returned_bytes += bytes;
        system.give_back(POOL, buffer, bytes)
    }
}

impl<'a> Allocator<'a> for Caching<'a> {
    fn select(&mut self, program: &'a Program) {
        self.program = program;
        self.others.select(program);
    }

    fn open(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError> {
        if !self.is_cached(storage) {
            return self.others.allocate(storage, system);
        }
        self.allocate_block(storage, rounded(self.program, storage, system.target()), system)
    }

    fn free(
        &mut self,
        storage: ValueId,
        location: Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        if !self.is_cached(storage) {
            return self.others.free(storage, location, system);
        }
        self.free_block(rounded(self.program, storage, system.target()), location);
        Ok(())
    }

    fn allocate_concatenation(
        &mut self,
        tensor: &Concatenation,
        system: &mut System<'_>,
    ) -> Result<Location, DeviceError> {
        if tensor.pool != POOL {
            return self.others.allocate_concatenation(tensor, system);
        }
        self.allocate_block(tensor.value, tensor.bytes.next_multiple_of(unit(system.target())), system)
    }

    fn free_concatenation(
        &mut self,
        tensor: &Concatenation,
        location: Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        if tensor.pool != POOL {
            return self.others.free_concatenation(tensor, location, system);
        }
        self.free_block(tensor.bytes.next_multiple_of(unit(system.target())), location);
        Ok(())
    }

    fn concatenation_remainder(&self, tensor: &Concatenation, location: Location, target: &Target) -> u64 {
        if tensor.pool != POOL {
            return 0;
        }
        let bytes = tensor.bytes.next_multiple_of(unit(target));
        self.pools[Class::of(bytes) as usize].block_bytes(location) - bytes
    }

    fn remainder(&self, storage: ValueId, location: Location, target: &Target) -> u64 {
        if !self.is_cached(storage) {
            return self.others.remainder(storage, location, target);
        }
        let bytes = rounded(self.program, storage, target);
        self.pools[Class::of(bytes) as usize].block_bytes(location) - bytes
    }

    /// Leaked cached storages stay in their blocks.
    fn unpooled_bytes(&self, storage: ValueId, target: &Target) -> u64 {
        if self.is_cached(storage) { 0 } else { self.others.unpooled_bytes(storage, target) }
    }

    fn empty(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for class in Class::ALL {
            let pool = &mut self.pools[class as usize];
            if self.policy.expandable {
                self.stats.returned_bytes += expandable::shrink(pool, class, system)?;
                continue;
            }
            for (address, ..) in pool.wholly_free() {
                self.release_segment(class, address, system)?;
            }
        }
        Ok(())
    }

    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        self.empty(system)?;
        self.pools.iter_mut().try_for_each(|pool| expandable::close(pool, system))
    }

    /// The age of blocks matters only for garbage collection.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        let collects = self.policy.garbage_collection_threshold.is_some();
        let pools = self.pools.iter().zip(self.searches);
        Box::new(pools.flat_map(move |(pool, now)| pool.state(collects.then_some(now))))
    }

    fn fragments(&self) -> FreeMemory {
        let largest = self.pools.iter().filter_map(BlockPool::largest).map(|(_, bytes)| bytes).max();
        let bytes = self.pools.iter().map(BlockPool::free_bytes).sum();
        FreeMemory { bytes, largest: largest.unwrap_or(0) }
    }

    fn stats(&self) -> CacheStats {
        self.stats
    }
}
