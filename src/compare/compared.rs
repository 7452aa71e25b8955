//! Comparisons as data, with the texts and figures of their tables, for reports.

use super::columns::{self, Cell};
use super::text::one_line;
use super::{Basis, CompareError, Comparison, Options, each_experiment, heading, legend, verdict};
use results::Row;

/// The comparison of one experiment.
#[derive(Clone, Debug)]
pub struct Compared {
    pub experiment: String,
    /// Experiment and model, machine, repeats, baseline.
    pub heading: Vec<String>,
    /// `tok/s`, or `smp/s` for models without tokens.
    pub speed_unit: &'static str,
    /// Title of the rows' names: `strategy`, or `point` if the values of a swept key are compared.
    pub name: String,
    pub columns: Vec<ComparedColumn>,
    pub rows: Vec<ComparedRow>,
    /// Explanations of marks and columns.
    pub legend: Vec<String>,
    /// Sentences: strategies to use, to drop and in doubt.
    pub verdict: Vec<String>,
}

/// A column of the table.
#[derive(Clone, Debug)]
pub struct ComparedColumn {
    pub title: String,
    /// Empty if the title suffices.
    pub explanation: String,
}

/// One strategy at one point of the sweep, repeats merged.
#[derive(Clone, Debug)]
pub struct ComparedRow {
    /// The point: `batch 16`; empty if there is one only.
    pub group: String,
    /// `*` Pareto front, `x` no result, and others.
    pub mark: String,
    /// The name in the table, and with the keys swept inside the strategy.
    pub name: String,
    pub label: String,
    /// By column.
    pub cells: Vec<Cell>,
    /// Status, warnings and effects.
    pub effects: String,
    /// Peaks in bytes of live and of reserved memory: measured, else predicted.
    pub memory: Option<u64>,
    pub reserved: Option<u64>,
    /// Median tokens or samples per second.
    pub speed: Option<f64>,
    pub pareto: bool,
    /// The strategy that is listed for the same run.
    pub same_as: Option<String>,
    /// Repeats with measurements.
    pub repeats: usize,
    /// The first row of its repeats, with their peaks and medians.
    pub row: Row,
}

/// Compares rows of one or more experiments.
///
/// # Errors
/// Invalid options, or no rows.
pub fn compared(rows: &[Row], options: &Options) -> Result<Vec<Compared>, CompareError> {
    Ok(each_experiment(rows, options, Basis::Measured)?.iter().map(data).collect())
}

fn data(comparison: &Comparison) -> Compared {
    let table = columns::table(comparison);
    let view = columns::view(comparison);
    let shown = columns::shown(comparison, &view);
    let explanation = |title: &str| {
        let column = shown.iter().find(|column| column.title(&view) == title);
        let text = column.and_then(|column| column.explained(&view)).unwrap_or_default();
        text.split_once(": ").map_or(String::new(), |(_, text)| text.to_owned())
    };
    let entries =
        comparison.groups.iter().flat_map(|group| group.entries.iter().map(move |entry| (group, entry)));
    let rows = entries.zip(&table.lines).enumerate().map(|(at, ((group, entry), line))| ComparedRow {
        group: one_line(&group.heading),
        mark: line.mark.clone(),
        name: line.name.clone(),
        label: one_line(&entry.label),
        cells: table.columns.iter().map(|column| column.cell(at)).collect(),
        effects: line.note.clone(),
        memory: entry.memory,
        reserved: entry.reserved,
        speed: entry.speed.median(),
        pareto: entry.relative.pareto,
        same_as: entry.relative.same_as.clone(),
        repeats: entry.repeats,
        row: entry.row.clone(),
    });
    Compared {
        experiment: one_line(&comparison.experiment),
        heading: heading::parts(comparison),
        speed_unit: comparison.speed_unit,
        rows: rows.collect(),
        name: table.name.clone(),
        columns: table
            .columns
            .iter()
            .map(|column| ComparedColumn {
                title: column.title.clone(),
                explanation: explanation(&column.title),
            })
            .collect(),
        legend: legend::parts(comparison, &[], &[]),
        verdict: verdict::sentences(comparison),
    }
}
