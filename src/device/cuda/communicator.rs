//! NCCL's communicator of a run's ranks, each with a card of one machine.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::mpsc::channel;
use std::thread;

use super::calls::Status;
use super::calls::driver as sys;
use super::calls::nccl::{self, ncclUniqueId};
use super::driver::{self, Context};
use super::errors::{CallError, Effect};
use super::libraries::{self, Library};
use super::unavailable::{Unavailable, Version};
use crate::{Collective, DeviceError, RankGroup};
use ops::{DType, TensorType, TypeError};

/// Statuses after which no exchange works.
const UNHANDLED_CUDA_ERROR: u32 = 1;
const SYSTEM_ERROR: u32 = 2;
const INTERNAL_ERROR: u32 = 3;
const REMOTE_ERROR: u32 = 6;

/// A call that has not ended yet: no error.
const IN_PROGRESS: u32 = 7;

/// Loads the library, and returns its version.
///
/// # Errors
/// It is missing.
pub(super) fn load() -> Result<Version, Unavailable> {
    libraries::load(Library::Nccl, 0)?;
    let mut number = 0;
    // SAFETY: the library is loaded.
    check("ncclGetVersion", unsafe { nccl::ncclGetVersion(&mut number) })?;
    let number = number.unsigned_abs();
    Ok(Version { major: number / 10_000, minor: number % 10_000 / 100 })
}

/// An error if the call failed, in which the library explains it.
fn check(call: &'static str, status: Status) -> Result<(), CallError> {
    CallError::check(call, status, error_text).map_err(|failed| {
        let effect = match failed.code {
            UNHANDLED_CUDA_ERROR if failed.name.contains("out of memory") => Effect::OutOfMemory,
            UNHANDLED_CUDA_ERROR | SYSTEM_ERROR | INTERNAL_ERROR | REMOTE_ERROR => Effect::Lost,
            _ => Effect::None,
        };
        CallError { effect, ..failed }
    })
}

fn error_text(code: Status) -> String {
    let text = |written: Option<*const c_char>| match written.filter(|text| !text.is_null()) {
        // SAFETY: the library returns zero-terminated strings that live at least until its next call.
        Some(text) => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        None => String::new(),
    };
    // SAFETY: the library is loaded and returned the code. No communicator: the last error of all.
    let (name, last) =
        unsafe { (nccl::ncclGetErrorString(code), nccl::ncclGetLastError(std::ptr::null_mut())) };
    match [text(name), text(last)] {
        [name, last] if last.is_empty() => name,
        [name, last] => format!("{name}: {last}"),
    }
}

/// One rank's part of the communicator. Dropped before its context and its stream.
pub(super) struct Communicator {
    /// Null after `abort`.
    handle: nccl::ncclComm_t,
}

/// A handle on its way from the thread that made it.
struct Made(nccl::ncclComm_t);

// SAFETY: the library's handles are of no thread.
unsafe impl Send for Made {}

impl Communicator {
    /// Joins the ranks, all of which call this, in the current context.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive; `OutOfMemory`; the library fails.
    pub(super) fn new(group: &mut RankGroup, context: &Context) -> Result<Communicator, DeviceError> {
        let rank = group.rank();
        let mut id = ncclUniqueId { bytes: [0; 128] };
        if rank.index == 0 {
            // SAFETY: the library is loaded.
            check("ncclGetUniqueId", unsafe { nccl::ncclGetUniqueId(&mut id) })?;
        }
        group.of_first(&mut id.bytes)?;
        // The library waits for the other ranks without end: so on a thread that this one need not wait for.
        let (sender, receiver) = channel();
        let context = context.shared();
        let join = move || {
            let made = context.make_current().and_then(|()| {
                let mut handle = std::ptr::null_mut();
                // SAFETY: a context is current; the id is the first rank's.
                let status =
                    unsafe { nccl::ncclCommInitRank(&mut handle, rank.of as c_int, id, rank.index as c_int) };
                check("ncclCommInitRank", status).map(|()| Made(handle))
            });
            // Nobody receives it after the wait below has ended.
            let _ = sender.send(made);
        };
        let started = thread::Builder::new().name("communicator".to_owned()).spawn(join);
        started.map_err(|error| DeviceError::Lost(format!("no thread could be started: {error}")))?;
        let patience = group.patience();
        match receiver.recv_timeout(patience) {
            Ok(made) => Ok(Communicator { handle: made?.0 }),
            Err(_) => Err(DeviceError::Lost(format!(
                "another rank did not join NCCL's communicator within {patience:?} (--stall)"
            ))),
        }
    }

