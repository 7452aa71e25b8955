//! Definitions of all table columns.

use super::TableView;
use super::cell::Cell;
use super::column::ColumnTitle::{self, Fixed};
use super::column::TableColumn;
use super::column::Visibility::{Always, IfKnown, OnRequest, When};
use crate::Basis;
use crate::entry::{LossSource, TableEntry, WAITS};
use crate::numbers::{change, milliseconds, percent, rate, ratio};
use base::units::Count;
use device::Role;
use plan::LARGEST_BATCH;
use results::Status;

/// In the order of the table.
pub(super) static ALL: [TableColumn; 39] = [
    TableColumn {
        name: "memory",
        title: ColumnTitle::Unit,
        rank: |_| 0,
        measured: Always,
        predicted: Always,
        cell: |view, entry| view.bytes(entry.memory),
        explanation: |view| match view.shows_reserved() {
            _ if view.of_pytorch => "PyTorch's peak, torch.cuda.max_memory_allocated()",
            true => "live bytes at the peak",
            false => "",
        },
    },
    TableColumn {
        name: "reserved",
        title: Fixed("reserved"),
        rank: |_| 3,
        measured: When(|view| view.shows_reserved()),
        predicted: When(|view| view.shows_reserved()),
        cell: |view, entry| view.bytes(entry.reserved),
        explanation: |view| match view.of_pytorch {
            true => "torch.cuda.max_memory_reserved() without a limit",
            false => "peak bytes obtained from the system, to which limits apply",
        },
    },
    TableColumn {
        name: "external",
        title: ColumnTitle::External,
        rank: |_| 7,
        measured: IfKnown,
        predicted: OnRequest,
        cell: |view, entry| view.bytes(entry.row.external_peak_bytes.filter(|_| entry.repeats > 0)),
        explanation: |view| match view.on_gpu() {
            true => "memory used, as reported by the driver",
            false => "growth of the process's resident set",
        },
    },
    TableColumn {
        name: "torch",
        title: Fixed("torch"),
        rank: |_| 1,
        measured: IfKnown,
        predicted: When(|view| !view.of_pytorch && view.any(|entry| entry.row.torch_peak_bytes.is_some())),
        cell: |view, entry| view.bytes(entry.row.torch_peak_bytes),
        explanation: |_| "PyTorch's peak for this run (predicted: `runner export` writes the script)",
    },
    TableColumn {
        name: "torch_reserved",
        title: Fixed("t-rsvd"),
        rank: |_| 9,
        measured: OnRequest,
        predicted: OnRequest,
        cell: |view, entry| view.bytes(entry.row.torch_reserved_peak_bytes),
        explanation: |_| "PyTorch's peak of reserved memory",
    },
    TableColumn {
        name: "torch_fits",
        title: Fixed("t-fits"),
        rank: |_| 4,
        measured: IfKnown,
        predicted: When(|view| {
            !view.of_pytorch && view.any(|entry| entry.row.torch_fits_micro_batch.is_some())
        }),
        cell: |_, entry| at_most(entry.row.torch_fits_micro_batch?),
        explanation: |_| "largest micro-batch within the memory limit in PyTorch",
    },
    TableColumn {
        name: "xmem",
        title: Fixed("xmem"),
        rank: |_| 5,
        measured: Always,
        predicted: Always,
        cell: |_, entry| Cell::number(entry.relative.memory?, ratio),
        explanation: |view| if view.shows_reserved() { "ratio of live peaks" } else { "" },
    },
    TableColumn {
        name: "speed",
        title: ColumnTitle::Speed,
        rank: |_| 1,
        measured: Always,
        predicted: OnRequest,
        cell: |_, entry| match entry.status {
            Status::Oom => Some(Cell::text("OOM")),
            _ => Cell::number(entry.speed.median()?, rate),
        },
        explanation: |_| "",
    },
    TableColumn {
        name: "xspeed",
        title: Fixed("xspeed"),
        rank: |_| 2,
        measured: Always,
        predicted: OnRequest,
        cell: |_, entry| match entry.same_speed() {
            true => Cell::number(entry.relative.speed?.median, |_| "=".to_owned()),
            false => Cell::number(entry.relative.speed?.median, ratio),
        },
        explanation: |_| "",
    },
    TableColumn {
        name: "estimate",
        title: Fixed("est ms"),
        rank: |_| 3,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |_, entry| Cell::number(entry.row.estimated_step_ms?, milliseconds),
        explanation: |_| "estimated step time (roofline)",
    },
    TableColumn {
        name: "exchange",
        title: Fixed("exch ms"),
        rank: |_| 4,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |_, entry| {
            let row = &entry.row;
            Cell::number(row.estimated_exchange_ms.or(row.exchange_ms)?, milliseconds)
        },
        explanation: |_| "time of exchanges between ranks, hidden by computation or not",
    },
    TableColumn {
        name: "interval",
        title: Fixed("+-%"),
        rank: |_| 5,
        measured: IfKnown,
        predicted: OnRequest,
        cell: |_, entry| {
            let half = entry.relative.speed?.half_width().filter(|_| !entry.relative.is_baseline)?;
            Cell::number(half, percent)
        },
        explanation: |_| "half-width of xspeed's 95% confidence interval",
    },
    TableColumn {
        name: "dloss",
        title: Fixed("dloss"),
        rank: |_| 3,
        measured: IfKnown,
        predicted: OnRequest,
        cell: |_, entry| match entry.loss_change() {
            _ if entry.relative.is_baseline => None,
            Some(share) if entry.same_loss() => Cell::number(share, |_| "=".to_owned()),
            share => Cell::number(share?, change),
        },
        explanation: |view| {
            let of_training = |entry: &TableEntry| {
                let loss = entry.loss.as_ref().is_some_and(|loss| loss.source == LossSource::Training);
                loss && entry.relative.loss.is_some()
            };
            if view.any(of_training) {
                "change of the last step's training loss: there is no evaluation"
            } else {
                ""
            }
        },
    },
    TableColumn {
        name: "accuracy",
        title: Fixed("acc"),
        rank: |_| 3,
        measured: When(|view| view.accuracies_differ()),
        predicted: OnRequest,
        cell: |_, entry| Cell::number(entry.row.accuracy?, |share| format!("{:.2}%", 100.0 * share)),
        explanation: |_| "share of correct classes in the last evaluation",
    },
    TableColumn {
        name: "loss",
        title: Fixed("loss"),
        rank: |_| 4,
        measured: OnRequest,
        predicted: OnRequest,
        cell: |_, entry| Cell::number(entry.loss.as_ref()?.values.median()?, |loss| format!("{loss:.4}")),
        explanation: |_| "after the last step; evaluation loss, if there is one",
    },
    TableColumn {
        name: "param",
        title: Fixed("param"),
        rank: |_| 8,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Parameter]),
        explanation: |_| "",
    },
    TableColumn {
        name: "cast",
        title: Fixed("cast"),
        rank: |_| 9,
        measured: OnRequest,
        predicted: IfKnown,
        // 0 counts as no value: without casts the column is not shown.
        cell: |view, entry| view.bytes(entry.row.live[Role::Cast].filter(|bytes| *bytes > 0)),
        explanation: |_| "16-bit copies of parameters",
    },
    TableColumn {
        name: "grad",
        title: Fixed("grad"),
        rank: |_| 9,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Gradient]),
        explanation: |_| "",
    },
    TableColumn {
        name: "opt",
        title: Fixed("opt"),
        rank: |_| 9,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Optimizer]),
        explanation: |_| "",
    },
    TableColumn {
        name: "act",
        title: Fixed("act"),
        rank: |_| 6,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.live[Role::Activation]),
        explanation: |view| if view.of_pytorch { "activations, logits and loss" } else { "" },
    },
    TableColumn {
        name: "rounding",
        title: Fixed("round"),
        rank: |_| 10,
        measured: OnRequest,
        predicted: IfKnown,
        // 0 counts as no value: without remainders the column is not shown.
        cell: |view, entry| view.bytes(entry.row.live[Role::Rounding].filter(|bytes| *bytes > 0)),
        explanation: |view| match view.of_pytorch {
            true => "rounding to 512 bytes, and undivided remainders of blocks",
            false => "undivided remainders of the cache's blocks",
        },
    },
    TableColumn {
        name: REMAINDER,
        title: Fixed("other"),
        rank: |_| 5,
        measured: OnRequest,
        predicted: IfKnown,
        cell: |view, entry| view.bytes(other_roles(entry)),
        explanation: |_| "",
    },
    TableColumn {
        name: "start",
        title: Fixed("start"),
        rank: |view| if view.any(TableEntry::start_above_training) { 2 } else { 13 },
        measured: When(|view| {
            view.any(|entry| entry.start_above_training() || entry.starts_without_parameters())
        }),
        predicted: IfKnown,
        cell: |view, entry| view.bytes(entry.row.start_peak_bytes),
        explanation: |view| match view.basis {
            Basis::Predicted => "",
            Basis::Measured if view.any(TableEntry::start_above_training) => {
                "peak before the first step, above the training peak"
            }
            Basis::Measured => "peak before the first step",
        },
    },
    TableColumn {
        name: "first_step",
        title: Fixed("step 1"),
        rank: |_| 7,
        measured: When(later_steps_need_more),
        predicted: When(later_steps_need_more),
        cell: |view, entry| view.bytes(entry.row.predicted_first_step_peak_bytes),
        explanation: |_| "predicted live peak of the first step",
    },
    TableColumn {
        name: "fits",
        title: Fixed("fits"),
        rank: |_| 4,
        measured: IfKnown,
        predicted: IfKnown,
        cell: |_, entry| at_most(entry.row.fits_micro_batch?),
        explanation: |view| match view.of_pytorch {
            true => "largest micro-batch within the memory limit, after cached memory was returned if needed",
            false => "largest micro-batch within the memory limit, by reserved bytes",
        },
    },
    TableColumn {
        name: "batch",
        title: Fixed("batch"),
        rank: |_| 6,
        measured: When(|view| view.any(TableEntry::accumulates)),
        predicted: When(|view| view.any(TableEntry::accumulates)),
        cell: |_, entry| Cell::number(entry.fits_batch()? as f64, |batch| batch.to_string()),
        explanation: |_| "largest batch with the same number of micro-batches",
    },
    TableColumn {
        name: "fits_speed",
        title: Fixed("fits tok/s"),
        rank: |_| 14,
        measured: OnRequest,
        predicted: OnRequest,
        cell: |_, entry| Cell::number(entry.row.estimated_fits_tokens_per_s?, rate),
        explanation: |_| "estimated speed at the largest batch that fits",
    },
    TableColumn {
        name: "host",
        title: Fixed("host"),
        rank: |_| 2,
        measured: When(|view| view.any(|entry| entry.host_memory().is_some())),
        predicted: When(|view| view.any(|entry| entry.host_memory().is_some())),
        cell: |view, entry| view.bytes(entry.row.host_reserved_peak_bytes),
        explanation: |_| "",
    },
    TableColumn {
        name: "added",
        title: Fixed("+FLOP%"),
        rank: |_| 12,
        measured: OnRequest,
        predicted: When(|view| view.any(|entry| entry.flops_added().is_some_and(|share| share > 0.0))),
        cell: |_, entry| Cell::number(entry.flops_added()?, percent),
        explanation: |_| "recomputed FLOPs, relative to the model's",
    },
    TableColumn {
        name: "moved",
        title: Fixed("moved"),
        rank: |_| 10,
        measured: OnRequest,
        predicted: When(|view| view.any(|entry| entry.moved_bytes().is_some_and(|bytes| bytes > 0))),
        cell: |view, entry| view.bytes(entry.moved_bytes()),
        explanation: |_| "transfers to the host and back per step",
    },
    TableColumn {
        name: "params",
        title: Fixed("params"),
        rank: |_| 12,
        measured: OnRequest,
        predicted: When(|view| {
            let mut counts = view.entries.iter().filter_map(|entry| entry.row.parameters);
            counts.next().is_some_and(|first| counts.any(|other| other != first))
        }),
        cell: |_, entry| count(entry.row.parameters?),
        explanation: |_| "",
    },
    TableColumn {
        name: "trained",
        title: Fixed("trained"),
        rank: |_| 11,
        measured: When(trains_a_part),
        predicted: When(trains_a_part),
        cell: |_, entry| count(entry.row.trainable_parameters?),
        explanation: |_| "",
    },
    TableColumn {
        name: "wait",
        title: Fixed("wait%"),
        rank: |_| 4,
        measured: When(|view| view.any(|entry| entry.wait.is_some_and(|share| share > WAITS))),
        predicted: OnRequest,
        cell: |_, entry| Cell::number(entry.wait?, percent),
        explanation: |_| "share of the step spent waiting for data",
    },
    TableColumn {
        name: "first",
        title: Fixed("first ms"),
        rank: |_| 12,
        measured: When(|view| view.any(|entry| entry.relative.other_start_time)),
        predicted: OnRequest,
        cell: |_, entry| Cell::number(entry.row.first_step_ms?, |ms| format!("{ms:.0}")),
        explanation: |_| "from allocation to the end of the first step",
    },
    TableColumn {
        name: "eval",
        title: Fixed("eval"),
        rank: |_| 3,
        measured: When(|view| view.any(TableEntry::evaluation_above_training)),
        predicted: OnRequest,
        cell: |view, entry| view.bytes(entry.row.evaluation_peak_bytes),
        explanation: |_| "evaluation peak, above the training peak",
    },
    TableColumn {
        name: "predicted",
        title: Fixed("pred"),
        rank: |_| 4,
        measured: When(|view| view.any(TableEntry::prediction_missed)),
        predicted: OnRequest,
        cell: |view, entry| view.bytes(entry.row.predicted_peak_bytes),
        explanation: |_| "predicted peak, different from the measured one",
    },
    TableColumn {
        name: "uncounted",
        title: Fixed("uncounted"),
        rank: |_| 6,
        measured: When(|view| view.any(|entry| entry.uncounted().is_some())),
        predicted: OnRequest,
        cell: |view, entry| entry.uncounted().map(|off| Cell::new(view.unit.show_change(off), off as f64)),
        explanation: |_| "external reading minus counted bytes",
    },
    TableColumn {
        name: "repeats",
        title: Fixed("n"),
        rank: |_| 9,
        measured: OnRequest,
        predicted: OnRequest,
        cell: |_, entry| Cell::number(Some(entry.repeats as f64).filter(|n| *n > 0.0)?, |n| n.to_string()),
        explanation: |_| "repeats with measurements",
    },
    TableColumn {
        name: "step",
        title: Fixed("ms/step"),
        rank: |_| 9,
        measured: OnRequest,
        predicted: OnRequest,
        cell: |_, entry| Cell::number(entry.row.step_ms_median?, |ms| format!("{ms:.1}")),
        explanation: |_| "",
    },
];

