//! The queues of the CPU device.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
}

/// A command of a queue. Commands keep the mappings that they access: memory freed while it has queued work returns to
/// the system when that work is done.
pub(super) enum Command {
    Launch(Box<Launch>),
    Copy { from: *const u8, to: *mut u8, bytes: usize, _keep: [Arc<Mapping>; 2] },
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
}

impl CpuQueues {
    pub(super) fn new(workers: Workers, delay: Option<Delay>) -> std::io::Result<CpuQueues> {
        let copy_nanos = Arc::new(AtomicU64::new(0));
        let deferred = || Execution::Deferred(VecDeque::new());
        let queues = match delay {
            None => [
                Execution::Inline,
                Execution::Thread { sender: copy_thread(copy_nanos.clone())?, idle: true },
                Execution::Inline,
            ],
            Some(Delay::Compute) => [deferred(), Execution::Inline, Execution::Inline],
            Some(Delay::Copy) => [Execution::Inline, deferred(), Execution::Inline],
            Some(Delay::Host) => [Execution::Inline, Execution::Inline, deferred()],
        };
        Ok(CpuQueues { workers, queues, copy_nanos })
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
                sender.send(command).map_err(|_| DeviceError::Lost("the copy thread has ended".to_owned()))
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
        Ok(())
    }

    /// Executes a command on the caller's thread.
    fn run_inline(&mut self, command: Command) -> Result<(), DeviceError> {
        match command {
            Command::Wait(fence) => self.wait_for(&fence),
            command => {
                command.execute(&self.workers);
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
    /// Executes the command.
    fn execute(self, workers: &Workers) {
        match self {
            Command::Launch(launch) => {
                let Launch { op, inputs, outputs, workspace, _keep } = *launch;
                // SAFETY: the device has checked types and bounds; the command keeps the mappings; the program's
                // verifier has ordered all accesses to the same memory.
                unsafe { kernels::run(&op, &inputs, &outputs, workspace, workers) };
            }
            Command::Copy { from, to, bytes, _keep } => {
                // SAFETY: both lie in mappings that the command keeps; `copy` allows overlap.
                unsafe { std::ptr::copy(from, to, bytes) };
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

/// Starts the copy thread. It needs no thread pool: the copy queue runs no operations.
fn copy_thread(copy_nanos: Arc<AtomicU64>) -> std::io::Result<Sender<Command>> {
    let (sender, receiver): (Sender<Command>, Receiver<Command>) = channel();
    std::thread::Builder::new().name("copy queue".to_owned()).spawn(move || {
        while let Ok(command) = receiver.recv() {
            match command {
                Command::Copy { from, to, bytes, _keep } => {
                    let began = Instant::now();
                    // SAFETY: both lie in mappings that the command keeps; `copy` allows overlap.
                    unsafe { std::ptr::copy(from, to, bytes) };
                    copy_nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                }
                Command::Record(fence) => fence.finish(),
                Command::Wait(fence) => fence.wait(),
                Command::Launch(_) | Command::Poison { .. } => {
                    unreachable!("the copy queue accepts copies only")
                }
            }
        }
    })?;
    Ok(sender)
}
