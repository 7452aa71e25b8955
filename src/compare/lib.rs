//! Compares strategies: memory saved, cost in speed and loss, and which one to use.
//!
//! Rows become [`entry`]s (repeats merged), entries become [`group`]s (one per axis point, ratios against the
//! baseline), groups become a [`table`] and a [`verdict`].

mod advice;
mod against;
mod axes;
mod columns;
mod compared;
mod doubts;
mod entry;
mod fewest_ranks;
mod figures;
mod group;
mod heading;
mod ladder;
mod legend;
mod numbers;
mod rounds;
mod sentence;
mod styled;
mod table;
mod text;
mod verdict;
mod versions;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

pub use against::{Against, Tolerated, against};
use base::statistics::Ratio;
pub use columns::Cell;
use columns::{SideBySide, TableColumn};
pub use compared::{Compared, ComparedColumn, ComparedRow, compared};
use entry::TableEntry;
use group::TableGroup;
pub use numbers::{Unit, milliseconds, rate};
use results::Row;
pub use styled::{Styled, Tone};
pub use text::{cut_middle, wrap};
pub use versions::tell_apart;

/// Maximum width of table lines if the terminal's width is unknown, and of sentences always.
pub const WIDTH: usize = 100;
/// Minimum table width, also on narrower terminals.
pub const LEAST_WIDTH: usize = 80;

/// Baseline, layout and order of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The baseline of all ratios. Default: the experiment's baseline, else the first strategy.
    pub baseline: Option<String>,
    /// Compare the values of this swept key instead of the strategies.
    pub by: Option<String>,
    pub sort: Sort,
    /// Names of the columns to show. Default: the columns that are relevant to these rows.
    pub columns: Option<Vec<String>>,
    /// Maximum width of table lines; [`WIDTH`] if unknown.
    pub width: Option<usize>,
    /// Warning about the assumed properties of the predicted machine.
    pub caution: Option<String>,
    /// The same, of tables with ranks only.
    pub ranks_caution: Option<String>,
    /// Whose memory the rows hold, if not this program's: `PyTorch 2.15`.
    pub pytorch: Option<String>,
    /// Show the contribution of each key of ablated strategies instead of the strategies.
    pub ladder: bool,
}

/// The order of the rows within a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Smallest peak first
    Memory,
    /// Fastest first
    Speed,
    Name,
    /// Order of the experiment file
    #[default]
    File,
}

/// Output format of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a terminal, at most 100 columns wide
    #[default]
    Table,
    /// One line per strategy and axis point, repeats merged, bytes exact
    Csv,
    /// For a README or an issue
    Markdown,
    /// One object per experiment, with the verdict
    Json,
}

/// Invalid options, or no rows.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CompareError {
    #[error("there are no rows to compare")]
    NoRows,
    #[error("`{experiment}` has no strategy `{name}` to compare with; its strategies are: {known}")]
    UnknownBaseline { experiment: String, name: String, known: String },
    #[error("`{experiment}` does not sweep `{name}`; {}", advice_on_axes(known))]
    UnknownAxis { experiment: String, name: String, known: Vec<String> },
    #[error("unknown column `{name}`; the columns are: {known}")]
    UnknownColumn { name: String, known: String },
    #[error("the two tables have no run in common\n = help: rows are matched by strategy and swept keys")]
    NothingInCommon,
    #[error(
        "{experiments} {} no rows of an ablation\n = help: add [sweep.ablate] with the `strategy` whose keys to compare",
        if *several { "have" } else { "has" }
    )]
    NoAblation { experiments: String, several: bool },
    #[error("the contributions of keys are shown as a table or as Markdown, for one machine")]
    NoLadder,
    #[error("the speeds of {name} cannot be compared: the devices are {} and {}", devices[0], devices[1])]
    OtherDevice { name: String, devices: [String; 2] },
}

fn advice_on_axes(known: &[String]) -> String {
    if known.is_empty() { "it sweeps no key".into() } else { format!("it sweeps: {}", known.join(", ")) }
}

/// Whether rows hold measurements or predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    Measured,
    Predicted,
}

/// The rows of one experiment, compared.
#[derive(Debug)]
pub struct Comparison {
    basis: Basis,
    experiment: String,
    baseline: String,
    /// The swept key whose values are compared. Each group's baseline is then its first row.
    by: Option<String>,
    /// `tok/s` or, for models without tokens, `smp/s`.
    speed_unit: &'static str,
    groups: Vec<TableGroup>,
    /// The requested columns.
    columns: Option<Vec<&'static TableColumn>>,
    width: usize,
    /// Number of entries without a value of the key `by`.
    left_out: usize,
    caution: Option<String>,
    /// Whose memory the rows hold, if not this program's: `PyTorch 2.15`.
    pytorch: Option<String>,
}

