//! Reports: comparisons as one self-contained page, and single plots as SVG.
//!
//! Figures and sentences are those of [`compare`]. The folders of runs add losses and the timeline of a step.

mod chart;
mod charts;
mod command;
mod page;
mod prediction;
mod run_files;
mod svg;
mod tables;
mod timeline;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use chart::{Chart, Marks, Point, Series};
use compare::{CompareError, Compared, ComparedRow, Options, Unit, compared};
use device::ByRole;
use results::{Row, Status};
use run_files::{Depth, RunFiles};
use timeline::Timeline;

/// The most runs with a timeline, and with losses and a prediction by role. Tables hold all runs.
const MOST_TIMELINES: usize = 24;
const MOST_LOSSES: usize = 400;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error("cannot read {}: {problem}", file.display())]
    Unreadable { file: PathBuf, problem: String },
    #[error("there is no plot `{name}`; the plots are: {known}")]
    UnknownPlot { name: String, known: String },
    #[error("the tables have nothing to plot: plots need memory peaks, losses or timelines")]
    NothingToPlot,
    #[error("cannot draw the plot: {0}")]
    Drawing(String),
}

/// The report on one or more experiments.
pub struct Report {
    experiments: Vec<Experiment>,
}

/// What a report shows of an experiment.
struct Experiment {
    compared: Compared,
    /// By row.
    files: Vec<RunFiles>,
    /// What is missing.
    notes: Vec<String>,
    speed: Vec<Chart>,
    memory: Vec<Chart>,
    loss: Vec<Chart>,
    timelines: Vec<RowTimeline>,
    /// By row: the command that repeats it, or why there is none.
    commands: Vec<String>,
}

/// The tables of a report's rows.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The folders of the runs, beside the tables.
    pub folders: Vec<PathBuf>,
    /// The ids and labels of the runs as the tables hold them: `compare` makes equal labels of different runs distinct.
    pub labels: HashSet<(String, String)>,
}

/// The timeline of a row's run.
struct RowTimeline {
    /// The name for `--svg`.
    name: String,
    title: String,
    /// What the timeline leaves out.
    note: String,
    /// Index of the row.
    row: usize,
}

impl Report {
    /// Compares the rows, and reads the files of their runs.
    ///
    /// # Errors
    /// Invalid options, no rows, or an unreadable file.
    pub fn read(rows: &[Row], options: &Options, tables: &Tables) -> Result<Report, ReportError> {
        let all = compared(rows, options)?;
        let several = all.len() > 1;
        let experiments = all.into_iter().map(|compared| Experiment::read(compared, tables, several));
        Ok(Report { experiments: experiments.collect::<Result<_, _>>()? })
    }

    /// The page: one HTML file that loads nothing else.
    pub fn page(&self) -> String {
        page::page(&self.experiments)
    }

    /// The names of the plots.
    pub fn plots(&self) -> Vec<String> {
        self.experiments.iter().flat_map(Experiment::plots).collect()
    }

    /// One plot as an SVG file.
    ///
    /// # Errors
    /// There is no such plot, or none at all.
    pub fn svg(&self, name: &str) -> Result<String, ReportError> {
        let found = self.experiments.iter().find_map(|experiment| experiment.chart(name));
        let unknown = || match self.plots() {
            plots if plots.is_empty() => ReportError::NothingToPlot,
            plots => ReportError::UnknownPlot { name: name.to_owned(), known: plots.join(", ") },
        };
        let chart = found.ok_or_else(unknown)?;
        svg::draw(&chart).map_err(ReportError::Drawing)
    }
}

impl Experiment {
    fn read(compared: Compared, tables: &Tables, several: bool) -> Result<Experiment, ReportError> {
        let mut files: Vec<RunFiles> = Vec::with_capacity(compared.rows.len());
        let (mut read, mut with_timelines) = (0, 0);
        for one in &compared.rows {
            let depth = match () {
                // Strategies that share a run share its files.
                () if one.same_as.is_some() => Depth::Path,
                () if with_timelines < MOST_TIMELINES => Depth::Timeline,
                () if read < MOST_LOSSES => Depth::Losses,
                () => Depth::Path,
            };
            let of_row = RunFiles::read(&one.row, &tables.folders, depth)?;
            read += usize::from(of_row.depth > Depth::Path);
            with_timelines += usize::from(of_row.timeline.is_some());
            files.push(of_row);
        }
        share_predictions(&compared, &mut files);
        let command = |(one, files): (&ComparedRow, &RunFiles)| {
            let is_label = tables.labels.contains(&(one.row.run_id.clone(), one.row.strategy.clone()));
            command::repeating(one, files.run.as_deref(), is_label).unwrap_or_else(str::to_owned)
        };
        let commands = compared.rows.iter().zip(&files).map(command).collect();
        let groups = charts::groups(&compared);
        let named = |chart: Chart| Chart { name: prefixed(&compared, several, &chart.name), ..chart };
        let drawn = |charts: Vec<Chart>| charts.into_iter().filter(Chart::has_points).map(named).collect();
        let speed = drawn(groups.iter().map(|group| charts::speed(&compared, group)).collect());
        let memory = drawn(groups.iter().map(|group| charts::memory(group, &files)).collect());
        let loss = drawn(groups.iter().map(|group| charts::losses(group, &files)).collect());
        let timelines = timelines(&compared, &files, several);
        let mut experiment =
            Experiment { notes: Vec::new(), speed, memory, loss, timelines, commands, files, compared };
        experiment.notes = experiment.missing();
        Ok(experiment)
    }

