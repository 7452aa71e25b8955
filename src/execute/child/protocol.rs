//! Messages from a child to its parent: one line of JSON each on standard output. The child's standard input is an
//! empty pipe: when it is closed, the parent has ended or wants the child to end.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::metrics::Outcome;

/// The exit code of a child that ended with its parent: that of an interrupted program.
const INTERRUPTED: i32 = 130;

/// A child's message. All but `Finished` are also events of `sweep --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Message {
    /// The device is open and the run begins.
    Started { device: String, steps: usize },
    /// A phase outside steps: `start`, `evaluation`, ...
    Phase { name: String },
    /// An optimizer step is done.
    Step {
        /// From 1, warm-up included.
        step: usize,
        steps: usize,
        timed: bool,
        /// `None` if it is not finite, which JSON cannot express.
        loss: Option<f64>,
        samples_per_s: f64,
        /// `None` for models without tokens.
        tokens_per_s: Option<f64>,
        /// Live device memory between this step and the next.
        live_bytes: u64,
        /// Peak of live device memory in steps so far.
        peak_bytes: u64,
    },
    /// An evaluation is done.
    Evaluation { step: usize, loss: Option<f64> },
    /// The run is done and its files are written. Nothing follows.
    Finished(Box<Outcome>),
}

/// Writes messages.
pub struct Reporter {
    output: Box<dyn Write + Send>,
}

impl Reporter {
    /// Reports to the parent.
    pub fn to_parent() -> Reporter {
        Reporter::new(io::stdout())
    }

    pub fn new(output: impl Write + Send + 'static) -> Reporter {
        Reporter { output: Box::new(output) }
    }

    /// Writes a message at once. Callers do so between timed steps, never inside one.
    ///
    /// After the parent has ended, messages are dropped: this process ends, too. Other write errors are logged.
    pub fn send(&mut self, message: &Message) {
        let line = serde_json::to_vec(message).map_err(io::Error::from);
        let sent = line.and_then(|mut line| {
            line.push(b'\n');
            self.output.write_all(&line)?;
            self.output.flush()
        });
        match sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let _ = writeln!(io::stderr(), "cannot send a message to the parent: {error}");
            }
            _ => {}
        }
    }
}

/// Ends this process as soon as its standard input is closed.
///
/// # Errors
///
/// A thread cannot be started.
pub fn end_with_parent() -> io::Result<()> {
    let watch = || {
        let mut ignored = [0; 64];
        loop {
            match io::stdin().read(&mut ignored) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    let _ = writeln!(io::stderr(), "cannot watch the parent: {error}");
                    break;
                }
                _ => {}
            }
        }
        std::process::exit(INTERRUPTED);
    };
    let watching = std::thread::Builder::new().name("parent watch".into()).spawn(watch);
    watching.map(drop).map_err(|error| io::Error::other(format!("no thread could be started: {error}")))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{Ended, Measured};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_survive_a_round_trip() {
        let written = Shared::default();
        let mut reporter = Reporter::new(written.clone());
        let measured = Measured { peak_bytes: Some(1 << 20), ..Measured::default() };
        let outcome = Outcome { ended: Ended::Diverged, message: "why".into(), measured };
        let messages = [
            Message::Started { device: "cpu".into(), steps: 3 },
            Message::Phase { name: "start\nup".into() },
            Message::Step {
                step: 1,
                steps: 3,
                timed: false,
                loss: Some(f64::NAN),
                samples_per_s: 2.5,
                tokens_per_s: None,
                live_bytes: 5,
                peak_bytes: 7,
            },
            Message::Evaluation { step: 1, loss: Some(1.5) },
            Message::Finished(Box::new(outcome)),
        ];
        for message in &messages {
            reporter.send(message);
        }
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        let read: Vec<Message> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read.len(), messages.len());
        assert_eq!(read[1], messages[1]);
        assert!(matches!(read[2], Message::Step { loss: None, live_bytes: 5, peak_bytes: 7, .. }));
        assert_eq!(read[4], messages[4]);
    }
}