impl Comparison {
    /// Compares measured rows of one experiment.
    pub fn new(rows: &[Row], options: &Options) -> Result<Comparison, CompareError> {
        Comparison::build(&rows.iter().collect::<Vec<_>>(), options, Basis::Measured)
    }

    fn build(rows: &[&Row], options: &Options, basis: Basis) -> Result<Comparison, CompareError> {
        let experiment = rows.first().ok_or(CompareError::NoRows)?.experiment.clone();
        // One unit for all rows: samples, if any row has no tokens.
        let in_tokens = rows.iter().all(|row| row.tokens_per_s.is_some() || row.samples_per_s.is_none());
        let mut entries = entry::merge(rows, in_tokens, basis);
        if options.pytorch.is_some() {
            entries.iter_mut().for_each(TableEntry::mark_retries);
        }
        let baseline = group::baseline(&experiment, &entries, options.baseline.as_deref())?;
        let by = match &options.by {
            Some(name) => Some(axes::resolve(&experiment, &entries, name)?),
            None => None,
        };
        let (groups, left_out) = group::split(entries, &baseline, by.as_deref(), options.sort, basis);
        let columns = options.columns.as_deref().map(|names| find_columns(names)).transpose()?;
        let has_ranks = rows.iter().any(|row| row.ranks.is_some());
        let cautions = [options.caution.clone(), options.ranks_caution.clone().filter(|_| has_ranks)];
        let cautions: Vec<String> = cautions.into_iter().flatten().collect();
        let caution = Some(cautions.join("; ")).filter(|text| !text.is_empty());
        let width = options.width.unwrap_or(WIDTH).max(LEAST_WIDTH);
        let speed_unit = if in_tokens { "tok/s" } else { "smp/s" };
        Ok(Comparison {
            basis,
            experiment,
            baseline,
            by,
            speed_unit,
            groups,
            columns,
            width,
            left_out,
            caution,
            pytorch: options.pytorch.clone(),
        })
    }

    /// The table with heading, legend and verdict.
    pub fn table(&self) -> Styled {
        let table = columns::table(self);
        let sentences_end = self.width.min(WIDTH);
        let mut out = Styled::default();
        out.push(Tone::Title, &heading::lines(self, sentences_end).join("\n"));
        let layout = table.layout(self.width);
        out.lines.extend(layout.lines);
        out.blank();
        let legend = legend::parts(self, &layout.dropped, &layout.joined);
        let legend = text::pack(&legend, "; ", sentences_end);
        out.push(Tone::Legend, &legend.join("\n"));
        out.blank();
        for sentence in verdict::sentences(self) {
            out.push(Tone::Plain, &text::wrap(&sentence, sentences_end));
        }
        out
    }

    /// The rows of the table with their titles, without heading, legend and verdict.
    pub fn rows(&self) -> Styled {
        Styled { lines: columns::table(self).layout(self.width).lines }
    }

    /// The same as GitHub Markdown, without shortened names.
    pub fn markdown(&self) -> String {
        let mut out =
            format!("**{}**\n\n{}\n", text::markdown(&heading::title(self)), columns::table(self).markdown());
        let _ = writeln!(out, "\n{}\n", text::markdown(&legend::parts(self, &[], &[]).join("; ")));
        for sentence in verdict::sentences(self) {
            let _ = writeln!(out, "- {}", text::markdown(&sentence));
        }
        out
    }

    /// A few sentences: strategies to use, to drop and in doubt, and how to settle the doubts.
    pub(crate) fn verdict(&self) -> Vec<String> {
        verdict::sentences(self)
    }

    fn entries(&self) -> impl Iterator<Item = &TableEntry> {
        self.groups.iter().flat_map(|group| &group.entries)
    }
}

/// Checks a column name.
///
/// # Errors
/// [`CompareError::UnknownColumn`].
pub fn check_column(name: &str) -> Result<(), CompareError> {
    find_columns(&[name.to_owned()]).map(|_| ())
}

/// The names of all columns.
pub fn column_names() -> Vec<&'static str> {
    columns::names()
}

/// Checks the options against planned rows, before any row is measured.
pub fn check(rows: &[Row], options: &Options, format: Format) -> Result<(), CompareError> {
    render_planned(rows, options, format).map(|_| ())
}

fn find_columns(names: &[String]) -> Result<Vec<&'static TableColumn>, CompareError> {
    let find = |name: &String| {
        columns::find(name).ok_or_else(|| CompareError::UnknownColumn {
            name: name.clone(),
            known: columns::names().join(", "),
        })
    };
    names.iter().map(find).collect()
}

/// Compares rows of one or more experiments, with one table per experiment.
pub fn render(rows: &[Row], options: &Options, format: Format) -> Result<Styled, CompareError> {
    format_all(&each_experiment(rows, options, Basis::Measured)?, options, format)
}

