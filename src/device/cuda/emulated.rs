//! Tells the stand-in driver of `tests/emulator` what to do beyond what a driver does.

use std::ffi::{CStr, c_char, c_int};

use libloading::os::unix::Library;

use crate::Delay;

type SetDelay = unsafe extern "C" fn(*const c_char) -> c_int;

/// The streams that are made from now on put off one queue's work for as long as events let them. Nothing happens with
/// a driver that is no stand-in: a card takes the time it takes.
pub fn emulate_delay(delay: Option<Delay>) {
    let word: &CStr = match delay {
        // Inline: it is never behind.
        None | Some(Delay::Host) => c"none",
        Some(Delay::Compute) => c"compute",
        Some(Delay::Copy) => c"copy",
    };
    // SAFETY: loading a driver runs nothing that is not run anyway; the function's type is the stand-in's.
    unsafe {
        let driver = Library::new("libcuda.so.1").expect("tests of CUDA have a driver");
        if let Ok(set) = driver.get::<SetDelay>(b"emulated_delay") {
            assert_eq!(set(word.as_ptr()), 0, "the stand-in knows {word:?}");
        }
    }
}
