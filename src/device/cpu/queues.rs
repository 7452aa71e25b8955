//! The queues of the CPU device.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::group::{Exchange, RankGroup};
use super::kernels::{self, Operand, Workers};
use super::mapping::Mapping;
use crate::{DeviceError, Queue};
use ops::Op;

/// The queue whose work is delayed until something waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    Compute,
    Copy,
    Host,
    Communication,
}

impl Delay {
    fn queue(self) -> Queue {
        match self {
            Delay::Compute => Queue::Compute,
            Delay::Copy => Queue::Copy,
            Delay::Host => Queue::Host,
            Delay::Communication => Queue::Communication,
        }
    }
}

/// A command of a queue. Commands keep the mappings that they access: memory freed while it has queued work returns to
/// the system when that work is done.
pub(super) enum Command {
    Launch(Box<Launch>),
    Copy { from: *const u8, to: *mut u8, bytes: usize, _keep: [Arc<Mapping>; 2] },
    Exchange { exchange: Exchange, group: Arc<SharedGroup>, _keep: [Arc<Mapping>; 2] },
    Poison { address: *mut u8, bytes: usize, _keep: Arc<Mapping> },
    Record(Arc<Fence>),
    Wait(Arc<Fence>),
}

pub(super) struct Launch {
    pub(super) op: Op,
    pub(super) inputs: Vec<Operand>,
    pub(super) outputs: Vec<Operand>,
    pub(super) workspace: Option<(*mut u8, usize)>,
    pub(super) _keep: Vec<Arc<Mapping>>,
}

// SAFETY: the addresses lie in mappings that the command keeps alive.
unsafe impl Send for Command {}

/// The group of ranks, of which the queue's thread and the host's thread make use in turn.
pub(super) struct SharedGroup {
    group: Mutex<RankGroup>,
    /// Why an exchange failed. Those after it are left out.
    failed: OnceLock<DeviceError>,
}

impl SharedGroup {
    fn exchange(
        &self,
        exchange: impl FnOnce(&mut RankGroup) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let exchanged = exchange(&mut self.group.lock().unwrap_or_else(PoisonError::into_inner));
        exchanged.inspect_err(|error| drop(self.failed.set(error.clone())))
    }

    /// Exchanges numbers in memory. `synchronize` returns the error.
    ///
    /// # Safety
    /// As for [`RankGroup::exchange`].
    unsafe fn run(&self, exchange: Exchange) {
        // SAFETY: guaranteed by the caller.
        let _ = self.exchange(|group| unsafe { group.exchange(exchange) });
    }

    /// As [`RankGroup::sum`].
    pub(super) fn sum(&self, numbers: &mut [f64]) -> Result<(), DeviceError> {
        self.exchange(|group| group.sum(numbers))
    }
}

