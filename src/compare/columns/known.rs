//! All columns there are.

use super::View;
use crate::Basis;
use crate::entry::{Entry, LossOf, WAITS};
use crate::numbers::{change, milliseconds, percent, rate, ratio};
use base::units::Count;
use device::Role;
use plan::LARGEST_BATCH;
use results::Status;

/// Less than this in the host's memory is no choice of a strategy.
const MUCH: u64 = 1 << 20;

/// A column: what `--columns` calls it, when it is there without having been asked for, and what stands in it.
#[derive(Debug)]
pub(crate) struct TableColumn {
    pub(crate) name: &'static str,
    title: Title,
    /// Where there is no room, the highest goes first; 0 stays.
    pub(super) rank: u8,
    measured: Shown,
    predicted: Shown,
    pub(super) cell: fn(&View<'_>, &Entry) -> Option<String>,
    /// What it means, where its title does not say that.
    explanation: fn(&View<'_>) -> &'static str,
}

#[derive(Debug)]
enum Title {
    Is(&'static str),
    /// The unit of all sizes.
    Unit,
    /// Tokens or samples a second.
    Speed,
    /// `driver` on a card, `rss` on a CPU.
    External,
}

#[derive(Debug)]
enum Shown {
    Always,
    /// Where any row has something to say.
    IfKnown,
    When(fn(&View<'_>) -> bool),
    IfAsked,
}

use Shown::{Always, IfAsked, IfKnown, When};
use Title::Is;

/// The column of this name, or the one that is headed by it.
pub(crate) fn find(name: &str) -> Option<&'static TableColumn> {
    let is_headed = |title: &Title| match title {
        Is(title) => *title == name,
        Title::External => ["driver", "rss"].contains(&name),
        Title::Unit | Title::Speed => false,
    };
    let is_called = |column: &&TableColumn| column.name == name || is_headed(&column.title);
    ALL.iter().find(is_called)
}

/// What all of them are called.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|column| column.name).collect()
}

impl TableColumn {
    pub(crate) fn title(&self, view: &View<'_>) -> String {
        match self.title {
            Is(title) => title,
            Title::Unit => view.unit.name,
            Title::Speed => view.speed_unit,
            Title::External => {
                if view.on_a_card() {
                    "driver"
                } else {
                    "rss"
                }
            }
        }
        .to_owned()
    }

    pub(super) fn is_shown(&self, view: &View<'_>) -> bool {
        let shown = match view.basis {
            Basis::Measured => &self.measured,
            Basis::Predicted => &self.predicted,
        };
        match shown {
            Always => true,
            IfKnown => view.any(|entry| (self.cell)(view, entry).is_some()),
            When(holds) => holds(view),
            IfAsked => false,
        }
    }

    /// `rss: growth of the process's resident set`
    pub(crate) fn explained(&self, view: &View<'_>) -> Option<String> {
        let explanation = (self.explanation)(view);
        (!explanation.is_empty()).then(|| format!("{}: {explanation}", self.title(view)))
    }
}

/// In the order of the table. Scripts choose them by name.
pub(super) static ALL: [TableColumn; 30] = [
    TableColumn {
        name: "memory",
        title: Title::Unit,
        rank: 0,
        measured: Always,
        predicted: Always,
        cell: |view, entry| view.bytes(entry.memory),
        explanation: |_| "",
    },
    TableColumn {
        name: "external",
        title: Title::External,
        rank: 7,
        measured: IfKnown,
        predicted: IfAsked,
        cell: |view, entry| view.bytes(entry.row.external_peak_bytes.filter(|_| entry.repeats > 0)),
        explanation: |view| match view.on_a_card() {
            true => "memory used, by the driver's count",
            false => "growth of the process's resident set",
        },
    },
    TableColumn {
        name: "xmem",
        title: Is("xmem"),
        rank: 2,
        measured: Always,
        predicted: Always,
        cell: |_, entry| entry.relative.memory.map(ratio),
        explanation: |_| "",
    },
    TableColumn {
        name: "speed",
        title: Title::Speed,
        rank: 1,
        measured: Always,
        predicted: IfAsked,
        cell: |_, entry| match entry.status {
            Status::Oom => Some("OOM".into()),
            _ => entry.speed.median().map(rate),
        },
        explanation: |_| "",
    },
    TableColumn {
        name: "xspeed",
        title: Is("xspeed"),
        rank: 3,
        measured: Always,
        predicted: IfAsked,
        cell: |_, entry| match entry.relative.speed {
            Some(_) if entry.same_speed() => Some("=".into()),
            speed => speed.map(|speed| ratio(speed.median)),
        },
        explanation: |_| "",
    },
    TableColumn {
        name: "estimate",
        title: Is("est ms"),
        rank: 3,
        measured: IfAsked,
        predicted: IfKnown,
        cell: |_, entry| entry.row.estimated_step_ms.map(milliseconds),
        explanation: |_| "a step's time by roofline, an estimate",
    },
    TableColumn {
        name: "interval",
        title: Is("+-%"),
        rank: 5,
        measured: IfKnown,
        predicted: IfAsked,
        cell: |_, entry| {
            let half = entry.relative.speed?.half_width()?;
            (!entry.relative.is_baseline).then(|| percent(half))
        },
        explanation: |_| "half the 95% interval of xspeed",
    },
    TableColumn {
        name: "dloss",
        title: Is("dloss"),
        rank: 4,
        measured: IfKnown,
        predicted: IfAsked,
        cell: |_, entry| match entry.loss_change() {
            _ if entry.relative.is_baseline => None,
            Some(_) if entry.same_loss() => Some("=".into()),
            share => share.map(change),
        },
        explanation: |view| {
            let of_training = |entry: &Entry| {
                let loss = entry.loss.as_ref().is_some_and(|loss| loss.of == LossOf::Training);
                loss && entry.relative.loss.is_some()
            };
            if view.any(of_training) { "of the last training step, where nothing is evaluated" } else { "" }
        },
    },
    TableColumn {
        name: "loss",
        title: Is("loss"),
        rank: 4,
        measured: IfAsked,
        predicted: IfAsked,
        cell: |_, entry| Some(format!("{:.4}", entry.loss.as_ref()?.values.median()?)),
        explanation: |_| "after the last step: of the evaluation, where there is one",
    },
    TableColumn {
        name: "param",
        title: Is("param"),
        rank: 7,
        measured: IfAsked,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Parameter]),
        explanation: |_| "",
    },
    TableColumn {
        name: "cast",
        title: Is("cast"),
        rank: 8,
        measured: IfAsked,
        predicted: IfKnown,
        // Where nothing is cast there is no such column.
        cell: |view, entry| view.bytes(entry.row.live[Role::Cast].filter(|bytes| *bytes > 0)),
        explanation: |_| "16-bit copies of parameters",
    },
    TableColumn {
        name: "grad",
        title: Is("grad"),
        rank: 9,
        measured: IfAsked,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Gradient]),
        explanation: |_| "",
    },
    TableColumn {
        name: "opt",
        title: Is("opt"),
        rank: 10,
        measured: IfAsked,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Optimizer]),
        explanation: |_| "",
    },
    TableColumn {
        name: "act",
        title: Is("act"),
        rank: 5,
        measured: IfAsked,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Activation]),
        explanation: |_| "",
    },
    TableColumn {
        name: "other",
        title: Is("other"),
        rank: 11,
        measured: IfAsked,
        predicted: IfKnown,
        cell: |view, entry| {
            const SHOWN: [Role; 5] =
                [Role::Parameter, Role::Cast, Role::Gradient, Role::Optimizer, Role::Activation];
            let parts = entry.row.live.iter().filter(|(role, _)| !SHOWN.contains(role));
            view.bytes(parts.filter_map(|(_, bytes)| bytes).reduce(u64::saturating_add))
        },
        explanation: |_| "",
    },
    TableColumn {
        name: "start",
        title: Is("start"),
        rank: 12,
        measured: When(|view| {
            view.any(|entry| entry.start_above_training() || entry.starts_without_parameters())
        }),
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.start_peak_bytes),
        explanation: |view| match view.basis {
            Basis::Predicted => "",
            Basis::Measured if view.any(Entry::start_above_training) => {
                "peak before the first step, above training's"
            }
            Basis::Measured => "peak before the first step",
        },
    },
    TableColumn {
        name: "fits",
        title: Is("fits"),
        rank: 6,
        measured: IfKnown,
        predicted: IfKnown,
        cell: |_, entry| Some(at_most(entry.row.fits_micro_batch?, LARGEST_BATCH)),
        explanation: |_| "the largest micro-batch within the limit",
    },
    TableColumn {
        name: "batch",
        title: Is("batch"),
        rank: 7,
        measured: When(|view| view.any(Entry::accumulates)),
        predicted: When(|view| view.any(Entry::accumulates)),
        cell: |_, entry| Some(entry.fits_batch()?.to_string()),
        explanation: |_| "the largest batch, in as many of them as now",
    },
    TableColumn {
        name: "host",
        title: Is("host"),
        rank: 8,
        measured: When(holds_much_on_the_host),
        predicted: When(holds_much_on_the_host),
        cell: |view, entry| view.bytes(entry.row.host_reserved_peak_bytes),
        explanation: |_| "",
    },
    TableColumn {
        name: "added",
        title: Is("+FLOP%"),
        rank: 15,
        measured: IfAsked,
        predicted: When(|view| view.any(|entry| entry.flops_added().is_some_and(|share| share > 0.0))),
        cell: |_, entry| entry.flops_added().map(percent),
        explanation: |_| "computed again",
    },
    TableColumn {
        name: "moved",
        title: Is("moved"),
        rank: 9,
        measured: IfAsked,
        predicted: When(|view| view.any(|entry| entry.moved_bytes().is_some_and(|bytes| bytes > 0))),
        cell: |view, entry| view.bytes(entry.moved_bytes()),
        explanation: |_| "to the host and back in a step",
    },
    TableColumn {
        name: "params",
        title: Is("params"),
        rank: 14,
        measured: IfAsked,
        predicted: When(|view| {
            let mut counts = view.entries.iter().filter_map(|entry| entry.row.parameters);
            counts.next().is_some_and(|first| counts.any(|other| other != first))
        }),
        cell: |_, entry| entry.row.parameters.map(|n| Count(n).to_string()),
        explanation: |_| "",
    },
    TableColumn {
        name: "trained",
        title: Is("trained"),
        rank: 13,
        measured: When(trains_a_part),
        predicted: When(trains_a_part),
        cell: |_, entry| entry.row.trainable_parameters.map(|n| Count(n).to_string()),
        explanation: |_| "",
    },
    TableColumn {
        name: "wait",
        title: Is("wait%"),
        rank: 8,
        measured: When(|view| view.any(|entry| entry.wait.is_some_and(|share| share > WAITS))),
        predicted: IfAsked,
        cell: |_, entry| entry.wait.map(percent),
        explanation: |_| "of the step, for data",
    },
    TableColumn {
        name: "first",
        title: Is("first ms"),
        rank: 14,
        measured: When(|view| view.any(|entry| entry.relative.other_start_time)),
        predicted: IfAsked,
        cell: |_, entry| entry.row.first_step_ms.map(|ms| format!("{ms:.0}")),
        explanation: |_| "from asking for memory to the end of the first step",
    },
    TableColumn {
        name: "eval",
        title: Is("eval"),
        rank: 10,
        measured: When(|view| view.any(Entry::evaluation_above_training)),
        predicted: IfAsked,
        cell: |view, entry| view.bytes(entry.row.evaluation_peak_bytes),
        explanation: |_| "peak of the evaluation, above training's",
    },
    TableColumn {
        name: "predicted",
        title: Is("pred"),
        rank: 11,
        measured: When(|view| view.any(Entry::prediction_missed)),
        predicted: IfAsked,
        cell: |view, entry| view.bytes(entry.row.predicted_peak_bytes),
        explanation: |_| "predicted peak, not what was measured",
    },
    TableColumn {
        name: "uncounted",
        title: Is("uncounted"),
        rank: 12,
        measured: When(|view| view.any(|entry| entry.uncounted().is_some())),
        predicted: IfAsked,
        cell: |view, entry| entry.uncounted().map(|off| view.unit.show_change(off)),
        explanation: |_| "external reading minus counted bytes",
    },
    TableColumn {
        name: "repeats",
        title: Is("n"),
        rank: 9,
        measured: IfAsked,
        predicted: IfAsked,
        cell: |_, entry| (entry.repeats > 0).then(|| entry.repeats.to_string()),
        explanation: |_| "repeats with figures",
    },
    TableColumn {
        name: "step",
        title: Is("ms/step"),
        rank: 9,
        measured: IfAsked,
        predicted: IfAsked,
        cell: |_, entry| entry.row.step_ms_median.map(|ms| format!("{ms:.1}")),
        explanation: |_| "",
    },
];

/// What is looked for no further than to the most.
fn at_most(found: usize, most: usize) -> String {
    if found < most { found.to_string() } else { format!(">{}", most - 1) }
}

/// The host's memory holds more than batches and what a step tells.
fn holds_much_on_the_host(view: &View<'_>) -> bool {
    let host = |entry: &Entry| entry.row.host_reserved_peak_bytes;
    view.any(|entry| host(entry) > Some(MUCH).max(entry.memory.map(|bytes| bytes / 10)))
}

/// Somewhere not all parameters are trained.
fn trains_a_part(view: &View<'_>) -> bool {
    view.any(|entry| entry.row.trainable_parameters.is_some_and(|n| Some(n) != entry.row.parameters))
}
