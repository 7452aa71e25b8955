//! One request per storage, returned when the storage is freed.

use std::iter;

use super::{Allocator, Location};
use crate::system::System;
use compile::Program;
use device::{DeviceError, Target};
use ops::ValueId;

pub(super) struct Direct<'a> {
    program: &'a Program,
}

impl Direct<'_> {
    pub(super) fn new(program: &Program) -> Direct<'_> {
        Direct { program }
    }
}

impl<'a> Allocator<'a> for Direct<'a> {
    fn select(&mut self, program: &'a Program) {
        self.program = program;
    }

    fn open(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError> {
        let bytes = super::rounded(self.program, storage, system.target());
        let buffer = system.request(self.program.value(storage).pool, bytes)?;
        Ok((buffer, 0))
    }

    fn free(
        &mut self,
        storage: ValueId,
        (buffer, _): Location,
        system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        let bytes = super::rounded(self.program, storage, system.target());
        system.give_back(self.program.value(storage).pool, buffer, bytes)
    }

    fn unpooled_bytes(&self, storage: ValueId, target: &Target) -> u64 {
        super::rounded(self.program, storage, target)
    }

    fn close(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Nothing is cached.
    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        Box::new(iter::empty())
    }
}
