//! Memory of the system's, whole pages of it.

use std::ptr;

use libc::{
    ENOMEM, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_POPULATE, MAP_PRIVATE, PROT_NONE,
    PROT_READ, PROT_WRITE,
};

use crate::{DeviceError, Pool};

/// An anonymous mapping. Every page of it is resident from the start, unless it is a reservation: of that, no page is there
/// until it is committed.
pub(crate) struct Mapping {
    /// Queues may work on parts of it: no reference to the memory is made, but of what is lent, by who holds that.
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping, and the base stays valid for as long as the mapping lives. Who
// works on which part of it, and when, is up to the program that is run: its verifier orders the queues.
unsafe impl Send for Mapping {}
// SAFETY: as above; no reference to the memory is made through `&Mapping`, but of regions that are lent, each to one holder.
unsafe impl Sync for Mapping {}

const RESIDENT: (i32, i32) = (PROT_READ | PROT_WRITE, MAP_POPULATE);
const ABSENT: (i32, i32) = (PROT_NONE, MAP_NORESERVE);

impl Mapping {
    /// # Errors
    /// `OutOfMemory`, or `Lost` if the system maps none for another reason.
    pub(crate) fn new(pool: Pool, bytes: u64) -> Result<Mapping, DeviceError> {
        Mapping::anywhere(pool, bytes, RESIDENT)
    }

    /// Addresses, with nothing behind them.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn reserve(pool: Pool, bytes: u64) -> Result<Mapping, DeviceError> {
        Mapping::anywhere(pool, bytes, ABSENT)
    }

    fn anywhere(pool: Pool, bytes: u64, kind: (i32, i32)) -> Result<Mapping, DeviceError> {
        let size = bytes.max(1) as usize;
        // SAFETY: the system chooses addresses that nothing lies at.
        let base = unsafe { map(ptr::null_mut(), size, kind, 0) };
        base.map(|base| Mapping { base, bytes: size }).map_err(|error| described(&error, pool, bytes))
    }

    /// Makes whole pages of a reservation resident. What they hold is zero.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn commit(&self, pool: Pool, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.remap(offset, bytes, RESIDENT).map_err(|error| described(&error, pool, bytes))
    }

    /// Gives whole pages of a reservation back. Nothing works on them any more.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn give_back(&self, pool: Pool, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.remap(offset, bytes, ABSENT).map_err(|error| described(&error, pool, bytes))
    }

    fn remap(&self, offset: u64, bytes: u64, kind: (i32, i32)) -> std::io::Result<()> {
        assert!(offset + bytes <= self.bytes());
        // SAFETY: the pages are the mapping's own, and hold nothing that is still needed.
        unsafe { map(self.address(offset), bytes as usize, kind, MAP_FIXED) }.map(drop)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Panics past the end: callers have checked their regions.
    pub(crate) fn address(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes());
        // SAFETY: the offset lies within the mapping or at its end.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once; whoever worked on it held it.
        let unmapped = unsafe { libc::munmap(self.base.cast(), self.bytes) };
        debug_assert_eq!(unmapped, 0, "its addresses are whole pages");
    }
}

/// # Safety
/// Where `fixed` is `MAP_FIXED`, what lies there is the caller's to replace.
unsafe fn map(
    at: *mut u8,
    bytes: usize,
    (protection, flags): (i32, i32),
    fixed: i32,
) -> std::io::Result<*mut u8> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | flags | fixed;
    // SAFETY: the caller's promise.
    match unsafe { libc::mmap(at.cast(), bytes, protection, flags, -1, 0) } {
        MAP_FAILED => Err(std::io::Error::last_os_error()),
        base => Ok(base.cast()),
    }
}

fn described(error: &std::io::Error, pool: Pool, bytes: u64) -> DeviceError {
    match error.raw_os_error() {
        Some(ENOMEM) => DeviceError::OutOfMemory { pool, bytes },
        _ => DeviceError::Lost(format!("the system maps no memory: {error}")),
    }
}
