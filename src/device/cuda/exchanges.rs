//! The communication queue: exchanges with other ranks on a stream of their own, and the waits for it, which end if a
//! rank does not arrive.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::Status;
use super::calls::driver::{
    self as sys, CUevent_flags_enum as EventFlags, CUstream_flags_enum as StreamFlags,
};
use super::communicator::Communicator;
use super::driver::check;
use super::errors::CallError;
use crate::cpu::Exchange;
use crate::{Collective, DeviceError, Rank, RankGroup};
use ops::TensorType;

/// The driver's status of work that is not done.
const NOT_READY: u32 = 600;

/// Waits are short as a rule: so long, the host does not sleep.
const BRIEF: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

/// An exchange that was enqueued: events before and after it.
#[derive(Clone, Copy)]
struct Running {
    begin: sys::CUevent,
    end: sys::CUevent,
}

/// A card's exchanges with other ranks. Dropped before its context.
pub(super) struct Exchanges {
    communicator: Communicator,
    group: RankGroup,
    pub(super) stream: sys::CUstream,
    /// In the order of the stream, the oldest first.
    running: VecDeque<Running>,
    /// Events to use again.
    unused: Vec<sys::CUevent>,
    /// Since when the oldest is known to wait for other ranks.
    waiting_since: Option<Instant>,
    /// The duration of those that have ended, since `take_time`.
    took: Duration,
    /// Why no more numbers are exchanged.
    lost: Option<DeviceError>,
}

