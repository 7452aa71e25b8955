//! The device as the source of the memory manager's memory.

use device::{Buffer, Device, DeviceError, Pool, Queue, Region};
use memory::Backing;

/// A device as the backing store of the memory manager. It counts the memory requests.
pub(super) struct DeviceBacking<'a> {
    pub(super) device: &'a mut dyn Device,
    pub(super) requests: u64,
}

impl Backing for DeviceBacking<'_> {
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.requests += 1;
        self.device.allocate(pool, bytes)
    }

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.device.free(buffer)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.device.reserve(bytes)
    }

    fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.requests += 1;
        self.device.commit(part)
    }

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.device.decommit(part)
    }

    fn copy(&mut self, from: Region, to: Region) -> Result<(), DeviceError> {
        self.device.copy(Queue::Compute, from, to)
    }
}
