//! Tells the stand-in driver of `tests/emulator` what to do beyond what a driver does. Nothing happens with a driver that is
//! no stand-in: a card takes the time and the ways it takes.

use std::ffi::{CStr, c_char, c_int};

use libloading::os::unix::Library;

use crate::Delay;

type SetDelay = unsafe extern "C" fn(*const c_char) -> c_int;
type SetWay = unsafe extern "C" fn(c_int, *const c_char, *const c_char) -> c_int;

/// The streams that are made from now on put off one queue's work for as long as events let them.
pub fn emulate_delay(delay: Option<Delay>) {
    let word: &CStr = match delay {
        // Inline: it is never behind.
        None | Some(Delay::Host) => c"none",
        Some(Delay::Compute) => c"compute",
        Some(Delay::Copy) => c"copy",
    };
    let driver = driver();
    // SAFETY: the function's type is the stand-in's.
    unsafe {
        if let Ok(set) = driver.get::<SetDelay>(b"emulated_delay") {
            assert_eq!(set(word.as_ptr()), 0, "the stand-in knows {word:?}");
        }
    }
}

/// What this thread enqueues from now on runs with threads in such an order, and rounds sums and GELU so, in the numbers and
/// words of `EMULATED_ORDER`, `EMULATED_SUMS` and `EMULATED_GELU`; a variable that is set stays in force.
pub fn emulate_way(order: u16, sums: &CStr, gelu: &CStr) {
    let driver = driver();
    // SAFETY: the function's type is the stand-in's.
    unsafe {
        if let Ok(set) = driver.get::<SetWay>(b"emulated_way") {
            let status = set(c_int::from(order), sums.as_ptr(), gelu.as_ptr());
            assert_eq!(status, 0, "the stand-in knows {sums:?} and {gelu:?}");
        }
    }
}

fn driver() -> Library {
    // SAFETY: loading a driver runs nothing that is not run anyway.
    unsafe { Library::new("libcuda.so.1") }.expect("tests of CUDA have a driver")
}
