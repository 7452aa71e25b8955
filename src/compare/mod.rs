//! Rows of several strategies side by side: what each saves, what it costs, and which one to use.
//!
//! Rows become [`entry`]s (repeats merged), entries become [`group`]s (one per axis point, ratios against the
//! baseline), groups become a [`table`] and a [`verdict`].

mod axes;
mod columns;
mod entry;
mod figures;
mod group;
mod heading;
mod legend;
mod numbers;
mod table;
mod text;
mod verdict;

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::results::Row;
use entry::Entry;
use group::Group;

/// No line of a table is wider.
pub const WIDTH: usize = 100;

/// What is compared with what, and in which order.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The strategy that ratios are against; the first of the rows if none is named.
    pub baseline: Option<String>,
    /// Put the values of this swept key beside each other instead of the strategies.
    pub by: Option<String>,
    pub sort: Sort,
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
    /// Entries that `by` cannot place, for they do not lie on that axis.
    left_out: usize,
    /// What is to be said of the figures of the machine that is predicted for.
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
        let speed_unit = if in_tokens { "tok/s" } else { "smp/s" };
        Ok(Comparison { basis, experiment, baseline, by, speed_unit, groups, left_out, caution: None })
    }

    /// The table with its heading, its legend and the verdict, each line at most [`WIDTH`] columns wide.
    pub fn table(&self) -> String {
        let table = columns::table(self);
        let mut out = heading::lines(self).join("\n");
        let (lines, dropped) = table.lines(WIDTH);
        let _ = write!(out, "\n{}\n", lines.join("\n"));
        let legend = text::pack(&legend::parts(self, &dropped), "; ", WIDTH);
        for line in legend {
            let _ = write!(out, "\n{line}");
        }
        out.push_str("\n\n");
        for sentence in verdict::sentences(self) {
            let _ = writeln!(out, "{}", text::wrap(&sentence, WIDTH));
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

/// Compares rows of one experiment or several, each with a table of its own.
pub fn render(rows: &[Row], options: &Options, format: Format) -> Result<String, CompareError> {
    let comparisons = each_experiment(rows, options, Basis::Measured)?;
    Ok(match format {
        Format::Table => joined(&comparisons, Comparison::table),
        Format::Markdown => joined(&comparisons, Comparison::markdown),
        Format::Csv => figures::csv(&comparisons),
        Format::Json => figures::json(&comparisons),
    })
}

/// The same table for rows that were planned but not run: their memory, no speed. Its heading has what is to be said of the
/// figures of the machine, if anything is.
pub fn predicted_table(
    rows: &[Row],
    options: &Options,
    caution: Option<&'static str>,
) -> Result<String, CompareError> {
    let cautious = |comparison| Comparison { caution, ..comparison };
    let comparisons = each_experiment(rows, options, Basis::Predicted)?;
    Ok(joined(&comparisons.into_iter().map(cautious).collect::<Vec<_>>(), Comparison::table))
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

fn joined(comparisons: &[Comparison], write: impl Fn(&Comparison) -> String) -> String {
    comparisons.iter().map(write).collect::<Vec<_>>().join("\n\n")
}
