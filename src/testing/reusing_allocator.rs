//! A stateful allocator, for tests of code that depends on a run's schedule.

use std::collections::BTreeMap;

use compile::Program;
use device::{Buffer, DeviceError, Pool};
use memory::{Allocator, Location, System, rounded};
use ops::ValueId;

/// Keeps all freed blocks, and allocates the block that has been free longest among those large enough. Its requests
/// therefore depend on the order of all earlier calls.
pub struct ReusingAllocator<'a> {
    program: &'a Program,
    /// Free buffers with their sizes, by pool, in the order in which they were freed.
    free: [Vec<(Buffer, u64)>; Pool::ALL.len()],
    /// The block size by storage and buffer. A leaked storage has several buffers.
    taken: BTreeMap<(u32, u32), u64>,
}

impl ReusingAllocator<'_> {
    pub fn boxed(program: &Program) -> Box<dyn Allocator<'_> + '_> {
        Box::new(ReusingAllocator { program, free: Default::default(), taken: BTreeMap::new() })
    }
}

impl<'a> Allocator<'a> for ReusingAllocator<'a> {
    fn select(&mut self, program: &'a Program) {
        self.program = program;
    }

    fn open(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError> {
        let bytes = rounded(self.program, storage, system.target());
        let pool = self.program.value(storage).pool;
        let free = &mut self.free[pool as usize];
        let (buffer, size) = match free.iter().position(|&(_, size)| size >= bytes) {
            Some(found) => free.remove(found),
            None => (system.request(pool, bytes)?, bytes),
        };
        self.taken.insert((storage.0, buffer.0), size);
        Ok((buffer, 0))
    }

    fn free(
        &mut self,
        storage: ValueId,
        (buffer, _): Location,
        _system: &mut System<'_>,
    ) -> Result<(), DeviceError> {
        let size = self.taken.remove(&(storage.0, buffer.0)).expect("it was allocated");
        self.free[self.program.value(storage).pool as usize].push((buffer, size));
        Ok(())
    }

    fn close(&mut self, system: &mut System<'_>) -> Result<(), DeviceError> {
        for pool in Pool::ALL {
            for (buffer, size) in self.free[pool as usize].drain(..) {
                system.give_back(pool, buffer, size)?;
            }
        }
        Ok(())
    }

    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        let free = |blocks: &Vec<(Buffer, u64)>| -> Vec<u64> {
            std::iter::once(blocks.len() as u64).chain(blocks.iter().map(|&(_, size)| size)).collect()
        };
        let taken = self.taken.iter().flat_map(|(&(storage, _), &size)| [u64::from(storage), size]);
        Box::new(self.free.iter().flat_map(free).chain(taken))
    }
}
