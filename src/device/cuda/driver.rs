//! The driver: its version, its devices, and a device's context on this thread.

use std::ffi::CStr;

use super::calls::Status;
use super::calls::driver::{self as sys, CUdevice_attribute_enum as Attribute};
use super::errors::Failed;
use super::libraries::{self, Library};
use super::unavailable::{Unavailable, Version};

/// The oldest driver that has all that is called.
const NEEDED: Version = Version { major: 12, minor: 0 };

const OUT_OF_MEMORY: u32 = 2;
const NO_DEVICE: u32 = 100;

/// What a card answers that another process has for itself.
const BUSY: [u32; 2] = [46, 101];

/// Success, or which call failed and how.
pub(super) fn check(call: &'static str, status: Status) -> Result<(), Failed> {
    Failed::check(call, status, error_name).map_err(|failed| Failed { lost: is_final(failed.code), ..failed })
}

fn error_name(code: Status) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the driver is loaded, it gave the code; it sets the pointer to a string of its own, or to null.
    let _ = unsafe { sys::cuGetErrorName(code, &mut name) };
    if name.is_null() {
        return "an error that this driver has no name for".to_owned();
    }
    // SAFETY: a string that lives as long as the driver does.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Codes after which every call of the context fails: errors of the memory, illegal accesses and instructions, a
/// context that was destroyed.
fn is_final(code: u32) -> bool {
    matches!(code, 214 | 220 | 700 | 702 | 709 | 710..=721)
}

impl Failed {
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}

impl From<Failed> for Unavailable {
    fn from(failed: Failed) -> Unavailable {
        let Failed { call, name, code, .. } = failed;
        Unavailable::Call { call, name, code }
    }
}

/// A device as the driver describes it, without a context.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub ordinal: usize,
    pub name: String,
    /// In bytes.
    pub memory: u64,
    pub capability: Version,
}

impl Card {
    /// As messages call it.
    pub(super) fn label(&self) -> String {
        format!("cuda:{} ({})", self.ordinal, self.name)
    }
}

/// Loads the driver and begins to work with it. Costs some memory of the process, and makes no context.
///
/// # Errors
/// There is no driver, it is too old, or it finds no device.
pub(super) fn begin() -> Result<Version, Unavailable> {
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
        ended => Ok(ended.map(|()| version)?),
    }
}

fn no_device(driver: Version) -> Unavailable {
    Unavailable::NoDevice { driver, visible: std::env::var("CUDA_VISIBLE_DEVICES").ok() }
}

/// All devices. The driver has begun.
///
/// # Errors
/// There is none, or the driver fails.
pub(super) fn cards(driver: Version) -> Result<Vec<Card>, Unavailable> {
    let mut count = 0;
    // SAFETY: the driver has begun.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    match usize::try_from(count).unwrap_or(0) {
        0 => Err(no_device(driver)),
        count => (0..count).map(|ordinal| Ok(card(ordinal)?)).collect(),
    }
}

fn card(ordinal: usize) -> Result<Card, Failed> {
    let device = device(ordinal)?;
    let mut name = [0; 256];
    let length = name.len() as i32;
    // SAFETY: the device is one of the driver's; it writes at most `length` bytes, the last of them zero.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), length, device) })?;
    // SAFETY: the driver ends the name with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0;
    // SAFETY: the device is one of the driver's.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    let capability = Version {
        major: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    Ok(Card { ordinal, name, memory: memory as u64, capability })
}

fn device(ordinal: usize) -> Result<sys::CUdevice, Failed> {
    let mut device = 0;
    // SAFETY: the driver has begun.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
    Ok(device)
}

fn attribute(device: sys::CUdevice, attribute: Attribute) -> Result<u32, Failed> {
    let mut value = 0;
    // SAFETY: the device is one of the driver's.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value.unsigned_abs())
}

/// A device's primary context, current on the thread that made it, which is the only one that can use it: it is
/// neither sent nor shared. The process keeps it to its end, for whoever opens the device again: to make one takes a
/// good part of a second. A process that lost its device has lost it for good.
pub(super) struct Context {
    pub(super) device: sys::CUdevice,
    handle: sys::CUcontext,
}

impl Context {
    /// # Errors
    /// Another process has the card for itself, or holds all of its memory.
    pub(super) fn new(card: &Card) -> Result<Context, Unavailable> {
        let device = device(card.ordinal)?;
        let mut handle = std::ptr::null_mut();
        // Never released. SAFETY: the device is one of the driver's.
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

    /// Bytes of the card that are free, and all of them, as the driver counts: other processes' memory is not free.
    pub(super) fn free_and_total(&self) -> Result<(u64, u64), Failed> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current on this thread.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}
