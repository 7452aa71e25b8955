//! A sweep's progress: on a terminal the current run and the table so far, elsewhere one line per run.
//!
//! Lines are drawn only when a child reports, which it does between steps: periodic redrawing would disturb the step that is
//! being timed.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::fitted::fitted;
use super::output::{is_quiet, mention, visible};
use super::terminal;
use base::units::Bytes;
use compare::Styled;
use execute::Message;
use results::{Row, Status};

/// Draws per second.
const RATE: u8 = 5;

pub(super) struct Progress {
    bars: Option<Bars>,
    begun: Instant,
    /// Runs that had a result before this sweep.
    before: usize,
    /// Runs that this sweep has finished.
    ended: usize,
    /// Runs that this sweep executes.
    jobs: usize,
}

/// The bars on a terminal.
struct Bars {
    all: MultiProgress,
    sweep: ProgressBar,
    /// The current run.
    run: ProgressBar,
    /// Its last report.
    status: ProgressBar,
    /// The table so far.
    table: ProgressBar,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Bars {
    fn new(before: usize, jobs: usize) -> Bars {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(RATE));
        let sweep = all.add(ProgressBar::new((before + jobs) as u64).with_position(before as u64));
        sweep.set_style(style("{bar:30} {pos} of {len} runs{msg}"));
        let line = |template: &str| {
            let line = all.add(ProgressBar::new_spinner());
            line.set_style(style(template));
            line
        };
        let (run, status, table) = (line("{wide_msg}"), line("  {wide_msg}"), line("{msg}"));
        Bars { all, sweep, run, status, table }
    }
}

impl Progress {
    pub(super) fn new(before: usize, jobs: usize) -> Progress {
        let bars =
            (std::io::stderr().is_terminal() && jobs > 0 && !is_quiet()).then(|| Bars::new(before, jobs));
        if before > 0 && bars.is_none() {
            mention(&format!("{before} of {} runs have a result already", before + jobs));
        }
        Progress { bars, begun: Instant::now(), before, ended: 0, jobs }
    }

    /// Shows that a run starts.
    pub(super) fn begin(&self, label: &str) {
        if let Some(bars) = &self.bars {
            bars.run.set_message(visible(label).into_owned());
            bars.status.set_message("starting");
        }
    }

    /// The number of the current run, and of all.
    pub(super) fn position(&self) -> (usize, usize) {
        (self.before + self.ended + 1, self.before + self.jobs)
    }

    /// Shows a run's report.
    pub(super) fn message(&self, message: &Message) {
        if let (Some(bars), Some(news)) = (&self.bars, news(message)) {
            bars.status.set_message(visible(&news).into_owned());
        }
    }

    /// Shows a run's outcome.
    pub(super) fn end(&mut self, label: &str, outcome: &str) {
        let (number, all) = self.position();
        self.ended += 1;
        let text = format!("[{number}/{all}] {label}: {outcome}");
        match &self.bars {
            None => mention(&text),
            Some(bars) => {
                let text = fitted(&visible(&text), terminal::error_width().unwrap_or(compare::WIDTH));
                // A write error is ignored: the table has the outcome.
                let _ = bars.all.println(text);
                bars.sweep.set_message(self.left().map(|left| format!(", {left} left")).unwrap_or_default());
                bars.sweep.set_position(number as u64);
            }
        }
    }

    /// Shows the table so far on a terminal, which `table` returns for its width. As many lines as the terminal has room for.
    pub(super) fn table(&self, table: impl FnOnce(Option<usize>) -> Styled) {
        let Some(bars) = &self.bars else { return };
        // The lines above it: the last outcome, the bar and the run.
        const OTHERS: usize = 6;
        let Styled { lines } = table(terminal::error_width());
        let text = |(tone, line): &(_, String)| {
            let line = visible(line);
            if terminal::errors_have_colours() { terminal::coloured(*tone, &line) } else { line.into_owned() }
        };
        let lines = lines.iter().map(text).collect();
        let text = cut(lines, terminal::error_height().saturating_sub(OTHERS)).join("\n");
        bars.table.set_message(text);
    }

    /// Clears the bars.
    pub(super) fn finish(self) {
        if let Some(Bars { sweep, run, status, table, .. }) = &self.bars {
            [table, status, run, sweep].into_iter().for_each(ProgressBar::finish_and_clear);
        }
    }

    /// The remaining time, from the mean of the finished runs.
    fn left(&self) -> Option<String> {
        let runs = self.jobs - self.ended;
        let mean = self.begun.elapsed() / u32::try_from(self.ended).ok().filter(|ended| *ended > 0)?;
        (runs > 0).then(|| about(mean.saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX))))
    }
}

/// Shows on a terminal that something takes time, until it is dropped.
pub(super) struct Waiting(ProgressBar);