/// The columns of live bytes by role. Column [`REMAINDER`] has the sum of the other roles.
pub(super) const PARTS: [(&str, Role); 6] = [
    ("param", Role::Parameter),
    ("cast", Role::Cast),
    ("grad", Role::Gradient),
    ("opt", Role::Optimizer),
    ("act", Role::Activation),
    ("rounding", Role::Rounding),
];
/// The name of the column for roles without a column.
pub(super) const REMAINDER: &str = "other";

/// Live bytes of roles without a column.
pub(super) fn other_roles(entry: &TableEntry) -> Option<u64> {
    let others = entry.row.live.iter().filter(|(role, _)| !PARTS.iter().any(|(_, part)| part == role));
    others.filter_map(|(_, bytes)| bytes).reduce(u64::saturating_add)
}

/// `29`, or `>1048575` if the search ended at its upper bound.
fn at_most(found: usize) -> Option<Cell> {
    let text = if found < LARGEST_BATCH { found.to_string() } else { format!(">{}", LARGEST_BATCH - 1) };
    Some(Cell::new(text, found as f64))
}

fn count(n: u64) -> Option<Cell> {
    Some(Cell::new(Count(n).to_string(), n as f64))
}

/// Whether any entry's peak is in a training step after the first, and the table shows a difference.
fn later_steps_need_more(view: &TableView<'_>) -> bool {
    view.any(|entry| {
        let first = entry.row.predicted_first_step_peak_bytes;
        entry.row.evaluation_peak_bytes != entry.memory
            && first < entry.memory
            && first.is_some_and(|first| view.size(Some(first)) != view.size(entry.memory))
    })
}

/// Whether any entry freezes parameters.
fn trains_a_part(view: &TableView<'_>) -> bool {
    view.any(|entry| entry.row.trainable_parameters.is_some_and(|n| Some(n) != entry.row.parameters))
}
