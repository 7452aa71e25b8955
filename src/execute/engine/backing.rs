//! The device as the source of the memory manager's memory.

use compile::Program;
use device::{Buffer, Device, DeviceError, Pool, Queue, Region};
use memory::Backing;
use spec::Allocator;

/// A device as the backing store of the memory manager. It counts the memory requests.
pub(super) struct DeviceBacking<'a> {
    pub(super) device: &'a mut dyn Device,
    pub(super) requests: u64,
    /// Whether each request is a single value, for the driver's own pool.
    is_direct: bool,
}

impl<'a> DeviceBacking<'a> {
    pub(super) fn new(program: &Program, device: &'a mut dyn Device) -> DeviceBacking<'a> {
        let is_direct = matches!(program.allocator, Allocator::Direct);
        DeviceBacking { device, requests: 0, is_direct }
    }
}

impl Backing for DeviceBacking<'_> {
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.requests += 1;
        if self.is_direct {
            self.device.allocate(pool, bytes)
        } else {
            self.device.allocate_segment(pool, bytes)
        }
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