impl Waiting {
    pub(super) fn begin(what: String) -> Waiting {
        let target = match is_quiet() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr_with_hz(RATE),
        };
        let bar = ProgressBar::with_draw_target(None, target).with_message(what);
        bar.set_style(style("{spinner} {msg}, {elapsed}"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Waiting(bar)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// At most this number of lines, the first of which is blank.
fn cut(mut lines: Vec<String>, most: usize) -> Vec<String> {
    if most < 4 {
        return Vec::new();
    }
    lines.insert(0, String::new());
    if lines.len() > most {
        let more = lines.len() - (most - 1);
        lines.truncate(most - 1);
        lines.push(format!("  and {more} more"));
    }
    lines
}

fn news(message: &Message) -> Option<String> {
    Some(match message {
        Message::Started { device, .. } => format!("on {device}"),
        Message::Phase { name } => name.clone(),
        Message::Step { step, steps, loss, samples_per_s, tokens_per_s, live_bytes, peak_bytes, .. } => {
            let loss = loss.map_or("not finite".to_string(), |loss| format!("{loss:.3}"));
            let speed = speed(*tokens_per_s, Some(*samples_per_s)).unwrap_or_default();
            let (live, peak) = (Bytes(*live_bytes), Bytes(*peak_bytes));
            format!("step {step}/{steps}  loss {loss}  {speed}  live {live}, peak {peak}")
        }
        Message::Evaluation { loss, .. } => match loss {
            Some(loss) => format!("evaluation loss {loss:.3}"),
            None => "evaluation loss not finite".to_string(),
        },
        Message::Finished(_) => return None,
    })
}

/// Tokens per second, or samples for models without tokens.
fn speed(tokens_per_s: Option<f64>, samples_per_s: Option<f64>) -> Option<String> {
    let tokens = tokens_per_s.map(|rate| (rate, "tok/s"));
    let (rate, unit) = tokens.or(samples_per_s.map(|rate| (rate, "smp/s")))?;
    Some(format!("{} {unit}", thousands(rate)))
}

/// A run's outcome in words.
pub(super) fn outcome(row: &Row) -> String {
    let mut facts = Vec::new();
    facts.extend(row.peak_bytes.map(|bytes| Bytes(bytes).to_string()));
    facts.extend(speed(row.tokens_per_s, row.samples_per_s));
    facts.extend(row.loss_last.map(|loss| format!("loss {loss:.3}")));
    let facts = facts.join(", ");
    match row.status {
        Status::Ok => facts,
        Status::Diverged => format!("diverged, {facts}"),
        Status::Oom => format!("out of memory: {}", row.message),
        Status::Skipped => format!("skipped: {}", row.message),
        Status::Timeout => format!("timeout: {}", row.message),
        Status::Failed => format!("failed: {}", row.message),
        Status::Interrupted => "interrupted".to_string(),
    }
}

/// Three digits: `812`, `52.1k`, `1.20M`.
fn thousands(number: f64) -> String {
    let (value, unit) = match number {
        n if n < 999.5 => return format!("{n:.0}"),
        n if n < 999.5e3 => (n / 1e3, "k"),
        n => (n / 1e6, "M"),
    };
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}{unit}")
}

pub(super) fn about(time: Duration) -> String {
    format!("about {}", duration(time))
}

/// `42 s`, `3 min`, `2 h 01 min`, `3 days`
pub(super) fn duration(time: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match time.as_secs() {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds @ 90..5400 => format!("{} min", (seconds + 30) / 60),
        seconds if seconds < 3 * DAY => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        seconds => format!("{} days", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(thousands(812.4), "812");
        assert_eq!(thousands(1234.0), "1.23k");
        assert_eq!(thousands(52_140.0), "52.1k");
        assert_eq!(thousands(411_900.0), "412k");
        assert_eq!(thousands(1_200_000.0), "1.20M");
        assert_eq!(about(Duration::from_secs(42)), "about 42 s");
        assert_eq!(about(Duration::from_secs(150)), "about 3 min");
        assert_eq!(about(Duration::from_secs(7260)), "about 2 h 01 min");
        assert_eq!(duration(Duration::from_secs(80 * 3600)), "3 days");
    }

    #[test]
    fn table_is_cut_to_the_terminal() {
        let lines = |count: usize| (1..=count).map(|line| line.to_string()).collect::<Vec<_>>();
        assert_eq!(cut(lines(3), 4), ["", "1", "2", "3"]);
        assert_eq!(cut(lines(5), 4), ["", "1", "2", "  and 3 more"]);
        assert!(cut(lines(5), 3).is_empty());
    }

    #[test]
    fn a_step_is_one_line() {
        let step = |tokens_per_s| Message::Step {
            step: 5,
            steps: 23,
            timed: true,
            loss: Some(3.2126),
            samples_per_s: 203.7,
            tokens_per_s,
            live_bytes: 3 << 20,
            peak_bytes: 7 << 30,
        };
        let expected = "step 5/23  loss 3.213  52.1k tok/s  live 3.00 MiB, peak 7.00 GiB";
        assert_eq!(news(&step(Some(52_140.0))).unwrap(), expected);
        assert_eq!(
            news(&step(None)).unwrap(),
            "step 5/23  loss 3.213  204 smp/s  live 3.00 MiB, peak 7.00 GiB"
        );
    }
}
