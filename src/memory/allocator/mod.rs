//! Allocators: the memory of storages. An allocator is one file here, and one line in `of`.

mod arena;
mod caching;
mod direct;
mod work;

use arena::Arena;
use caching::Caching;
use direct::Direct;
pub use work::{CacheStats, FreeMemory};

use super::system::System;
use compile::Program;
use device::{Buffer, DeviceError, Pool, Target};
use ops::ValueId;

/// The location of a storage: its buffer, and its offset in bytes.
pub type Location = (Buffer, u64);

/// A tensor that is no value of the program: collected outputs, concatenated.
#[derive(Clone, Copy, Debug)]
pub struct Concatenation {
    /// The output that was added last.
    pub value: ValueId,
    pub pool: Pool,
    pub bytes: u64,
}

/// Allocates storages in memory that it requests from the system. A prediction and a run make the same calls in the
/// same order, so results may depend only on these and on the allocator's state, never on buffer ids.
pub trait Allocator<'a> {
    /// Makes the initial requests, before the program begins.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    fn open(&mut self, system: &mut System<'_>) -> Result<(), DeviceError>;

    /// From now on, storages have their sizes in another program of the same structure.
    fn select(&mut self, program: &'a Program);

    /// Allocates a storage.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError>;

    /// Frees a storage, which was allocated at `location`.
    ///
    /// # Errors
    /// A device that fails.
    fn free(
        &mut self,
        storage: ValueId,
        location: Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError>;

    /// Allocates a concatenation.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    fn allocate_concatenation(
        &mut self,
        tensor: &Concatenation,
        system: &mut System<'_>,
    ) -> Result<Location, DeviceError> {
        let bytes = tensor.bytes.next_multiple_of(system.target().page.0);
        Ok((system.request(tensor.pool, bytes)?, 0))
    }

    /// Frees a concatenation, which was allocated at `location`.
    ///
    /// # Errors
    /// A device that fails.
    fn free_concatenation(
        &mut self,
        tensor: &Concatenation,
        (buffer, _): Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        let bytes = tensor.bytes.next_multiple_of(system.target().page.0);
        system.give_back(tensor.pool, buffer, bytes)
    }

    /// As [`remainder`](Allocator::remainder), of a concatenation.
    fn concatenation_remainder(&self, _tensor: &Concatenation, _location: Location, _target: &Target) -> u64 {
        0
    }

    /// Bytes of an allocated storage's block beyond the storage's own, rounded ones. They count as allocated.
    fn remainder(&self, _storage: ValueId, _location: Location, _target: &Target) -> u64 {
        0
    }

    /// Bytes that are requested from the system for this storage alone, outside of the allocator's pools.
    fn unpooled_bytes(&self, _storage: ValueId, _target: &Target) -> u64 {
        0
    }

    /// Returns memory that no storage uses to the system.
    ///
    /// # Errors
    /// A device that fails.
    fn empty(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns all memory, once no storage is allocated.
    ///
    /// # Errors
    /// A device that fails.
    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError>;

    /// The state that later results depend on, besides the calls: from equal states and live storages, equal calls
    /// have equal results. Empty for stateless allocators.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_>;

    /// Free memory that it cannot return to the system.
    fn pieces(&self) -> FreeMemory {
        FreeMemory::default()
    }

    /// Work so far, if it caches freed memory.
    fn work(&self) -> CacheStats {
        CacheStats::default()
    }
}

/// The allocator that a program was compiled for.
pub(super) fn of(program: &Program) -> Box<dyn Allocator<'_> + '_> {
    match program.allocator {
        spec::Allocator::Arena => Box::new(Arena::new(program)),
        spec::Allocator::Direct => Box::new(Direct::new(program)),
        spec::Allocator::Caching(settings) => Box::new(Caching::new(program, settings)),
    }
}

/// Bytes that a storage occupies in its pool, rounding to the allocator's unit included.
pub fn rounded(program: &Program, storage: ValueId, target: &Target) -> u64 {
    program.ty(storage).bytes().next_multiple_of(unit(program, program.value(storage).pool, target))
}

/// The unit that the allocator rounds to in a pool.
pub(super) fn unit(program: &Program, pool: Pool, target: &Target) -> u64 {
    match program.allocator {
        spec::Allocator::Arena => target.alignment.0,
        spec::Allocator::Caching(_) if pool == Pool::Device => caching::unit(target),
        spec::Allocator::Direct | spec::Allocator::Caching(_) => target.page.0,
    }
}
