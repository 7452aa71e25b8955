//! Where the memory of storages comes from. An allocator is one file here, and a line where it is chosen.

mod arena;
mod caching;
mod direct;
mod work;

use arena::Arena;
use caching::Caching;
use direct::Direct;
pub use work::{CacheWork, Pieces};

use super::system::System;
use compile::Program;
use device::{Buffer, DeviceError, Pool, Target};
use ops::ValueId;

/// Where a storage is: in which buffer, and at which byte of it.
pub type Location = (Buffer, u64);

/// Gives storages their memory, and asks the system for what that takes. Both a prediction and a run ask it in the
/// same order, so what it answers must follow from that and from its state alone: never from a buffer's number.
pub trait Allocator {
    /// Takes what it wants to have before the program begins.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    fn open(&mut self, system: &mut System<'_>) -> Result<(), DeviceError>;

    /// Finds room for a storage.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError>;

    /// Takes back the room of a storage, which was found there.
    ///
    /// # Errors
    /// A device that fails.
    fn free(
        &mut self,
        storage: ValueId,
        location: Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError>;

    /// Bytes that are asked of the system for a storage alone, and are nothing that this keeps an account of.
    fn asked_for(&self, _storage: ValueId, _target: &Target) -> u64 {
        0
    }

    /// Gives back what it holds that no storage has any room in.
    ///
    /// # Errors
    /// A device that fails.
    fn empty(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives back all that it still holds, once no storage has room.
    ///
    /// # Errors
    /// A device that fails.
    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError>;

    /// All that its answers from now on depend on, beside what it is asked: of two moments at which this and what is
    /// live are equal, what follows is equal. Empty where nothing of the past matters.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_>;

    /// What it holds between storages and could not give back.
    fn pieces(&self) -> Pieces {
        Pieces::default()
    }

    /// What it did so far, if it keeps what is freed.
    fn work(&self) -> CacheWork {
        CacheWork::default()
    }
}

/// The allocator that a program was compiled for.
pub(super) fn of(program: &Program) -> Box<dyn Allocator + '_> {
    match program.allocator {
        spec::Allocator::Arena => Box::new(Arena::new(program)),
        spec::Allocator::Direct => Box::new(Direct::new(program)),
        spec::Allocator::Caching(settings) => Box::new(Caching::new(program, settings)),
    }
}

/// Bytes that a storage takes of its pool.
pub fn rounded(program: &Program, storage: ValueId, target: &Target) -> u64 {
    let unit = match program.allocator {
        spec::Allocator::Arena => target.alignment.0,
        spec::Allocator::Caching(_) if program.value(storage).pool == Pool::Device => caching::unit(target),
        spec::Allocator::Direct | spec::Allocator::Caching(_) => target.page.0,
    };
    program.ty(storage).bytes().next_multiple_of(unit)
}