/// The same for planned rows: predicted memory, no measured speed.
pub fn render_planned(rows: &[Row], options: &Options, format: Format) -> Result<Styled, CompareError> {
    format_all(&each_experiment(rows, options, Basis::Predicted)?, options, format)
}

/// Planned rows of the same experiments for several machines, each with its name: tables have a group of columns for
/// each machine, CSV and JSON a row for each run and machine.
///
/// # Errors
/// Invalid options, or no rows.
pub fn render_side_by_side(
    machines: &[(String, Vec<Row>)],
    options: &Options,
    format: Format,
) -> Result<Styled, CompareError> {
    if options.ladder {
        return Err(CompareError::NoLadder);
    }
    if matches!(format, Format::Csv | Format::Json) {
        let rows: Vec<Row> = machines.iter().flat_map(|(_, rows)| rows.clone()).collect();
        return render_planned(&rows, options, format);
    }
    let has_torch = machines.iter().any(|(_, rows)| rows.iter().any(|row| row.torch_peak_bytes.is_some()));
    let columns = match &options.columns {
        Some(names) => names.clone(),
        None if has_torch && options.pytorch.is_none() => vec!["torch".to_owned(), "torch_fits".to_owned()],
        None => vec!["memory".to_owned(), "fits".to_owned()],
    };
    let columns = find_columns(&columns)?;
    let mut experiments: Vec<Vec<(&str, Comparison)>> = Vec::new();
    for (name, rows) in machines {
        for (at, comparison) in each_experiment(rows, options, Basis::Predicted)?.into_iter().enumerate() {
            match experiments.get_mut(at) {
                Some(experiment) => experiment.push((name, comparison)),
                None => experiments.push(vec![(name, comparison)]),
            }
        }
    }
    let mut out = Styled::default();
    for comparisons in &experiments {
        let Some(tables) = SideBySide::new(comparisons, columns.clone()) else { continue };
        (0..2 * usize::from(!out.lines.is_empty())).for_each(|_| out.blank());
        match format {
            Format::Markdown => out.push(Tone::Plain, &tables.markdown()),
            _ => {
                let width = options.width.unwrap_or(WIDTH).max(LEAST_WIDTH);
                out.lines.extend(tables.table(width).lines);
            }
        }
    }
    Ok(out)
}

fn format_all(comparisons: &[Comparison], options: &Options, format: Format) -> Result<Styled, CompareError> {
    if options.ladder {
        return ladder::render(comparisons, format);
    }
    Ok(match format {
        Format::Table => {
            let mut out = Styled::default();
            for (at, comparison) in comparisons.iter().enumerate() {
                (0..2 * usize::from(at > 0)).for_each(|_| out.blank());
                out.lines.extend(comparison.table().lines);
            }
            out
        }
        Format::Markdown => {
            comparisons.iter().map(Comparison::markdown).collect::<Vec<_>>().join("\n\n").into()
        }
        Format::Csv => figures::csv(comparisons).into(),
        Format::Json => figures::json(comparisons).into(),
    })
}

/// Ids of the runs of one experiment whose speed ratio to the baseline has a confidence interval wider than
/// +-`half_width` (relative), or none, and of their baselines. In groups without a measured baseline, the interval is
/// that of the speed itself.
pub fn unsettled(rows: &[Row], half_width: f64) -> HashSet<String> {
    let Ok(comparison) = Comparison::new(rows, &Options::default()) else {
        return HashSet::new();
    };
    let mut unsettled = HashSet::new();
    for group in &comparison.groups {
        let base = group.base().filter(|base| base.speed.len() > 0);
        let is_settled = |entry: &&TableEntry| {
            let half = match base {
                Some(_) => entry.relative.speed.as_ref().and_then(Ratio::half_width),
                None => entry.speed.half_width(),
            };
            half.is_some_and(|half| half <= half_width)
        };
        let measured =
            group.entries.iter().filter(|entry| entry.speed.len() > 0 && !entry.relative.is_baseline);
        let mut open = measured.filter(|entry| !is_settled(entry)).peekable();
        if open.peek().is_some() {
            unsettled.extend(base.map(|base| base.row.run_id.clone()));
        }
        unsettled.extend(open.map(|entry| entry.row.run_id.clone()));
    }
    unsettled
}

fn each_experiment(rows: &[Row], options: &Options, basis: Basis) -> Result<Vec<Comparison>, CompareError> {
    let mut experiments: Vec<Vec<&Row>> = Vec::new();
    let mut indices: HashMap<&str, usize> = HashMap::new();
    for row in rows {
        let index = *indices.entry(&row.experiment).or_insert(experiments.len());
        match experiments.get_mut(index) {
            Some(rows) => rows.push(row),
            None => experiments.push(vec![row]),
        }
    }
    if experiments.is_empty() {
        return Err(CompareError::NoRows);
    }
    experiments.iter().map(|rows| Comparison::build(rows, options, basis)).collect()
}
