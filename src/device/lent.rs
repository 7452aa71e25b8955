//! Memory of the host that a device handed out, lent to who fills it: threads of its own, which know no device.

// Others see bytes: here they are made of an address.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A region of a device's host memory, which stays where it is for as long as this and the device live, whatever becomes of the
/// buffer. Whoever holds it reads and writes it alone.
pub struct Lent {
    address: *mut u8,
    bytes: usize,
    /// Keeps the memory.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is kept, and used by one holder at a time.
unsafe impl Send for Lent {}

// SAFETY: who shares it reads alone.
unsafe impl Sync for Lent {}

impl Lent {
    /// So many bytes of memory that is there for as long as `keep` is.
    ///
    /// # Safety
    ///
    /// All of it is readable and writable, and initialised. No other that lives overlaps it, and what a device is told to copy
    /// there or from there is waited for before this is used again.
    pub(super) unsafe fn new(address: *mut u8, bytes: u64, keep: Arc<dyn Any + Send + Sync>) -> Lent {
        Lent { address, bytes: bytes as usize, _keep: keep }
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the device that made it has checked the bounds; the memory is kept and initialised by the system; its
        // holder alone uses it.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}
