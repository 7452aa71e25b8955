//! Keeps what is freed, as PyTorch's allocator does, of the device's memory. What the host holds is asked for value by value.
//!
//! A request gets the smallest free block that is large enough. What it leaves becomes a block of its own, and is one again
//! with its neighbours when these are free. So memory that is free may lie in pieces, of which none is large enough.
//!
//! PyTorch has pools for each stream, and holds back a block that another stream has used until an event tells that it is
//! done. Here programs free nothing before the compute queue, whose order allocations follow, has waited for all that
//! used it (`compile/events.rs`): there is one queue to have pools for, and every block that is free can be used at once.

mod expandable;
mod policy;
mod pool;
#[cfg(test)]
mod tests;

use policy::{Class, Policy};
use pool::{BlockPool, Place};

use super::direct::Direct;
use super::{Allocator, CacheWork, Location, Pieces, rounded};
use crate::system::System;
use compile::Program;
use device::{DeviceError, Pool, Target};
use ops::ValueId;

/// What is cached.
const POOL: Pool = Pool::Device;

pub(super) struct Caching<'a> {
    program: &'a Program,
    policy: Policy,
    /// By class.
    pools: [BlockPool; Class::ALL.len()],
    /// By class: how often a block was looked for.
    searches: [u64; Class::ALL.len()],
    /// Of all other pools.
    others: Direct<'a>,
    work: CacheWork,
}

/// What a storage is rounded to.
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
            work: CacheWork::default(),
        }
    }

    fn is_cached(&self, storage: ValueId) -> bool {
        self.program.value(storage).pool == POOL
    }

    /// Gives a storage room, in a block from the cache or from the system.
    fn take(
        &mut self,
        storage: ValueId,
        bytes: u64,
        system: &mut System<'_>,
    ) -> Result<Location, DeviceError> {
        let class = Class::of(bytes);
        self.searches[class as usize] += 1;
        self.work.allocations += 1;
        let (place, block) = match self.cached(class, bytes) {
            Some(cached) => {
                self.work.hits += 1;
                cached
            }
            None => self.fetched(class, bytes, system)?,
        };
        let is_split = self.policy.splits(class, block, bytes);
        self.work.splits += u64::from(is_split);
        let taken = if is_split { bytes } else { block };
        Ok(self.pools[class as usize].claim(place, taken, storage))
    }

    /// Takes back the room of so many bytes.
    fn put_back(&mut self, bytes: u64, location: Location) {
        let class = Class::of(bytes) as usize;
        self.pools[class].take_back(location, self.searches[class]);
    }

    fn cached(&self, class: Class, bytes: u64) -> Option<(Place, u64)> {
        let pool = &self.pools[class as usize];
        if self.policy.expandable {
            return pool.best_fit_but_for_growth(bytes);
        }
        pool.best_fit(bytes).filter(|&(_, block)| self.policy.serves(block, bytes))
    }

    /// Asks the system for a block. Where it is refused, by the limit or by a system that has no more, what is cached goes back, and
    /// it is asked for again.
    fn fetched(
        &mut self,
        class: Class,
        bytes: u64,
        system: &mut System<'_>,
    ) -> Result<(Place, u64), DeviceError> {
        self.collect_garbage(system)?;
        let is_refused = |answer: &Result<_, _>| {
            matches!(answer, Err(DeviceError::BeyondLimit { .. } | DeviceError::OutOfMemory { .. }))
        };
        let mut answer = self.ask(class, bytes, system);
        if is_refused(&answer) && self.release_oversize(bytes, system)? {
            answer = self.ask(class, bytes, system);
        }
        if is_refused(&answer) {
            self.empty(system)?;
            answer = self.ask(class, bytes, system);
        }
        answer
    }

    fn ask(
        &mut self,
        class: Class,
        bytes: u64,
        system: &mut System<'_>,
    ) -> Result<(Place, u64), DeviceError> {
        let pool = &mut self.pools[class as usize];
        if self.policy.expandable {
            return expandable::grow(pool, class, bytes, system);
        }
        let segment = policy::segment(bytes, system.target().page.0);
        let buffer = system.request(POOL, segment)?;
        Ok((pool.add(buffer, segment), segment))
    }

    /// Gives back one segment that is never split and large enough for a request; where there is none, the largest ones
    /// that are never split until they are as large together. Returns whether they are.
    fn release_oversize(&mut self, bytes: u64, system: &mut System<'_>) -> Result<bool, DeviceError> {
        let Some(oversize) = self.policy.oversize() else { return Ok(false) };
        let class = Class::of(bytes);
        let wanted = bytes.max(oversize);
        // Where pages are large, parts of segments may be as large as what is never split.
        let whole = self.pools[class as usize].wholly_free().into_iter();
        let mut whole: Vec<(u64, Place)> =
            whole.map(|(place, block, _)| (block, place)).filter(|(block, _)| *block >= oversize).collect();
        whole.sort_unstable();
        if let Some(&(_, place)) = whole.iter().find(|(block, _)| *block >= wanted) {
            return self.release(class, place, system).map(|()| true);
        }
        let mut released = 0;
        while released < wanted
            && let Some((block, place)) = whole.pop()
        {
            self.release(class, place, system)?;
            released += block;
        }
        Ok(released >= wanted)
    }

    /// Where more is reserved than a share of the limit: gives back large segments that have been free for longer than the
    /// average of those that are free, until no more is reserved than that.
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
            // All that are as old, lest it has to be done again soon.
            let (old, young): (Vec<_>, Vec<_>) =
                free.into_iter().partition(|&(_, _, since)| age(since) as f64 >= average);
            free = young;
            for (place, bytes, _) in old {
                self.release(Class::Large, place, system)?;
                reclaimed += bytes;
            }
        }
        Ok(())
    }

    /// Gives the segment of a block that is all of it back to the system.
    fn release(&mut self, class: Class, place: Place, system: &mut System<'_>) -> Result<(), DeviceError> {
        let (buffer, bytes) = self.pools[class as usize].drop_segment(place);
        self.work.returned_bytes += bytes;
        system.give_back(POOL, buffer, bytes)
    }
}

