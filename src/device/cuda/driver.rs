//! The driver: its version, its devices, and a device's context on the current thread.

use std::ffi::CStr;

use super::calls::Status;
use super::calls::driver::{self as sys, CUdevice_attribute_enum as Attribute};
use super::errors::{CallError, Effect};
use super::libraries::{self, Library};
use super::unavailable::{Unavailable, Version};

/// The oldest driver with all required functions.
const NEEDED: Version = Version { major: 12, minor: 0 };

const OUT_OF_MEMORY: u32 = 2;
const NO_DEVICE: u32 = 100;

/// Error codes of a card that another process uses exclusively.
const BUSY: [u32; 2] = [46, 101];

/// An error if the call failed.
pub(super) fn check(call: &'static str, status: Status) -> Result<(), CallError> {
    CallError::check(call, status, error_name)
        .map_err(|failed| CallError { effect: effect(failed.code), ..failed })
}

fn error_name(code: Status) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the driver is loaded and returned the code; it sets the pointer to a static string, or to null.
    let _ = unsafe { sys::cuGetErrorName(code, &mut name) };
    if name.is_null() {
        return "an error unknown to this driver".to_owned();
    }
    // SAFETY: the string lives as long as the driver.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn effect(code: u32) -> Effect {
    match code {
        OUT_OF_MEMORY => Effect::OutOfMemory,
        // Memory errors, illegal accesses and instructions, a destroyed context. Not 712 and 713, host memory that is
        // registered twice or not at all, nor 720, a cooperative launch that is too large: they leave the context as it
        // is.
        214 | 220 | 700 | 702 | 709 | 710 | 711 | 714..=719 | 721 => Effect::Lost,
        _ => Effect::None,
    }
}

impl From<CallError> for Unavailable {
    fn from(failed: CallError) -> Unavailable {
        let CallError { call, name, code, .. } = failed;
        Unavailable::Call { call, name, code }
    }
}

/// A device as described by the driver, without a context.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub ordinal: usize,
    pub name: String,
    /// In bytes.
    pub memory: u64,
    pub capability: Version,
}

impl Card {
    /// The card's name in messages.
    pub(super) fn label(&self) -> String {
        format!("cuda:{} ({})", self.ordinal, self.name)
    }
}

/// Loads and initialises the driver, which takes some memory of the process. Creates no context.
///
/// # Errors
/// There is no driver, it is too old, or it finds no device.
pub(super) fn initialise() -> Result<Version, Unavailable> {
    libraries::load(Library::Driver, 0)?;
    let mut number = 0;
    // SAFETY: the driver is loaded; this may be called before `cuInit`.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut number) })?;
    let version = Version::of_cuda(number.unsigned_abs());
    if version < NEEDED {
        let by = "this program".to_owned();
        return Err(Unavailable::OldDriver { found: version, needed: NEEDED, by });
    }
    // SAFETY: the driver is loaded.
    match check("cuInit", unsafe { sys::cuInit(0) }) {
        Err(failed) if failed.code == NO_DEVICE => Err(no_device(version)),
        result => Ok(result.map(|()| version)?),
    }
}

fn no_device(driver: Version) -> Unavailable {
    Unavailable::NoDevice { driver, visible: std::env::var("CUDA_VISIBLE_DEVICES").ok() }
}

/// All devices. The driver is initialised.
///
/// # Errors
/// There is none, or the driver fails.
pub(super) fn cards(driver: Version) -> Result<Vec<Card>, Unavailable> {
    let mut count = 0;
    // SAFETY: the driver is initialised.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    match usize::try_from(count).unwrap_or(0) {
        0 => Err(no_device(driver)),
        count => (0..count).map(|ordinal| Ok(card(ordinal)?)).collect(),
    }
}

fn card(ordinal: usize) -> Result<Card, CallError> {
    let device = device(ordinal)?;
    let mut name = [0; 256];
    let length = name.len() as i32;
    // SAFETY: the device is valid; the driver writes at most `length` bytes, the last of them zero.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), length, device) })?;
    // SAFETY: the name is zero-terminated.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0;
    // SAFETY: the device is valid.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    let capability = Version {
        major: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    Ok(Card { ordinal, name, memory: memory as u64, capability })
}

fn device(ordinal: usize) -> Result<sys::CUdevice, CallError> {
    let mut device = 0;
    // SAFETY: the driver is initialised.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
    Ok(device)
}

fn attribute(device: sys::CUdevice, attribute: Attribute) -> Result<u32, CallError> {
    let mut value = 0;
    // SAFETY: the device is valid.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value.unsigned_abs())
}

/// A device's primary context, current on the thread that created it; it is neither `Send` nor `Sync`. The process
/// retains it until its end, so that the device can be opened again without creating a context, which takes up to a
/// second. After a device is lost, the process cannot use it again.
pub(super) struct Context {
    pub(super) device: sys::CUdevice,
    handle: sys::CUcontext,
}

/// The context for other threads.
pub(super) struct SharedContext(pub(super) sys::CUcontext);

// SAFETY: the driver's handles are of no thread, and the process retains the context until its end.
unsafe impl Send for SharedContext {}

impl Context {
    /// # Errors
    /// Another process uses the card exclusively, or uses all of its memory.
    pub(super) fn new(card: &Card) -> Result<Context, Unavailable> {
        let device = device(card.ordinal)?;
        let mut handle = std::ptr::null_mut();
        // Never released. SAFETY: the device is valid.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) };
        check("cuDevicePrimaryCtxRetain", retained).map_err(|failed| match failed.code {
            OUT_OF_MEMORY => Unavailable::Full { card: card.label() },
            code if BUSY.contains(&code) => Unavailable::Busy { card: card.label(), name: failed.name, code },
            _ => failed.into(),
        })?;
        let context = Context { device, handle };
        // SAFETY: the context was just retained.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.handle) })?;
        Ok(context)
    }

    pub(super) fn shared(&self) -> SharedContext {
        SharedContext(self.handle)
    }

    /// The driver's counts of the card's free and total bytes. Other processes' memory is not free.
    pub(super) fn free_and_total(&self) -> Result<(u64, u64), CallError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current on this thread.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_corrupt_the_context_lose_the_device() {
        assert!(
            [214, 220, 700, 702, 709, 710, 714, 719, 721]
                .into_iter()
                .all(|code| effect(code) == Effect::Lost)
        );
        assert!([1, 304, 712, 713, 720, 722].into_iter().all(|code| effect(code) == Effect::None));
        assert_eq!(effect(2), Effect::OutOfMemory);
    }
}
