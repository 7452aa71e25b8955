//! NVRTC's functions.

use std::ffi::{c_char, c_int};

use cudarc::nvrtc::sys::culib;
pub(in crate::cuda) use cudarc::nvrtc::sys::nvrtcProgram;

use super::{Status, functions};

functions! {
    of culib();
    fn nvrtcCompileProgram(program: nvrtcProgram, count: c_int, options: *const *const c_char);
    fn nvrtcCreateProgram(
        program: *mut nvrtcProgram,
        source: *const c_char,
        name: *const c_char,
        count: c_int,
        headers: *const *const c_char,
        names: *const *const c_char
    );
    fn nvrtcDestroyProgram(program: *mut nvrtcProgram);
    fn nvrtcGetCUBIN(program: nvrtcProgram, cubin: *mut c_char);
    fn nvrtcGetCUBINSize(program: nvrtcProgram, size: *mut usize);
    fn nvrtcGetErrorString(error: Status) -> *const c_char;
    fn nvrtcGetNumSupportedArchs(count: *mut c_int);
    fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char);
    fn nvrtcGetProgramLogSize(program: nvrtcProgram, size: *mut usize);
    fn nvrtcGetSupportedArchs(architectures: *mut c_int);
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int);
}
