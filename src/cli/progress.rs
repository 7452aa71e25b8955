//! A sweep's progress: two lines on a terminal, one line per run elsewhere.
//!
//! Lines are drawn only when a child reports, which it does between steps: periodic redrawing would disturb the step that is
//! being timed.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::{is_quiet, mention, visible};
use base::units::Bytes;
use execute::Message;
use results::{Row, Status};

/// Draws per second.
const RATE: u8 = 5;

pub(super) struct Progress {
    bars: Option<Bars>,
    label: String,
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
    run: ProgressBar,
}

impl Bars {
    fn new(before: usize, jobs: usize) -> Bars {
        let style = |template: &str| {
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(RATE));
        let sweep = all.add(ProgressBar::new((before + jobs) as u64).with_position(before as u64));
        sweep.set_style(style("{bar:30} {pos} of {len} runs{msg}"));
        let run = all.add(ProgressBar::new_spinner());
        run.set_style(style("{wide_msg}"));
        Bars { all, sweep, run }
    }
}

impl Progress {
    pub(super) fn new(before: usize, jobs: usize) -> Progress {
        let bars =
            (std::io::stderr().is_terminal() && jobs > 0 && !is_quiet()).then(|| Bars::new(before, jobs));
        if before > 0 && bars.is_none() {
            mention(&format!("{before} of {} runs have a result already", before + jobs));
        }
        Progress { bars, label: String::new(), begun: Instant::now(), before, ended: 0, jobs }
    }

    /// Shows that a run starts.
    pub(super) fn begin(&mut self, label: &str) {
        self.label = label.to_string();
        if let Some(bars) = &self.bars {
            bars.run.set_message(visible(&format!("{label}  starting")).into_owned());
        }
    }

    /// Shows a run's report.
    pub(super) fn message(&mut self, message: &Message) {
        if let (Some(bars), Some(news)) = (&self.bars, news(message)) {
            bars.run.set_message(visible(&format!("{}  {news}", self.label)).into_owned());
        }
    }

    /// Shows a run's outcome.
    pub(super) fn end(&mut self, label: &str, outcome: &str) {
        self.ended += 1;
        let number = self.before + self.ended;
        let text = format!("[{number}/{}] {label}: {outcome}", self.before + self.jobs);
        match &self.bars {
            None => mention(&text),
            Some(bars) => {
                // A write error is ignored: the table has the outcome.
                let _ = bars.all.println(visible(&text));
                bars.sweep.set_message(self.left().map(|left| format!(", {left} left")).unwrap_or_default());
                bars.sweep.set_position(number as u64);
            }
        }
    }

    /// Clears the bars.
    pub(super) fn finish(self) {
        if let Some(bars) = &self.bars {
            bars.run.finish_and_clear();
            bars.sweep.finish_and_clear();
        }
    }

    /// The remaining time, from the mean of the finished runs.
    fn left(&self) -> Option<String> {
        let runs = self.jobs - self.ended;
        let mean = self.begun.elapsed() / u32::try_from(self.ended).ok().filter(|ended| *ended > 0)?;
        (runs > 0).then(|| about(mean.saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX))))
    }
}

fn news(message: &Message) -> Option<String> {
    Some(match message {
        Message::Started { device, .. } => format!("on {device}"),
        Message::Phase { name } => name.clone(),
        Message::Step { step, steps, loss, samples_per_s, tokens_per_s, peak_bytes, .. } => {
            let loss = loss.map_or("not finite".to_string(), |loss| format!("{loss:.3}"));
            let speed = speed(*tokens_per_s, Some(*samples_per_s)).unwrap_or_default();
            format!("step {step}/{steps}  loss {loss}  {speed}  {}", Bytes(*peak_bytes))
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

fn about(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..90 => format!("about {seconds} s"),
        seconds @ 90..5400 => format!("about {} min", (seconds + 30) / 60),
        seconds => format!("about {} h {:02} min", seconds / 3600, seconds % 3600 / 60),
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
            peak_bytes: 7 << 30,
        };
        let expected = "step 5/23  loss 3.213  52.1k tok/s  7.00 GiB";
        assert_eq!(news(&step(Some(52_140.0))).unwrap(), expected);
        assert_eq!(news(&step(None)).unwrap(), "step 5/23  loss 3.213  204 smp/s  7.00 GiB");
    }
}
