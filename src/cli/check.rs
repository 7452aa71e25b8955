//! `runner check`: validates experiments and prints their resolved runs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use super::data_sets::DataSets;
use super::failure::{ExitStatus, Failure};
use super::{chance, files, held_data, messages, output, sample_lengths};
use base::brief;
use data::Note;
use device::DeviceChoice;
use plan::{Experiment, Label, ParetoFronts, Point};
use spec::{Repeats, UntilPrecise};

/// Validate experiments and check that their data exists, without training
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Experiment files, or patterns such as 'experiments/*.toml'
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Override a key, as in train.batch_size=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print each resolved run as an experiment file, without reading its data
    #[arg(long)]
    resolved: bool,
    /// Results folder, which also caches the digests of data files
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

/// Prints a line for each experiment, or its runs.
pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let mut experiments = files::expand_all(&args.files, &args.overrides, |_| true)?;
    let mut data = DataSets::new(&args.out);
    if !args.resolved {
        Failure::collect(experiments.iter().map(|experiment| data.check(experiment)))?;
        Failure::collect(experiments.iter_mut().map(|experiment| skip_infeasible(experiment, &data)))?;
    }
    experiments.iter().for_each(|experiment| messages::unread(experiment, |_| true));
    let mut out = String::new();
    for experiment in &experiments {
        if args.resolved {
            out.push_str(&resolved(experiment));
        } else {
            out.push_str(&summary(experiment));
            out.push('\n');
            out.push_str(&notes(experiment, &data));
            out.push_str(&sample_lengths::text(experiment, &data));
            out.push_str(&held_data::text(experiment));
            out.push_str(&skipped(experiment));
        }
    }
    if args.resolved {
        output::print(&out)?
    } else {
        output::show(&out)?
    }
    Ok(ExitStatus::Complete)
}

/// Skips the runs whose recompute budget is infeasible on this machine, as `plan` does.
fn skip_infeasible(experiment: &mut Experiment, data: &DataSets) -> Result<(), Failure> {
    experiment.set_data_properties(|config| data.describe(config));
    let limits = experiment.limits;
    let machine = || {
        let found = device::find(DeviceChoice::Auto).map_err(Failure::input)?;
        found.target(limits).map_err(Failure::input)
    };
    plan::skip_infeasible(experiment, &ParetoFronts::default(), machine)
}

/// A line for each note about the data of an experiment.
fn notes(experiment: &Experiment, data: &DataSets) -> String {
    let line = |note: &Note| {
        let kind = if note.is_warning { "warning" } else { "note" };
        format!("  {kind}: {}\n", brief::line(&note.text))
    };
    data.notes([experiment]).into_iter().map(line).collect()
}

/// A line per skipped run, with the reason.
fn skipped(experiment: &Experiment) -> String {
    const MOST: usize = 20;
    let reason = |point: &Point| {
        let reason = point.config.as_ref().err()?;
        Some(format!("  {} is skipped: {reason}\n", plan::title(&point.strategy, &point.axes)))
    };
    let lines: Vec<String> = experiment.points.iter().filter_map(reason).collect();
    let more = lines.len().saturating_sub(MOST);
    let more = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    lines.into_iter().take(MOST).chain([more]).collect()
}

/// `experiments/a.toml: 12 runs, 6 strategies x 2 points`
pub(super) fn summary(experiment: &Experiment) -> String {
    let strategies: BTreeSet<&str> = experiment.points.iter().map(|point| point.strategy.as_str()).collect();
    let places: BTreeSet<String> = experiment.points.iter().map(shared_axes).collect();
    let skipped = experiment.points.iter().filter(|point| point.config.is_err()).count();
    let runs = experiment.points.len() - skipped;
    let mut line = format!(
        "{}: {}, {} x {}",
        experiment.file.display(),
        counted(runs, "run"),
        if strategies.len() == 1 {
            "1 strategy".to_string()
        } else {
            format!("{} strategies", strategies.len())
        },
        counted(places.len(), "point"),
    );
    // Writing to a string cannot fail.
    let _ = match experiment.repeats {
        Repeats::Times(1) => Ok(()),
        Repeats::Times(repeats) => write!(line, ", {repeats} repeats"),
        Repeats::Until(UntilPrecise { until, most }) => {
            write!(line, ", up to {most} repeats, until speeds are known to {}%", until * 100.0)
        }
    };
    if skipped > 0 {
        let _ = write!(line, ", {skipped} skipped");
    }
    let runs = experiment.points.iter().filter_map(|point| point.config.as_ref().ok());
    if let Some(floor) = chance::least_losses(runs) {
        let _ = write!(line, "; {floor}");
    }
    line
}

/// The run's point on the axes shared by all strategies. A strategy's own axes are in its label.
fn shared_axes(point: &Point) -> String {
    let shared = Label::of(&point.strategy, &point.axes).shared;
    shared.into_iter().map(|(key, value)| format!("{key}={value} ")).collect()
}

pub(super) fn counted(number: usize, name: &str) -> String {
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
}

pub(super) fn resolved(experiment: &Experiment) -> String {
    let mut out = String::new();
    for (index, point) in experiment.points.iter().enumerate() {
        let title = plan::title(&point.strategy, &point.axes);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# {}: run {}, {title}", experiment.file.display(), index + 1);
        let _ = match &point.config {
            Ok(config) => writeln!(out, "{}", config.to_toml(&experiment.name, &point.strategy)),
            Err(reason) => writeln!(out, "# skipped: {reason}\n"),
        };
    }
    out
}
