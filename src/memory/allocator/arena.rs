//! One request per pool, made before the program begins. Storages have planned offsets in it, except leaked and
//! collected ones, each of which has its own request.

use std::iter;

use super::{Allocator, Location};
use crate::system::System;
use compile::Program;
use device::{Buffer, DeviceError, Pool, Target};
use ops::ValueId;

pub(super) struct Arena<'a> {
    program: &'a Program,
    /// By pool: its arena, if it is not empty.
    buffers: [Option<Buffer>; Pool::ALL.len()],
}

impl Arena<'_> {
    pub(super) fn new(program: &Program) -> Arena<'_> {
        Arena { program, buffers: [None; Pool::ALL.len()] }
    }
}

impl<'a> Allocator<'a> for Arena<'a> {
    fn select(&mut self, program: &'a Program) {
        self.program = program;
    }

    fn open(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for pool in Pool::ALL {
            let bytes = self.program.arenas[pool as usize];
            if bytes > 0 {
                self.buffers[pool as usize] = Some(system.request(pool, bytes)?);
            }
        }
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError> {
        let pool = self.program.value(storage).pool;
        let Some(offset) = self.program.arena_offsets[storage.index()] else {
            let bytes = self.unpooled_bytes(storage, system.target());
            return Ok((system.request(pool, bytes)?, 0));
        };
        let buffer = self.buffers[pool as usize].expect("a pool with storages has an arena");
        Ok((buffer, offset))
    }

    fn free(
        &mut self,
        storage: ValueId,
        (buffer, _): Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        match self.unpooled_bytes(storage, system.target()) {
            0 => Ok(()),
            bytes => system.give_back(self.program.value(storage).pool, buffer, bytes),
        }
    }

    fn unpooled_bytes(&self, storage: ValueId, target: &Target) -> u64 {
        match self.program.arena_offsets[storage.index()] {
            Some(_) => 0,
            None => self.program.ty(storage).bytes().next_multiple_of(target.page.0),
        }
    }

    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for pool in Pool::ALL {
            if let Some(buffer) = self.buffers[pool as usize].take() {
                system.give_back(pool, buffer, self.program.arenas[pool as usize])?;
            }
        }
        Ok(())
    }

    /// Offsets are planned before the run.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        Box::new(iter::empty())
    }
}
