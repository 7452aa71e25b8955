//! Allocators: they assign memory to storages. To add one, write a file or folder here and add a line to `of`.

mod arena;
mod caching;
mod direct;
mod stats;

use arena::Arena;
use caching::Caching;
use direct::Direct;
pub use stats::{CacheStats, FreeMemory};

use super::system::System;
use compile::Program;
use device::{Buffer, DeviceError, Pool, Target};
use ops::ValueId;

/// The location of a storage: a buffer and an offset in it, in bytes.
pub type Location = (Buffer, u64);

/// The concatenated outputs of an evaluation (`evaluation.collect`). The tensor has no value in the program, so an
/// allocator receives its size instead.
#[derive(Clone, Copy, Debug)]
pub struct Concatenation {
    /// The last output in the concatenation.
    pub value: ValueId,
    pub pool: Pool,
    pub bytes: u64,
}

/// Allocates storages in memory that it requests from the system. A prediction and a run make the same calls in the
/// same order. An allocator must be deterministic: its results depend only on these calls, never on buffer ids.
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

    /// Like [`remainder`](Allocator::remainder), for a concatenation.
    fn concatenation_remainder(&self, _tensor: &Concatenation, _location: Location, _target: &Target) -> u64 {
        0
    }

    /// Bytes of an allocated block beyond the rounded size of its storage (internal fragmentation). They count as live.
    fn remainder(&self, _storage: ValueId, _location: Location, _target: &Target) -> u64 {
        0
    }

    /// Bytes that the allocator requests from the system for this storage alone: 0 if the storage shares a larger
    /// request.
    fn unpooled_bytes(&self, _storage: ValueId, _target: &Target) -> u64 {
        0
    }

    /// Returns unused memory to the system, like `torch.cuda.empty_cache()`.
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

    /// The state that determines later results: with equal states and live storages, equal calls have equal results.
    /// Empty for stateless allocators.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_>;

    /// Free memory that the allocator cannot return to the system (fragmentation).
    fn fragments(&self) -> FreeMemory {
        FreeMemory::default()
    }

    /// Counters so far. All are 0 for an allocator that does not cache freed memory.
    fn stats(&self) -> CacheStats {
        CacheStats::default()
    }
}

/// Creates the allocator that a program was compiled for.
pub(super) fn of(program: &Program) -> Box<dyn Allocator<'_> + '_> {
    match program.allocator {
        spec::Allocator::Arena => Box::new(Arena::new(program)),
        spec::Allocator::Direct => Box::new(Direct::new(program)),
        spec::Allocator::Caching(settings) => Box::new(Caching::new(program, settings)),
    }
}

/// Bytes that a storage occupies in its pool, rounded up to the allocator's unit.
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