impl Allocator for Caching<'_> {
    fn open(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError> {
        if !self.is_cached(storage) {
            return self.others.allocate(storage, system);
        }
        self.take(storage, rounded(self.program, storage, system.target()), system)
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
        self.put_back(rounded(self.program, storage, system.target()), location);
        Ok(())
    }

    /// What is left behind of what is cached stays in its block.
    fn asked_for(&self, storage: ValueId, target: &Target) -> u64 {
        if self.is_cached(storage) { 0 } else { self.others.asked_for(storage, target) }
    }

    fn empty(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for class in Class::ALL {
            let pool = &mut self.pools[class as usize];
            if self.policy.expandable {
                self.work.returned_bytes += expandable::shrink(pool, class, system)?;
                continue;
            }
            for (place, ..) in pool.wholly_free() {
                self.release(class, place, system)?;
            }
        }
        Ok(())
    }

    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        self.empty(system)?;
        self.pools.iter_mut().try_for_each(|pool| expandable::close(pool, system))
    }

    /// How old blocks are decides nothing unless garbage is collected.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        let collects = self.policy.garbage_collection_threshold.is_some();
        let pools = self.pools.iter().zip(self.searches);
        Box::new(pools.flat_map(move |(pool, now)| pool.state(collects.then_some(now))))
    }

    fn pieces(&self) -> Pieces {
        let largest = self.pools.iter().filter_map(BlockPool::largest).map(|(_, bytes)| bytes).max();
        let bytes = self.pools.iter().map(BlockPool::free_bytes).sum();
        Pieces { bytes, largest: largest.unwrap_or(0) }
    }

    fn work(&self) -> CacheWork {
        self.work
    }
}