    /// Enqueues an exchange of elements: of a share, or of the whole in an all-reduce.
    ///
    /// # Errors
    /// The library fails, or has no sums of this type.
    ///
    /// # Safety
    /// The addresses are of card memory of the sizes that [`Collective`] requires, which stays allocated until the stream
    /// has done the exchange.
    pub(super) unsafe fn enqueue(
        &self,
        collective: Collective,
        ty: TensorType,
        [send, receive]: [u64; 2],
        stream: sys::CUstream,
    ) -> Result<(), DeviceError> {
        let (send, receive) = (send as *const c_void, receive as *mut c_void);
        let count = ty.elements();
        let number = match ty.dtype {
            DType::F32 => Some(nccl::NCCL_FLOAT32),
            DType::F16 => Some(nccl::NCCL_FLOAT16),
            DType::BF16 => Some(nccl::NCCL_BFLOAT16),
            DType::I32 | DType::U16 | DType::U8 | DType::U4 => None,
        };
        // SAFETY: guaranteed by the caller; the communicator is live.
        let (call, status) = unsafe {
            match (collective, number) {
                (Collective::AllGather, _) => {
                    let bytes = ty.bytes() as usize;
                    let status =
                        nccl::ncclAllGather(send, receive, bytes, nccl::NCCL_UINT8, self.handle, stream);
                    ("ncclAllGather", status)
                }
                (Collective::AllReduce, Some(ty)) => {
                    let sum = nccl::NCCL_SUM;
                    let status = nccl::ncclAllReduce(send, receive, count, ty, sum, self.handle, stream);
                    ("ncclAllReduce", status)
                }
                (Collective::ReduceScatter, Some(ty)) => {
                    let sum = nccl::NCCL_SUM;
                    let status = nccl::ncclReduceScatter(send, receive, count, ty, sum, self.handle, stream);
                    ("ncclReduceScatter", status)
                }
                (Collective::AllReduce | Collective::ReduceScatter, None) => {
                    let problem = format!("has no sums of {}", ty.dtype);
                    return Err(TypeError { operation: collective.name(), problem }.into());
                }
            }
        };
        Ok(check(call, status)?)
    }

    /// An error of an exchange that was enqueued before.
    pub(super) fn failure(&self) -> Option<CallError> {
        if self.handle.is_null() {
            return None;
        }
        let mut state = 0;
        // SAFETY: the communicator is live.
        let asked = unsafe { nccl::ncclCommGetAsyncError(self.handle, &mut state) };
        let failed = check("ncclCommGetAsyncError", asked).err();
        let exchange = Some(state).filter(|state| *state != IN_PROGRESS);
        failed.or_else(|| check("an exchange of NCCL", exchange?).err())
    }

    /// Ends the communicator, whose exchanges have ended.
    pub(super) fn end(&mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if !handle.is_null() {
            // An error is ignored: nothing is exchanged any more.
            // SAFETY: the communicator is live, and not used again.
            let _ = unsafe { nccl::ncclCommDestroy(handle) };
        }
    }

    /// Ends the exchanges that wait for other ranks, and the communicator.
    pub(super) fn abort(&mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if !handle.is_null() {
            // An error is ignored: the device is lost anyway.
            // SAFETY: the communicator is live, and not used again.
            let _ = unsafe { nccl::ncclCommAbort(handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.end();
    }
}

impl driver::SharedContext {
    fn make_current(&self) -> Result<(), CallError> {
        // SAFETY: the context is retained until the end of the process.
        driver::check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0) })
    }
}