    /// What the page lacks, and how to get it.
    fn missing(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let name = &self.compared.experiment;
        let rows = || self.compared.rows.iter().zip(&self.files);
        let is_run = |row: &Row| !row.run_id.is_empty() && row.status != Status::Skipped;
        let runs = rows().filter(|(row, _)| is_run(&row.row)).count();
        let lacking = rows().filter(|(row, files)| is_run(&row.row) && files.run.is_none()).count();
        if lacking > 0 {
            let which =
                if lacking < runs { format!("{lacking} of {runs} rows") } else { "the runs".to_owned() };
            notes.push(format!(
                "The folders of {which} are not beside the table: these have no timeline and no loss curve, and their commands \
                 assume that the experiment's file is experiments/{name}.toml. `runner sweep` writes the folders beside its table."
            ));
        }
        let in_charts: usize = charts::groups(&self.compared).iter().map(|group| group.rows.len()).sum();
        if in_charts < self.compared.rows.len() {
            notes.push(format!(
                "Charts show the first {in_charts} of {} rows. The tables hold all.",
                self.compared.rows.len()
            ));
        }
        let has_unread = |depth| {
            rows().any(|(row, files)| row.same_as.is_none() && files.run.is_some() && files.depth < depth)
        };
        if has_unread(Depth::Timeline) {
            notes.push(format!("Only the first {MOST_TIMELINES} runs with files have a timeline."));
        }
        if has_unread(Depth::Losses) {
            notes.push(format!(
                "Only the first {MOST_LOSSES} runs with files have loss curves and predicted bytes by role."
            ));
        }
        let without =
            self.files.iter().filter(|files| files.depth == Depth::Timeline && files.timeline.is_none());
        let without = without.filter(|files| !files.losses.is_empty()).count();
        if without > 0 {
            notes.push(format!(
                "Without a timeline, because their memory.csv is missing, of another version or longer than {} operations: \
                 {without} of the runs.",
                timeline::MOST_OPERATIONS
            ));
        }
        notes
    }

    fn plots(&self) -> Vec<String> {
        let charts =
            [&self.speed, &self.memory, &self.loss].into_iter().flatten().map(|chart| chart.name.clone());
        charts.chain(self.timelines.iter().map(|timeline| timeline.name.clone())).collect()
    }

    fn chart(&self, name: &str) -> Option<Chart> {
        let charts = || [&self.speed, &self.memory, &self.loss].into_iter().flatten();
        let found = charts().find(|chart| chart.name == name).cloned();
        found.or_else(|| {
            let one = self.timelines.iter().find(|timeline| timeline.name == name)?;
            Some(areas(one, self.files[one.row].timeline.as_ref()?))
        })
    }
}

/// `timeline/batch 4/plain`; with several experiments, the experiment comes first.
fn prefixed(compared: &Compared, several: bool, name: &str) -> String {
    if several { format!("{}/{name}", compared.experiment) } else { name.to_owned() }
}

/// Strategies that share a run share its prediction.
fn share_predictions(compared: &Compared, files: &mut [RunFiles]) {
    let with_ids = compared.rows.iter().map(|one| one.row.run_id.as_str());
    let known = with_ids.clone().zip(&*files).filter_map(|(id, files)| Some((id, files.predicted?)));
    let known: HashMap<&str, ByRole> = known.collect();
    for (id, files) in with_ids.zip(files) {
        files.predicted = known.get(id).copied();
    }
}

fn timelines(compared: &Compared, files: &[RunFiles], several: bool) -> Vec<RowTimeline> {
    let of_row = |(at, one): (usize, &ComparedRow)| {
        let timeline = files[at].timeline.as_ref()?;
        let parts = ["timeline", &one.group, &one.label].into_iter().filter(|part| !part.is_empty());
        let name = prefixed(compared, several, &parts.collect::<Vec<_>>().join("/"));
        let group = Some(&one.group).filter(|group| !group.is_empty());
        let title = format!("{}{}", one.label, group.map(|group| format!(", {group}")).unwrap_or_default());
        let (peak, whole) = (timeline.peak(), one.row.peak_bytes.unwrap_or(0));
        let note = if whole > peak {
            format!(
                "The peak of the run, {}, is not in this step: it is at start-up, in another step or in an evaluation.",
                base::units::Bytes(whole)
            )
        } else {
            String::new()
        };
        Some(RowTimeline { name, title, note, row: at })
    };
    compared.rows.iter().enumerate().filter_map(of_row).collect()
}

/// The timeline's roles as stacked areas.
fn areas(one: &RowTimeline, timeline: &Timeline) -> Chart {
    let unit = Unit::for_sizes([timeline.peak()].into_iter());
    let series = timeline.roles.iter().map(|role| {
        // The last operation has a width too.
        let bytes = role.bytes.iter().chain(role.bytes.last());
        let point = |(at, bytes): (usize, &u64)| Point { x: at as f64, y: unit.of(*bytes), text: Vec::new() };
        Series {
            name: role.name.to_owned(),
            color: role.color,
            stack: String::new(),
            special: false,
            points: bytes.enumerate().map(point).collect(),
        }
    });
    Chart {
        name: one.name.clone(),
        point: String::new(),
        title: format!("Live memory during a step: {}", one.title),
        marks: Marks::Areas,
        x: "operation of the step".to_owned(),
        y: unit.name.to_owned(),
        categories: Vec::new(),
        series: series.collect(),
        note: one.note.clone(),
    }
}
