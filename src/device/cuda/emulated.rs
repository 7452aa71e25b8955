//! Controls of the emulated driver of `tests/emulator`. They have no effect on a real driver.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::Delay;

type SetDelay = unsafe extern "C" fn(*const c_char) -> c_int;
type SetWay = unsafe extern "C" fn(c_int, *const c_char, *const c_char) -> c_int;

/// Streams created from now on delay one queue's work for as long as events allow.
pub fn emulate_delay(delay: Option<Delay>) {
    let word: &CStr = match delay {
        // The host queue runs inline and cannot be delayed.
        None | Some(Delay::Host) => c"none",
        Some(Delay::Communication) => c"communication",
        Some(Delay::Compute) => c"compute",
        Some(Delay::Copy) => c"copy",
    };
    let driver = driver();
    // SAFETY: the emulated driver declares the function with this type.
    unsafe {
        if let Ok(set) = driver.get::<SetDelay>(b"emulated_delay") {
            assert_eq!(set(word.as_ptr()), 0, "the emulated driver accepts {word:?}");
        }
    }
}

/// Sets the thread order and the rounding of sums and GELU for all later work of this thread, with the values of
/// `EMULATED_ORDER`, `EMULATED_SUMS` and `EMULATED_GELU`. Environment variables take precedence.
pub fn emulate_way(order: u16, sums: &CStr, gelu: &CStr) {
    let driver = driver();
    // SAFETY: the emulated driver declares the function with this type.
    unsafe {
        if let Ok(set) = driver.get::<SetWay>(b"emulated_way") {
            let status = set(c_int::from(order), sums.as_ptr(), gelu.as_ptr());
            assert_eq!(status, 0, "the emulated driver accepts {sums:?} and {gelu:?}");
        }
    }
}

/// Never unloaded: it would forget its settings.
fn driver() -> &'static Library {
    static DRIVER: OnceLock<Library> = OnceLock::new();
    // SAFETY: loading the driver runs only its initialisers.
    DRIVER.get_or_init(|| unsafe { Library::new("libcuda.so.1") }.expect("CUDA tests need a driver"))
}
