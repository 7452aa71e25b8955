//! The queues of the processor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::kernels::{self, Operand, Workers};
use super::mapping::Mapping;
use crate::{DeviceError, Queue};
use ops::Op;

/// Which queue's work is put off until something waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    Compute,
    Copy,
    Host,
}

/// Something to be done in a queue's order. Commands hold the mappings they work on: memory that is freed while
/// work on it is queued goes back to the system when that work is done.
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

// SAFETY: the addresses lie in the mappings that the command holds.
unsafe impl Send for Command {}

/// An event's moment: done once.
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

/// How a queue's commands are carried out.
enum Lane {
    /// At once, by the caller.
    Inline,
    /// In order, by a thread that ends when the sender is dropped. To wait for one that has nothing to do would
    /// wake it for nothing, which takes longer than many an operation.
    Thread { sender: Sender<Command>, idle: bool },
    /// When something waits for them.
    Deferred(VecDeque<Command>),
}

/// All queues.
pub(super) struct CpuQueues {
    workers: Workers,
    lanes: [Lane; Queue::ALL.len()],
    /// Nanoseconds that the copy thread has copied.
    copied: Arc<AtomicU64>,
}

impl CpuQueues {
    pub(super) fn new(workers: Workers, delay: Option<Delay>) -> std::io::Result<CpuQueues> {
        let copied = Arc::new(AtomicU64::new(0));
        let deferred = || Lane::Deferred(VecDeque::new());
        let lanes = match delay {
            None => [
                Lane::Inline,
                Lane::Thread { sender: copy_thread(copied.clone())?, idle: true },
                Lane::Inline,
            ],
            Some(Delay::Compute) => [deferred(), Lane::Inline, Lane::Inline],
            Some(Delay::Copy) => [Lane::Inline, deferred(), Lane::Inline],
            Some(Delay::Host) => [Lane::Inline, Lane::Inline, deferred()],
        };
        Ok(CpuQueues { workers, lanes, copied })
    }

    pub(super) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// What copies took beside the caller's work, since this was last asked.
    pub(super) fn copied(&self) -> Duration {
        Duration::from_nanos(self.copied.swap(0, Ordering::Relaxed))
    }

    pub(super) fn enqueue(&mut self, queue: Queue, command: Command) -> Result<(), DeviceError> {
        match &mut self.lanes[queue as usize] {
            Lane::Inline => self.carry_out(command),
            Lane::Thread { sender, idle } => {
                *idle = false;
                sender.send(command).map_err(|_| DeviceError::Lost("the copy thread has ended".to_owned()))
            }
            Lane::Deferred(pending) => {
                pending.push_back(command);
                Ok(())
            }
        }
    }

    pub(super) fn synchronize(&mut self) -> Result<(), DeviceError> {
        for queue in Queue::ALL {
            if let Lane::Inline | Lane::Thread { idle: true, .. } = self.lanes[queue as usize] {
                continue;
            }
            let ticket = Arc::new(Fence::default());
            self.enqueue(queue, Command::Record(ticket.clone()))?;
            self.until(&ticket)?;
            if let Lane::Thread { idle, .. } = &mut self.lanes[queue as usize] {
                *idle = true;
            }
        }
        Ok(())
    }

    /// Carries out what a caller's queue does itself.
    fn carry_out(&mut self, command: Command) -> Result<(), DeviceError> {
        match command {
            Command::Wait(ticket) => self.until(&ticket),
            command => {
                command.execute(&self.workers);
                Ok(())
            }
        }
    }

    /// Returns once the ticket is done, doing what was put off as far as that takes.
    fn until(&mut self, ticket: &Fence) -> Result<(), DeviceError> {
        for queue in Queue::ALL {
            while !ticket.is_done() {
                let Lane::Deferred(pending) = &mut self.lanes[queue as usize] else { break };
                let Some(command) = pending.pop_front() else { break };
                self.carry_out(command)?;
            }
        }
        ticket.wait();
        Ok(())
    }
}

impl Command {
    /// Everything but waiting.
    fn execute(self, workers: &Workers) {
        match self {
            Command::Launch(launch) => {
                let Launch { op, inputs, outputs, workspace, _keep } = *launch;
                // SAFETY: the device has checked types and bounds, the mappings are held, and the program's
                // verifier has ordered what works on the same memory.
                unsafe { kernels::run(&op, &inputs, &outputs, workspace, workers) };
            }
            Command::Copy { from, to, bytes, _keep } => {
                // SAFETY: both lie in held mappings; `copy` allows that they overlap.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            Command::Poison { address, bytes, _keep } => {
                // All ones: not a number in every float format, and a token that no table has.
                // SAFETY: the region lies in the held mapping.
                unsafe { std::ptr::write_bytes(address, 0xFF, bytes) };
            }
            Command::Record(ticket) => ticket.finish(),
            Command::Wait(ticket) => ticket.wait(),
        }
    }
}

/// The copy queue needs no workers: nothing is launched on it.
fn copy_thread(copied: Arc<AtomicU64>) -> std::io::Result<Sender<Command>> {
    let (sender, receiver): (Sender<Command>, Receiver<Command>) = channel();
    std::thread::Builder::new().name("copy queue".to_owned()).spawn(move || {
        while let Ok(command) = receiver.recv() {
            match command {
                Command::Copy { from, to, bytes, _keep } => {
                    let began = Instant::now();
                    // SAFETY: both lie in held mappings; `copy` allows that they overlap.
                    unsafe { std::ptr::copy(from, to, bytes) };
                    copied.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                }
                Command::Record(ticket) => ticket.finish(),
                Command::Wait(ticket) => ticket.wait(),
                Command::Launch(_) | Command::Poison { .. } => unreachable!("these go to the compute queue"),
            }
        }
    })?;
    Ok(sender)
}
