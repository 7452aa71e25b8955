//! The time of a step as two tables, at most 80 or 100 characters wide.

use std::fmt::Write as _;

use super::profile::{Live, Phase, Profile, Scope, Step, Work};
use compare::WIDTH;
use results::Row;

/// The result that the figures come from.
pub(super) struct Source<'a> {
    pub(super) row: &'a Row,
    /// The number of repeats with a result.
    pub(super) repeats: usize,
    pub(super) timed_steps: usize,
}

/// Widths of the name columns: operations, and scopes, which have more figures beside them.
const OPERATION: usize = 31;
const SCOPE: usize = 26;
/// Width of the figures of [`Judge::time`].
const TIME: usize = 23;

/// A table per kind of operation with the rest of the step, then one per phase and scope, whose rates need a width of 100.
pub(super) fn render(source: &Source, step: &Step, profile: &Profile, width: usize) -> String {
    let mut out = heading(source);
    let judge = Judge { step_ms: step.ms, row: source.row };
    let (header, figures): (&str, fn(&Judge<'_>, &Work) -> String) = match width {
        ..WIDTH => (&judge.header()[..TIME], |judge, work| judge.time(&work.calls.to_string(), work.ms)),
        _ => (judge.header(), |judge, work| judge.figures(work)),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n{:OPERATION$}{}", "operation", judge.header());
    for (name, work) in &profile.operations {
        let _ = writeln!(out, "{}{}", fit(name, OPERATION), judge.figures(work));
    }
    let _ = writeln!(out, "{:OPERATION$}{}", "all operations", judge.figures(&profile.all));
    out.push_str(&outside(&judge, step, profile));
    let _ = writeln!(out, "\n{:SCOPE$}{header}  before    peak   after", "scope");
    for phase in &profile.phases {
        let Phase { name, work, live, scopes } = phase;
        let _ = writeln!(out, "{}{}{}", fit(name, SCOPE), figures(&judge, work), mib(live));
        for scope in scopes {
            let name = fit(&format!("  {}", label(scope)), SCOPE);
            let _ = writeln!(out, "{name}{}{}", figures(&judge, &scope.work), mib(&scope.live));
        }
    }
    out.push_str(LEGEND);
    out
}

const LEGEND: &str = "
calls and ms: of one step; first %: of the step; then: of the product rate, of the copy rate
  GFLOP/s of attention: of the whole T x T, as is customary; kernels skip most of the masked half
  GB/s: bytes that must be moved, each operand once; more than the copy rate where caches hold them
  before, peak, after: live MiB on the device, the (n) of one line taken together
";

fn heading(source: &Source) -> String {
    let Source { row, repeats, timed_steps } = source;
    let which = match repeats {
        1 => String::new(),
        _ => format!(" of repeat {}, the median of {repeats}", row.repeat),
    };
    let rate = |rate: Option<f64>, unit| {
        rate.map_or("unknown".to_owned(), |rate| format!("{:.1} {unit}", rate / 1e9))
    };
    let what = match row.profiled_step_ms {
        Some(_) => "one step timed by the card's clock, after the timed steps".to_owned(),
        None => format!("the mean of {timed_steps} timed steps"),
    };
    format!(
        "where time goes: {what}{which}\n\
         measured after the run: product rate {}, copy rate {}\n",
        rate(row.product_flops_per_s, "GFLOP/s"),
        rate(row.copy_bytes_per_s, "GB/s"),
    )
}

/// The time outside operations, with its known parts.
fn outside(judge: &Judge, step: &Step, profile: &Profile) -> String {
    let outside = step.ms - profile.all.ms;
    let rest = outside - step.data_wait_ms - profile.allocation_ms - profile.wait_ms;
    let lines = [
        ("outside operations", outside),
        ("  waiting for data", step.data_wait_ms),
        ("  allocation", profile.allocation_ms),
        ("  waiting for queues", profile.wait_ms),
        ("  the rest", rest),
        ("the step", step.ms),
    ];
    let mut out = String::new();
    for (name, ms) in lines {
        let _ = writeln!(out, "{name:OPERATION$}{}", judge.time("", ms));
    }
    for (section, ms) in &profile.apart {
        let _ = writeln!(out, "{:OPERATION$}       {}", format!("outside steps: {section}"), judge.ms(*ms));
    }
    out
}

/// The references of percentages: the step's time and the device's rates.
struct Judge<'a> {
    step_ms: f64,
    row: &'a Row,
}

impl Judge<'_> {
    fn header(&self) -> &'static str {
        "  calls       ms      %  GFLOP/s    %   GB/s    %"
    }

    fn figures(&self, work: &Work) -> String {
        let Work { calls, ms, flops, moved_bytes } = *work;
        format!(
            "{}{}{}",
            self.time(&calls.to_string(), ms),
            rate(flops, ms, self.row.product_flops_per_s, 9),
            rate(moved_bytes, ms, self.row.copy_bytes_per_s, 7),
        )
    }

    fn time(&self, calls: &str, ms: f64) -> String {
        format!("{calls:>7}{}{:>7.1}", self.ms(ms), 100.0 * ms / self.step_ms)
    }

    /// Milliseconds, with the decimals that the step's time needs.
    fn ms(&self, ms: f64) -> String {
        let decimals = if self.step_ms < 10.0 { 3 } else { 2 };
        format!("{ms:>9.decimals$}")
    }
}

/// A rate in G/s, and its percentage of the device's measured rate.
fn rate(count: u64, ms: f64, best_per_s: Option<f64>, width: usize) -> String {
    if count == 0 || ms <= 0.0 {
        return format!("{:>width$}{:>5}", "-", "-");
    }
    let per_s = count as f64 / ms * 1e3;
    let share = best_per_s.map_or("-".to_owned(), |best| format!("{:.0}", 100.0 * per_s / best));
    format!("{:>width$.1}{share:>5}", per_s / 1e9)
}

fn mib(live: &Live) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!("{:>8.1}{:>8.1}{:>8.1}", mib(live.before), mib(live.peak), mib(live.after))
}

fn label(scope: &Scope) -> String {
    match scope.members.as_slice() {
        [only] => only.clone(),
        members => format!("{} ({})", scope.name, members.len()),
    }
}

/// A name in a column. A long one loses its beginning: its end is more specific.
fn fit(name: &str, width: usize) -> String {
    let excess = name.chars().count().saturating_sub(width);
    if excess == 0 {
        return format!("{name:width$}");
    }
    std::iter::once('…').chain(name.chars().skip(excess + 1)).collect()
}
