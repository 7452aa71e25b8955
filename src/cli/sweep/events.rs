//! The events of `sweep --json`: one JSON object per line on standard output, for programs.

use std::path::PathBuf;

use serde::Serialize;

use super::Sweep;
use crate::failure::Failure;
use crate::output;
use execute::Message;
use plan::{Plan, PlannedRun};
use results::Row;

/// The version of the events. It changes when an event or a field is renamed, removed or changes its meaning; new ones may be
/// added.
const VERSION: u32 = 1;

/// Writes the events, if they are requested.
#[derive(Clone, Copy)]
pub(super) struct Events {
    pub(super) requested: bool,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    /// The first event.
    Sweep { version: u32, program: &'static str, experiments: Vec<Experiment<'a>> },
    /// A repeat of a run begins. The events up to its `result` are its own.
    Run {
        experiment: &'a str,
        run_id: &'a str,
        strategy: &'a str,
        axes: &'a [(String, String)],
        repeat: usize,
        number: usize,
        of: usize,
    },
    /// A repeat has ended.
    Result { row: &'a Row },
    /// The last event.
    End { done: usize, of: usize, exit_code: u8 },
}

#[derive(Serialize)]
struct Experiment<'a> {
    name: &'a str,
    device: &'a str,
    table: PathBuf,
}

impl Events {
    /// A sweep begins.
    pub(super) fn sweep(self, sweeps: &[Sweep]) -> Result<(), Failure> {
        let experiments = sweeps.iter().map(|Sweep { plan, store, .. }| Experiment {
            name: &plan.experiment,
            device: &plan.target.name,
            table: store.csv(),
        });
        let experiments = experiments.collect();
        self.send(&Event::Sweep { version: VERSION, program: env!("CARGO_PKG_VERSION"), experiments })
    }

    /// A repeat of a run begins, as the given one of all.
    pub(super) fn run(
        self,
        plan: &Plan,
        run: &PlannedRun,
        repeat: usize,
        (number, of): (usize, usize),
    ) -> Result<(), Failure> {
        let axes = &run.axes;
        let (experiment, run_id, strategy) = (&plan.experiment, &run.id, &run.strategy);
        self.send(&Event::Run { experiment, run_id, strategy, axes, repeat, number, of })
    }

    /// A run's child reports. Its end is no event: the result follows. Errors are ignored: the result counts.
    pub(super) fn message(self, message: &Message) {
        if !matches!(message, Message::Finished(_)) {
            let _ = self.send(message);
        }
    }

    pub(super) fn result(self, row: &Row) -> Result<(), Failure> {
        self.send(&Event::Result { row })
    }

    /// The sweep ends: `done` of all repeats have a result.
    pub(super) fn end(self, done: usize, of: usize, exit_code: u8) -> Result<(), Failure> {
        self.send(&Event::End { done, of, exit_code })
    }

    fn send(self, event: &impl Serialize) -> Result<(), Failure> {
        if !self.requested {
            return Ok(());
        }
        let line = serde_json::to_string(event).map_err(Failure::machine)?;
        output::print_raw(&(line + "\n"))
    }
}
