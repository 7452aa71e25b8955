//! Rows of several strategies side by side: what each saves, what it costs, and which one to use.
//!
//! Rows become [`entry`]s (repeats merged), entries become [`group`]s (one per axis point, ratios against the
//! baseline), groups become a [`table`] and a [`verdict`].

mod advice;
mod axes;
mod columns;
mod doubts;
mod entry;
mod figures;
mod group;
mod heading;
mod legend;
mod numbers;
mod rounds;
mod styled;
mod table;
mod text;
mod verdict;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use base::statistics::Ratio;
use columns::TableColumn;
use entry::Entry;
use group::Group;
use results::Row;
pub use styled::{Styled, Tone};
pub use text::wrap;

/// No line of a table is wider where nothing says how wide it may be, and no sentence is anywhere.
pub const WIDTH: usize = 100;
/// Tables are made for no narrower place.
pub const LEAST_WIDTH: usize = 80;

/// What is compared with what, and in which order.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The strategy that ratios are against; the first of the rows if none is named.
    pub baseline: Option<String>,
    /// Put the values of this swept key beside each other instead of the strategies.
    pub by: Option<String>,
    pub sort: Sort,
    /// Show these columns, by their names, instead of those that have something to say.
    pub columns: Option<Vec<String>>,
    /// No line of a table is wider: [`WIDTH`] if it is not known.
    pub width: Option<usize>,
    /// What is to be said of the figures of the machine that is predicted for.
    pub caution: Option<&'static str>,
}

/// The order of the rows within a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Least first
    Memory,
    /// Fastest first
    Speed,
    Name,
    /// As the experiment file has them
    #[default]
    File,
}

/// How a comparison is written.
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

/// Why rows cannot be compared as asked.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CompareError {
    #[error("there are no rows to compare")]
    NoRows,
    #[error("`{experiment}` has no strategy `{name}` to compare with; its strategies are: {known}")]
    UnknownBaseline { experiment: String, name: String, known: String },
    #[error("`{experiment}` does not sweep `{name}`; {}", advice_on_axes(known))]
    UnknownAxis { experiment: String, name: String, known: Vec<String> },
    #[error("there is no column `{name}`; there are: {known}")]
    UnknownColumn { name: String, known: String },
}

fn advice_on_axes(known: &[String]) -> String {
    if known.is_empty() { "it sweeps no key".into() } else { format!("it sweeps: {}", known.join(", ")) }
}

/// Whether the rows are results or promises.
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
    /// Whether rows are values of a swept key, each group with a baseline of its own: its first row.
    by: Option<String>,
    /// What the speed counts: `tok/s` or, for models without tokens, `smp/s`.
    speed_unit: &'static str,
    groups: Vec<Group>,
    /// Those that were asked for.
    columns: Option<Vec<&'static TableColumn>>,
    width: usize,
    /// Entries that `by` cannot place, for they do not lie on that axis.
    left_out: usize,
    caution: Option<&'static str>,
}

impl Comparison {
    /// Compares measured rows of one experiment.
    pub fn new(rows: &[Row], options: &Options) -> Result<Comparison, CompareError> {
        Comparison::build(rows, options, Basis::Measured)
    }

