//! What allocators ask memory of: a backing store behind the target's limit. The ledger hears of every request.

use device::{Buffer, DeviceError, Ledger, Pool, Region, Target};

/// Where memory comes from.
pub trait Backing {
    /// Memory of this many bytes, a multiple of the target's page.
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError>;

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Addresses in the device's pool.
    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError>;

    /// Memory behind a part of them.
    fn commit(&mut self, part: Region) -> Result<(), DeviceError>;

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError>;
}

/// A backing store as allocators see it.
pub struct System<'m> {
    pub(super) backing: &'m mut dyn Backing,
    pub(super) ledger: &'m mut Ledger,
    pub(super) target: &'m Target,
}

impl System<'_> {
    pub fn target(&self) -> &Target {
        self.target
    }

    /// What is asked for of a pool and not given back.
    pub fn reserved(&self, pool: Pool) -> u64 {
        self.ledger.usage(pool).reserved
    }

    /// Memory of this many bytes, a multiple of the target's page.
    ///
    /// # Errors
    /// `BeyondLimit` where the limit has no room for it, or a device that fails or has none.
    pub fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.has_room(pool, bytes)?;
        let buffer = self.backing.request(pool, bytes)?;
        self.ledger.reserved(pool, bytes);
        Ok(buffer)
    }

    /// Addresses in the device's pool, with no memory behind them: they count as nothing.
    ///
    /// # Errors
    /// A device that fails or has none.
    pub fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.backing.reserve(bytes)
    }

    /// Memory behind parts of what was reserved, all or none of them.
    ///
    /// # Errors
    /// As from `request`.
    pub fn commit(&mut self, parts: &[Region]) -> Result<(), DeviceError> {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        self.has_room(Pool::Device, bytes)?;
        for (done, part) in parts.iter().enumerate() {
            if let Err(error) = self.backing.commit(*part) {
                parts[..done].iter().try_for_each(|part| self.backing.decommit(*part))?;
                return Err(error);
            }
        }
        self.ledger.reserved(Pool::Device, bytes);
        Ok(())
    }

    /// Gives back the memory behind a part.
    ///
    /// # Errors
    /// A device that fails.
    pub fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.backing.decommit(part)?;
        self.ledger.returned(Pool::Device, part.bytes);
        Ok(())
    }

    /// Gives back addresses, once there is no memory behind them.
    ///
    /// # Errors
    /// A device that fails.
    pub fn give_up(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.backing.give_back(buffer)
    }

    fn has_room(&self, pool: Pool, bytes: u64) -> Result<(), DeviceError> {
        let reserved = self.ledger.usage_at(pool.home()).reserved + bytes;
        match self.target.short_of(pool.home(), reserved) {
            0 => Ok(()),
            _ => Err(DeviceError::BeyondLimit { pool, bytes }),
        }
    }

    /// Gives back what was requested.
    ///
    /// # Errors
    /// A device that fails.
    pub fn give_back(&mut self, pool: Pool, buffer: Buffer, bytes: u64) -> Result<(), DeviceError> {
        self.backing.give_back(buffer)?;
        self.ledger.returned(pool, bytes);
        Ok(())
    }
}

/// A backing that has all the memory in the world and hands out none.
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
}
