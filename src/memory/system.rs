//! The system that allocators request memory from: a backing store behind the target's limit. Every request is
//! reported to the ledger.

use device::{Buffer, DeviceError, Ledger, Pool, Region, Target};

/// A source of memory.
pub trait Backing {
    /// Requests `bytes` bytes, a multiple of the target's page.
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError>;

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Reserves addresses in the device pool.
    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError>;

    /// Backs a part of reserved addresses with memory.
    fn commit(&mut self, part: Region) -> Result<(), DeviceError>;

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError>;

    /// Copies between regions of equal size, in the order of the compute queue.
    fn copy(&mut self, from: Region, to: Region) -> Result<(), DeviceError>;
}

/// The backing store as allocators see it.
pub struct System<'m> {
    pub(super) backing: &'m mut dyn Backing,
    pub(super) ledger: &'m mut Ledger,
    pub(super) target: &'m Target,
}

impl System<'_> {
    pub fn target(&self) -> &Target {
        self.target
    }

    /// Bytes of a pool that were requested and not returned.
    pub fn reserved(&self, pool: Pool) -> u64 {
        self.ledger.usage(pool).reserved
    }

    /// Requests `bytes` bytes, a multiple of the target's page.
    ///
    /// # Errors
    /// `BeyondLimit` if the request exceeds the limit, or a device that fails or is out of memory.
    pub fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.check_limit(pool, bytes)?;
        let buffer = self.backing.request(pool, bytes)?;
        self.ledger.reserved(pool, bytes);
        Ok(buffer)
    }

    /// Reserves addresses in the device pool without memory; they do not count as reserved bytes.
    ///
    /// # Errors
    /// A device that fails or is out of addresses.
    pub fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.backing.reserve(bytes)
    }

    /// Backs parts of reserved addresses with memory, all or none of them.
    ///
    /// # Errors
    /// As from `request`.
    pub fn commit(&mut self, parts: &[Region]) -> Result<(), DeviceError> {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        self.check_limit(Pool::Device, bytes)?;
        for (done, part) in parts.iter().enumerate() {
            if let Err(error) = self.backing.commit(*part) {
                parts[..done].iter().try_for_each(|part| self.backing.decommit(*part))?;
                return Err(error);
            }
        }
        self.ledger.reserved(Pool::Device, bytes);
        Ok(())
    }

    /// Returns the memory behind a part.
    ///
    /// # Errors
    /// A device that fails.
    pub fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.backing.decommit(part)?;
        self.ledger.returned(Pool::Device, part.bytes);
        Ok(())
    }

    /// Releases addresses that have no memory behind them.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn unreserve(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.backing.give_back(buffer)
    }

    fn check_limit(&self, pool: Pool, bytes: u64) -> Result<(), DeviceError> {
        let reserved = self.ledger.usage_at(pool.home()).reserved + bytes;
        match self.target.short_of(pool.home(), reserved) {
            0 => Ok(()),
            _ => Err(DeviceError::BeyondLimit { pool, bytes }),
        }
    }

    /// Returns requested memory.
    ///
    /// # Errors
    /// A device that fails.
    pub fn give_back(&mut self, pool: Pool, buffer: Buffer, bytes: u64) -> Result<(), DeviceError> {
        self.backing.give_back(buffer)?;
        self.ledger.returned(pool, bytes);
        Ok(())
    }
}

/// A backing with unlimited memory that provides none.
#[derive(Debug, Default)]
pub(super) struct NoStorage {
    next: u32,
}

impl Backing for NoStorage {
    fn request(&mut self, _pool: Pool, _bytes: u64) -> Result<Buffer, DeviceError> {
        self.next += 1;
        Ok(Buffer(self.next))
    }

    fn give_back(&mut self, _buffer: Buffer) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reserve(&mut self, _bytes: u64) -> Result<Buffer, DeviceError> {
        self.next += 1;
        Ok(Buffer(self.next))
    }

    fn commit(&mut self, _part: Region) -> Result<(), DeviceError> {
        Ok(())
    }

    fn decommit(&mut self, _part: Region) -> Result<(), DeviceError> {
        Ok(())
    }

    fn copy(&mut self, _from: Region, _to: Region) -> Result<(), DeviceError> {
        Ok(())
    }
}
