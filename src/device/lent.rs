//! Host memory of a device, lent to threads that fill it without access to the device.

// `HostSlice` derefs to a byte slice built from an address.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A region of a device's host memory. The memory stays mapped while this value and the device live, even if the buffer
/// is freed. The holder has exclusive access.
pub struct HostSlice {
    address: *mut u8,
    bytes: usize,
    /// Keeps the memory mapped.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `_keep` keeps the memory mapped; one holder uses it at a time.
unsafe impl Send for HostSlice {}

// SAFETY: shared references only read.
unsafe impl Sync for HostSlice {}

impl HostSlice {
    /// `bytes` bytes of memory that stays mapped while `keep` lives.
    ///
    /// # Safety
    ///
    /// All bytes are readable, writable and initialised. No other live `HostSlice` overlaps them. The holder waits for the
    /// device's copies to or from the memory before it uses the memory again.
    pub(super) unsafe fn new(address: *mut u8, bytes: u64, keep: Arc<dyn Any + Send + Sync>) -> HostSlice {
        HostSlice { address, bytes: bytes as usize, _keep: keep }
    }
}

impl Deref for HostSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the device has checked the bounds; the memory is kept mapped and initialised by the system; the
        // holder has exclusive access.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }
}

impl DerefMut for HostSlice {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}
