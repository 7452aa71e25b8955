//! One request for each pool, made before the program begins. Storages have planned places in it.

use super::{Allocator, Location};
use crate::compile::Program;
use crate::device::{Buffer, DeviceError, Pool};
use crate::memory::system::System;
use crate::ops::ValueId;

pub(super) struct Arena<'a> {
    program: &'a Program,
    /// By pool, where the program places anything there.
    buffers: [Option<Buffer>; Pool::ALL.len()],
}

impl Arena<'_> {
    pub(super) fn new(program: &Program) -> Arena<'_> {
        Arena { program, buffers: [None; Pool::ALL.len()] }
    }
}

impl Allocator for Arena<'_> {
    fn open(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for pool in Pool::ALL {
            let bytes = self.program.arenas[pool as usize];
            if bytes > 0 {
                self.buffers[pool as usize] = Some(system.request(pool, bytes)?);
            }
        }
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, _system: &mut System<'_>) -> Result<Location, DeviceError> {
        let buffer = self.buffers[self.program.value(storage).pool as usize];
        let place = self.program.places[storage.index()];
        Ok(buffer.zip(place).expect("placed: the arena has room for every storage"))
    }

    fn free(
        &mut self,
        _storage: ValueId,
        _at: Location,
        _system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for pool in Pool::ALL {
            if let Some(buffer) = self.buffers[pool as usize].take() {
                system.give_back(pool, buffer, self.program.arenas[pool as usize])?;
            }
        }
        Ok(())
    }

    /// Places were planned before anything happened.
    fn state(&self) -> Vec<u64> {
        Vec::new()
    }
}