    fn build(rows: &[Row], options: &Options, basis: Basis) -> Result<Comparison, CompareError> {
        let experiment = rows.first().ok_or(CompareError::NoRows)?.experiment.clone();
        // What a row without tokens counts has to be said of all, for them to be compared.
        let in_tokens = rows.iter().all(|row| row.tokens_per_s.is_some() || row.samples_per_s.is_none());
        let entries = entry::merge(rows, in_tokens, basis);
        let baseline = group::baseline(&experiment, &entries, options.baseline.as_deref())?;
        let by = match &options.by {
            Some(name) => Some(axes::resolve(&experiment, &entries, name)?),
            None => None,
        };
        let (groups, left_out) = group::split(entries, &baseline, by.as_deref(), options.sort, basis);
        let columns = options.columns.as_deref().map(|names| asked(names)).transpose()?;
        let caution = options.caution;
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
        })
    }

    /// The table with its heading, its legend and the verdict.
    pub fn table(&self) -> Styled {
        let table = columns::table(self);
        let sentences_end = self.width.min(WIDTH);
        let mut out = Styled::default();
        out.push(Tone::Title, &heading::lines(self, sentences_end).join("\n"));
        let (lines, dropped) = table.lines(self.width);
        out.lines.extend(lines);
        out.blank();
        let legend = text::pack(&legend::parts(self, &dropped), "; ", sentences_end);
        out.push(Tone::Legend, &legend.join("\n"));
        out.blank();
        for sentence in verdict::sentences(self) {
            out.push(Tone::Plain, &text::wrap(&sentence, sentences_end));
        }
        out
    }

    /// The same for GitHub, with nothing shortened.
    pub fn markdown(&self) -> String {
        let mut out = format!("**{}**\n\n{}\n", heading::title(self), columns::table(self).markdown());
        let _ = writeln!(out, "\n{}\n", text::markdown(&legend::parts(self, &[]).join("; ")));
        for sentence in verdict::sentences(self) {
            let _ = writeln!(out, "- {}", text::markdown(&sentence));
        }
        out
    }

    /// A few sentences: what to use, what to drop, what is doubtful and how to settle it.
    pub fn verdict(&self) -> Vec<String> {
        verdict::sentences(self)
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.groups.iter().flat_map(|group| &group.entries)
    }
}

/// Whether there is a column of this name.
pub fn check_column(name: &str) -> Result<(), CompareError> {
    asked(&[name.to_owned()]).map(|_| ())
}

/// Whether rows can be compared like this, before there is anything to compare.
pub fn check(rows: &[Row], options: &Options) -> Result<(), CompareError> {
    each_experiment(rows, options, Basis::Predicted).map(|_| ())
}

fn asked(names: &[String]) -> Result<Vec<&'static TableColumn>, CompareError> {
    let find = |name: &String| {
        columns::find(name).ok_or_else(|| CompareError::UnknownColumn {
            name: name.clone(),
            known: columns::names().join(", "),
        })
    };
    names.iter().map(find).collect()
}

/// Compares rows of one experiment or several, each with a table of its own.
pub fn render(rows: &[Row], options: &Options, format: Format) -> Result<Styled, CompareError> {
    written(&each_experiment(rows, options, Basis::Measured)?, format)
}

/// The same for rows that were planned but not run: their memory, no speed.
pub fn render_planned(rows: &[Row], options: &Options, format: Format) -> Result<Styled, CompareError> {
    written(&each_experiment(rows, options, Basis::Predicted)?, format)
}

fn written(comparisons: &[Comparison], format: Format) -> Result<Styled, CompareError> {
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

/// The runs of one experiment whose speeds, beside their baselines', are not known to `half_width` of them, and these
/// baselines. Where there is none to compare with it is the speed itself.
pub fn unsettled(rows: &[Row], half_width: f64) -> HashSet<String> {
    let Ok(comparison) = Comparison::build(rows, &Options::default(), Basis::Measured) else {
        return HashSet::new();
    };
    let mut unsettled = HashSet::new();
    for group in &comparison.groups {
        let base = group.base().filter(|base| base.speed.len() > 0);
        let is_known = |entry: &&Entry| {
            let known = match base {
                Some(_) => entry.relative.speed.as_ref().and_then(Ratio::half_width),
                None => entry.speed.half_width(),
            };
            known.is_some_and(|known| known <= half_width)
        };
        let measured =
            group.entries.iter().filter(|entry| entry.speed.len() > 0 && !entry.relative.is_baseline);
        let mut open = measured.filter(|entry| !is_known(entry)).peekable();
        if open.peek().is_some() {
            unsettled.extend(base.map(|base| base.row.run_id.clone()));
        }
        unsettled.extend(open.map(|entry| entry.row.run_id.clone()));
    }
    unsettled
}

fn each_experiment(rows: &[Row], options: &Options, basis: Basis) -> Result<Vec<Comparison>, CompareError> {
    let mut experiments: Vec<Vec<Row>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for row in rows {
        let place = *places.entry(&row.experiment).or_insert(experiments.len());
        match experiments.get_mut(place) {
            Some(rows) => rows.push(row.clone()),
            None => experiments.push(vec![row.clone()]),
        }
    }
    if experiments.is_empty() {
        return Err(CompareError::NoRows);
    }
    experiments.iter().map(|rows| Comparison::build(rows, options, basis)).collect()
}
