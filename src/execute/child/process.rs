//! The parent's side of a run's child processes, one for each rank: starts them, receives their messages, ends them.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::{Message, crash_log};
use crate::metrics::{Ended, Outcome};

#[cfg(test)]
mod tests;

/// The file in a run's folder that holds what the child wrote to its standard error.
pub const LOG_FILE: &str = "log.txt";

/// In the message of a crash by signal 9, by which the system ends processes when memory is short.
pub const KILLED: &str = "killed by signal 9; the system may have run out of memory";

/// Interval at which the parent polls the child.
const TICK: Duration = Duration::from_millis(20);

/// Time for a child to end by itself after its standard input is closed. Then it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Time for the child's last messages to arrive after its end.
const ARRIVAL: Duration = Duration::from_millis(500);

/// Bytes of the longest message. Longer lines are split, so that a faulty child cannot fill the parent's memory.
const LONGEST_LINE: u64 = 16 << 20;

/// How a child ended.
#[derive(Debug)]
pub enum Ending {
    Finished(Box<Outcome>),
    Failed(Crash),
    TimedOut,
    Interrupted,
}

/// A child that ended without a result.
#[derive(Debug)]
pub struct Crash {
    /// Its rank, if there are several.
    pub rank: Option<usize>,
    pub exit: Exit,
    /// The lines of its log that explain the crash.
    pub said: Vec<String>,
}

/// The exit status of a child that ended without a result.
#[derive(Debug)]
pub enum Exit {
    NotStarted(io::Error),
    Code(i32),
    Signal(i32),
    /// The child could not be waited for.
    Unknown(io::Error),
    /// Code 0, but no `Finished` message.
    Silent,
    /// Code 0, but with other parameters than the first rank: a fault of the program.
    Differs,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank} ")?;
        }
        match &self.exit {
            Exit::NotStarted(error) => write!(f, "could not be started: {error}")?,
            Exit::Code(code) => write!(f, "exited with code {code}")?,
            Exit::Signal(libc::SIGKILL) => write!(f, "{KILLED}")?,
            Exit::Signal(signal) => write!(f, "killed by signal {signal}{}", signal_name(*signal))?,
            Exit::Unknown(error) => write!(f, "could not be waited for: {error}")?,
            Exit::Silent => write!(f, "exited without a result")?,
            Exit::Differs => write!(f, "ended with other parameters than rank 0")?,
        }
        if self.said.is_empty() {
            return Ok(());
        }
        write!(f, "; log: {}", self.said.join(" / "))
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (abort)",
        libc::SIGBUS => " (bus error)",
        libc::SIGFPE => " (arithmetic error)",
        libc::SIGILL => " (illegal instruction)",
        libc::SIGSEGV => " (segmentation fault)",
        libc::SIGTERM => " (terminated)",
        _ => "",
    }
}

/// Runs a child for each rank to its end, or ends all after the timeout or when `interrupted` is set. Their standard error
/// goes to the log; the messages are those of the first rank. If a child fails or runs out of memory, so does the run.
///
/// Children have their own process groups: Ctrl-C reaches only the parent, which then ends them.
pub fn run_children(
    commands: Vec<Command>,
    log: &File,
    timeout: Option<Duration>,
    interrupted: &AtomicBool,
    mut on_message: impl FnMut(Message),
) -> Ending {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (sender, messages) = mpsc::channel();
    let several = commands.len() > 1;
    let failed = |rank: usize, exit| {
        let said = crash_log::summary(log).unwrap_or_else(|error| vec![format!("not readable: {error}")]);
        Ending::Failed(Crash { rank: Some(rank).filter(|_| several), exit, said })
    };
    let mut outcomes: Outcomes = commands.iter().map(|_| None).collect();
    let mut running = Vec::with_capacity(commands.len());
    for (rank, command) in commands.into_iter().enumerate() {
        match Running::start(command, log, (rank, sender.clone())) {
            Ok(child) => running.push(child),
            Err(error) => return failed(rank, Exit::NotStarted(error)),
        }
    }
    drop(sender);
    let mut receive = |outcomes: &mut Outcomes, (rank, message): (usize, Message)| match message {
        Message::Finished(outcome) => outcomes[rank] = Some(outcome),
        message => on_message(message),
    };
    let mut out_of_memory_since = None;
    let stop = loop {
        match messages.recv_timeout(TICK) {
            Ok(message) => receive(&mut outcomes, message),
            Err(RecvTimeoutError::Timeout) => {}
            // The children closed their output but are still running.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        if let Some(stop) = stop_reason(&mut running) {
            break stop;
        }
        // The others may run out of memory as well, and say so; if they do not, they wait for the one that did.
        if several && outcomes.iter().any(is_out_of_memory) {
            let since = *out_of_memory_since.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                break StopReason::OutOfMemory;
            }
        }
        if interrupted.load(Ordering::Relaxed) {
            break StopReason::Interrupted;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break StopReason::TimedOut;
        }
    };
    let exits = end_all(&mut running);
    drain(&messages, |message| receive(&mut outcomes, message));
    let are_complete = several && outcomes.iter().any(is_out_of_memory)
        || exits.iter().all(|exit| exit.is_some_and(|exit| exit.success()));
    let silent = outcomes.iter().position(Option::is_none);
    if let (StopReason::Exited, Some(rank)) = (&stop, differing(&outcomes)) {
        return failed(rank, Exit::Differs);
    }
    match (stop, joined(outcomes).filter(|_| are_complete)) {
        (StopReason::TimedOut, _) => Ending::TimedOut,
        // A run that finishes despite the interrupt keeps its result.
        (_, Some(outcome)) => Ending::Finished(outcome),
        (StopReason::Interrupted, None) => Ending::Interrupted,
        (StopReason::Failed(rank, exit), None) => failed(rank, exit),
        (StopReason::Exited | StopReason::OutOfMemory, None) => failed(silent.unwrap_or(0), Exit::Silent),
    }
}