impl Exchanges {
    /// In the communicator's context.
    pub(super) fn new(communicator: Communicator, group: RankGroup) -> Result<Exchanges, CallError> {
        let (mut stream, mut least, mut greatest) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: a context is current.
        let range = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        check("cuCtxGetStreamPriorityRange", range)?;
        // Of the highest priority: an exchange starts although kernels of the compute queue fill the card.
        let flags = StreamFlags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current.
        let made = unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, greatest) };
        check("cuStreamCreateWithPriority", made)?;
        Ok(Exchanges {
            communicator,
            group,
            stream,
            running: VecDeque::new(),
            unused: Vec::new(),
            waiting_since: None,
            took: Duration::ZERO,
            lost: None,
        })
    }

    pub(super) fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// Enqueues an exchange.
    ///
    /// # Errors
    /// As [`Communicator::enqueue`], or an earlier exchange failed.
    ///
    /// # Safety
    /// As [`Communicator::enqueue`].
    pub(super) unsafe fn enqueue(
        &mut self,
        collective: Collective,
        ty: TensorType,
        addresses: [u64; 2],
    ) -> Result<(), DeviceError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let begin = self.record()?;
        // SAFETY: guaranteed by the caller.
        let enqueued = unsafe { self.communicator.enqueue(collective, ty, addresses, self.stream) };
        if let Err(error) = enqueued {
            self.unused.push(begin);
            return Err(error);
        }
        let end = self.record()?;
        self.running.push_back(Running { begin, end });
        Ok(())
    }

    /// Exchanges numbers in host memory, through the memory that ranks share, once the stream has done all before.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive, or an earlier exchange failed.
    ///
    /// # Safety
    /// As [`RankGroup::exchange`].
    pub(super) unsafe fn exchange_on_host(&mut self, exchange: Exchange) -> Result<(), DeviceError> {
        let stream = self.stream;
        self.wait_until(|| is_idle(stream))?;
        let began = Instant::now();
        // SAFETY: guaranteed by the caller.
        let exchanged = unsafe { self.group.exchange(exchange) };
        self.took += began.elapsed();
        exchanged.inspect_err(|error| self.lose(error.clone()))
    }

    /// An event of the stream's work so far.
    fn record(&mut self) -> Result<sys::CUevent, CallError> {
        let event = match self.unused.pop() {
            Some(event) => event,
            None => {
                let mut event = std::ptr::null_mut();
                let flags = EventFlags::CU_EVENT_DEFAULT as u32;
                // SAFETY: a context is current.
                check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
                event
            }
        };
        // SAFETY: both are live.
        let recorded = check("cuEventRecord", unsafe { sys::cuEventRecord(event, self.stream) });
        if recorded.is_err() {
            self.unused.push(event);
        }
        recorded.map(|()| event)
    }

    /// Replaces a few numbers of the host by their sums over all ranks.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive, or an earlier exchange failed.
    pub(super) fn sum(&mut self, numbers: &mut [f64]) -> Result<(), DeviceError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        self.group.sum(numbers).inspect_err(|error| self.lose(error.clone()))
    }

    /// The duration of exchanges that have ended since the previous call.
    pub(super) fn take_time(&mut self) -> Duration {
        std::mem::take(&mut self.took)
    }

    /// Waits for work that may wait for exchanges.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive or an exchange fails.
    pub(super) fn wait_until(
        &mut self,
        is_done: impl Fn() -> Result<bool, CallError>,
    ) -> Result<(), DeviceError> {
        let began = Instant::now();
        loop {
            if let Some(error) = &self.lost {
                return Err(error.clone());
            }
            if is_done()? {
                return Ok(());
            }
            self.watch()?;
            if began.elapsed() < BRIEF { thread::yield_now() } else { thread::sleep(NAP) }
        }
    }

    /// Forgets the exchanges that have ended, and looks whether one has failed, or waits for too long.
    pub(super) fn watch(&mut self) -> Result<(), DeviceError> {
        while let Some(&Running { begin, end }) = self.running.front() {
            if !is_reached(end)? {
                if self.waiting_since.is_none() && is_reached(begin)? {
                    self.waiting_since = Some(Instant::now());
                }
                break;
            }
            let mut milliseconds = 0.0;
            // SAFETY: both are live and recorded.
            let status = unsafe { sys::cuEventElapsedTime(&mut milliseconds, begin, end) };
            check("cuEventElapsedTime", status)?;
            self.took += Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
            self.running.pop_front();
            self.unused.extend([begin, end]);
            self.waiting_since = None;
        }
        if let Some(failed) = self.communicator.failure() {
            let CallError { call, name, code, .. } = failed;
            self.lose(DeviceError::Lost(format!("{call} failed: {name} ({code})")));
        }
        let patience = self.group.patience();
        if self.waiting_since.is_some_and(|since| since.elapsed() > patience) {
            self.lose(DeviceError::Lost(format!(
                "another rank did not arrive within {patience:?} (--stall)"
            )));
        }
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Ends the exchanges that still wait for other ranks.
    pub(super) fn abandon(&mut self) {
        let ended = self.watch();
        if ended.is_err() || !self.running.is_empty() {
            self.communicator.abort();
        }
    }

    fn lose(&mut self, error: DeviceError) {
        if self.lost.is_none() {
            self.lost = Some(error);
            self.communicator.abort();
        }
    }
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.communicator.end();
        let running = self.running.iter().flat_map(|running| [running.begin, running.end]);
        for event in running.chain(self.unused.iter().copied()) {
            // A lost context has already destroyed it; errors are ignored.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
        // SAFETY: created once, destroyed once; the communicator has ended.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// Whether the work before an event is done.
pub(super) fn is_reached(event: sys::CUevent) -> Result<bool, CallError> {
    // SAFETY: the event is live.
    is_done("cuEventQuery", unsafe { sys::cuEventQuery(event) })
}

/// Whether a stream has no work left.
pub(super) fn is_idle(stream: sys::CUstream) -> Result<bool, CallError> {
    // SAFETY: the stream is live.
    is_done("cuStreamQuery", unsafe { sys::cuStreamQuery(stream) })
}

fn is_done(call: &'static str, status: Status) -> Result<bool, CallError> {
    if status == NOT_READY { Ok(false) } else { check(call, status).map(|()| true) }
}