/// A one-shot completion flag: one recording of an event.
#[derive(Default)]
pub(super) struct Fence {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Fence {
    fn is_done(&self) -> bool {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while !*done {
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The execution mode of a queue's commands.
enum Execution {
    /// Immediately, on the caller's thread.
    Inline,
    /// In order, on a separate thread that ends when the sender is dropped. `idle` avoids waking a thread without work,
    /// which takes longer than many operations.
    Thread { sender: Sender<Command>, idle: bool },
    /// When something waits for them, for tests.
    Deferred(VecDeque<Command>),
}

/// All queues of the device.
pub(super) struct CpuQueues {
    workers: Workers,
    queues: [Execution; Queue::ALL.len()],
    /// Duration of the copy thread's copies in nanoseconds.
    copy_nanos: Arc<AtomicU64>,
    /// That of the communication thread's exchanges.
    exchange_nanos: Arc<AtomicU64>,
    /// The ranks that the communication queue exchanges numbers with, if there are others.
    group: Option<Arc<SharedGroup>>,
}

impl CpuQueues {
    pub(super) fn new(
        workers: Workers,
        delay: Option<Delay>,
        group: Option<RankGroup>,
    ) -> std::io::Result<CpuQueues> {
        let [copy_nanos, exchange_nanos] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let mut queues = Queue::ALL.map(|_| Execution::Inline);
        match delay {
            None => {
                queues[Queue::Copy as usize] = thread("copy queue", &copy_nanos)?;
                if group.is_some() {
                    queues[Queue::Communication as usize] = thread("communication queue", &exchange_nanos)?;
                }
            }
            Some(delay) => queues[delay.queue() as usize] = Execution::Deferred(VecDeque::new()),
        }
        let shared = |group| Arc::new(SharedGroup { group: Mutex::new(group), failed: OnceLock::new() });
        Ok(CpuQueues { workers, queues, copy_nanos, exchange_nanos, group: group.map(shared) })
    }

    pub(super) fn group(&self) -> Option<&Arc<SharedGroup>> {
        self.group.as_ref()
    }

    /// The duration of the communication thread's exchanges since the previous call.
    pub(super) fn take_exchange_time(&self) -> Duration {
        Duration::from_nanos(self.exchange_nanos.swap(0, Ordering::Relaxed))
    }

    pub(super) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The duration of the copy thread's copies since the previous call.
    pub(super) fn take_copy_time(&self) -> Duration {
        Duration::from_nanos(self.copy_nanos.swap(0, Ordering::Relaxed))
    }

    pub(super) fn enqueue(&mut self, queue: Queue, command: Command) -> Result<(), DeviceError> {
        match &mut self.queues[queue as usize] {
            Execution::Inline => self.run_inline(command),
            Execution::Thread { sender, idle } => {
                *idle = false;
                sender
                    .send(command)
                    .map_err(|_| DeviceError::Lost("the thread of a queue has ended".to_owned()))
            }
            Execution::Deferred(pending) => {
                pending.push_back(command);
                Ok(())
            }
        }
    }

    pub(super) fn synchronize(&mut self) -> Result<(), DeviceError> {
        for queue in Queue::ALL {
            if let Execution::Inline | Execution::Thread { idle: true, .. } = self.queues[queue as usize] {
                continue;
            }
            let fence = Arc::new(Fence::default());
            self.enqueue(queue, Command::Record(fence.clone()))?;
            self.wait_for(&fence)?;
            if let Execution::Thread { idle, .. } = &mut self.queues[queue as usize] {
                *idle = true;
            }
        }
        match self.group.as_ref().and_then(|group| group.failed.get()) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Executes a command on the caller's thread.
    fn run_inline(&mut self, command: Command) -> Result<(), DeviceError> {
        match command {
            Command::Wait(fence) => self.wait_for(&fence),
            command => {
                command.execute(Some(&self.workers));
                Ok(())
            }
        }
    }

    /// Waits for a fence, and executes deferred commands until it is done.
    fn wait_for(&mut self, fence: &Fence) -> Result<(), DeviceError> {
        for queue in Queue::ALL {
            while !fence.is_done() {
                let Execution::Deferred(pending) = &mut self.queues[queue as usize] else { break };
                let Some(command) = pending.pop_front() else { break };
                self.run_inline(command)?;
            }
        }
        fence.wait();
        Ok(())
    }
}

impl Command {
    /// Executes the command, with the workers that operations need.
    fn execute(self, workers: Option<&Workers>) {
        match self {
            Command::Launch(launch) => {
                let Launch { op, inputs, outputs, workspace, _keep } = *launch;
                let workers = workers.expect("queues with a thread of their own run no operations");
                // SAFETY: the device has checked types and bounds; the command keeps the mappings; the program's
                // verifier has ordered all accesses to the same memory.
                unsafe { kernels::run(&op, &inputs, &outputs, workspace, workers) };
            }
            Command::Copy { from, to, bytes, _keep } => {
                // SAFETY: both lie in mappings that the command keeps; `copy` allows overlap.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            Command::Exchange { exchange, group, _keep } => {
                // SAFETY: the regions lie in mappings that the command keeps; the program's verifier has ordered all
                // accesses to the same memory.
                unsafe { group.run(exchange) };
            }
            Command::Poison { address, bytes, _keep } => {
                // All ones: NaN in every float format, and a token id beyond every table.
                // SAFETY: the region lies in a mapping that the command keeps.
                unsafe { std::ptr::write_bytes(address, 0xFF, bytes) };
            }
            Command::Record(fence) => fence.finish(),
            Command::Wait(fence) => fence.wait(),
        }
    }
}

/// A thread that executes a queue of copies or exchanges and adds their duration to `nanos`. It needs no thread pool:
/// such queues run no operations.
fn thread(name: &str, nanos: &Arc<AtomicU64>) -> std::io::Result<Execution> {
    let (sender, receiver): (Sender<Command>, Receiver<Command>) = channel();
    let nanos = Arc::clone(nanos);
    let execute = move || {
        while let Ok(command) = receiver.recv() {
            let is_work = !matches!(command, Command::Record(_) | Command::Wait(_));
            let began = Instant::now();
            command.execute(None);
            if is_work {
                nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(execute)?;
    Ok(Execution::Thread { sender, idle: true })
}
