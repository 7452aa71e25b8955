//! Memory of the system's, whole pages of it.

use memmap2::{MmapMut, MmapOptions};

use crate::device::{DeviceError, Pool};

/// An anonymous mapping, populated: every page of it is resident from the start.
pub(in crate::device) struct Mapping {
    map: MmapMut,
    /// Taken once, when nothing else could refer to it, so that queues may work on parts of it.
    base: *mut u8,
}

// SAFETY: the memory belongs to the mapping, and the base stays valid for as long as the mapping lives. Who
// works on which part of it, and when, is up to the program that is run: its verifier orders the queues.
unsafe impl Send for Mapping {}
// SAFETY: as above; no reference to the memory is ever made through `&Mapping`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Errors
    /// `OutOfMemory`, or `Lost` if the system maps none for another reason.
    pub(in crate::device) fn new(pool: Pool, bytes: u64) -> Result<Mapping, DeviceError> {
        let mapped = MmapOptions::new().len(bytes.max(1) as usize).populate().map_anon();
        let mut map = mapped.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM) => DeviceError::OutOfMemory { pool, bytes },
            _ => DeviceError::Lost(format!("the system maps no memory: {error}")),
        })?;
        let base = map.as_mut_ptr();
        Ok(Mapping { map, base })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Panics past the end: callers have checked their regions.
    pub(in crate::device) fn address(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes());
        // SAFETY: the offset lies within the mapping or at its end.
        unsafe { self.base.add(offset as usize) }
    }
}