/// By rank: its outcome, once it has sent it.
type Outcomes = Vec<Option<Box<Outcome>>>;

fn is_out_of_memory(outcome: &Option<Box<Outcome>>) -> bool {
    outcome.as_ref().is_some_and(|outcome| outcome.ended == Ended::OutOfMemory)
}

/// The outcome of a run: that of the first rank that ran out of memory, otherwise that of the first rank, with the largest
/// peak of all. `None` if a rank has none.
fn joined(mut outcomes: Outcomes) -> Option<Box<Outcome>> {
    if outcomes.len() == 1 {
        return outcomes.remove(0);
    }
    if let Some(rank) = outcomes.iter().position(is_out_of_memory) {
        let mut outcome = outcomes.swap_remove(rank)?;
        outcome.message.insert_str(0, &format!("rank {rank}: "));
        return Some(outcome);
    }
    let mut outcomes = outcomes.into_iter().collect::<Option<Vec<_>>>()?;
    let largest = outcomes.iter().filter_map(|outcome| outcome.measured.peak_bytes).max();
    let mut first = outcomes.swap_remove(0);
    first.measured.rank_peak_bytes = largest;
    Some(first)
}

/// The first rank that completed the run with another digest than rank 0.
fn differing(outcomes: &Outcomes) -> Option<usize> {
    let digest =
        |outcome: &Option<Box<Outcome>>| outcome.as_ref().map(|outcome| outcome.measured.digest.clone());
    let first = digest(outcomes.first()?)?;
    outcomes.iter().position(|outcome| digest(outcome).is_some_and(|digest| digest != first))
}

/// Why the parent stopped receiving messages.
enum StopReason {
    /// All have ended.
    Exited,
    /// The first that failed.
    Failed(usize, Exit),
    OutOfMemory,
    Interrupted,
    TimedOut,
}

/// Whether all children have ended, or one has failed.
fn stop_reason(running: &mut [Running]) -> Option<StopReason> {
    let mut are_running = false;
    for (rank, child) in running.iter_mut().enumerate() {
        match child.exit() {
            Ok(None) => are_running = true,
            Ok(Some(exit)) if exit.success() => {}
            Ok(Some(exit)) => return Some(StopReason::Failed(rank, describe(exit))),
            Err(error) => return Some(StopReason::Failed(rank, Exit::Unknown(error))),
        }
    }
    (!are_running).then_some(StopReason::Exited)
}

fn describe(exit: ExitStatus) -> Exit {
    match (exit.code(), exit.signal()) {
        (Some(0), _) => Exit::Silent,
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(-1),
    }
}

/// Asks the children to end by closing their standard inputs, and kills those that have not ended after the grace period.
/// Returns their exit statuses, if they can be read.
fn end_all(running: &mut [Running]) -> Vec<Option<ExitStatus>> {
    running.iter_mut().for_each(|child| drop(child.child.stdin.take()));
    let asked = Instant::now();
    while asked.elapsed() < GRACE && running.iter_mut().any(|child| matches!(child.exit(), Ok(None))) {
        thread::sleep(TICK);
    }
    running.iter_mut().map(Running::kill).collect()
}

/// Receives the messages that children sent before they ended.
fn drain<T>(messages: &Receiver<T>, mut receive: impl FnMut(T)) {
    let until = Instant::now() + ARRIVAL;
    // With a time limit: a grandchild may hold the output open.
    while let Ok(message) = messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
        receive(message);
    }
}

/// A running child. Dropping it kills the child and waits for it.
struct Running {
    child: Child,
}

impl Running {
    /// Starts a child that sends its messages with its rank.
    fn start(
        mut command: Command,
        log: &File,
        (rank, messages): (usize, Sender<(usize, Message)>),
    ) -> io::Result<Running> {
        let (messages_log, log) = (log.try_clone()?, log.try_clone()?);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0).spawn()?;
        let output = child.stdout.take();
        let running = Running { child };
        if let Some(output) = output {
            let forward = move || {
                let send = |message| {
                    // Those of the first rank are for all.
                    let is_sent = rank == 0 || matches!(message, Message::Finished(_));
                    !is_sent || messages.send((rank, message)).is_ok()
                };
                forward_messages(output, messages_log, send)
            };
            let thread = thread::Builder::new().name("child output".into()).spawn(forward);
            thread.map_err(|error| io::Error::other(format!("no thread could be started: {error}")))?;
        }
        Ok(running)
    }

    /// The exit status, if the child has ended.
    fn exit(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Kills the child if it has not ended. Returns its exit status, if it can be read.
    fn kill(&mut self) -> Option<ExitStatus> {
        // No effect on a child that was waited for.
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads messages until the output ends or the receiver is gone. Other lines go to the log.
fn forward_messages(output: ChildStdout, mut log: File, mut send: impl FnMut(Message) -> bool) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                let _ = writeln!(log, "cannot read the run's messages: {error}");
                return;
            }
        }
        match serde_json::from_slice(&line) {
            Ok(message) => {
                if !send(message) {
                    return;
                }
            }
            // A full disk must not end the run.
            Err(_) => drop(log.write_all(&line)),
        }
    }
}
