//! What each key of an ablated strategy contributes: alone, as the last one, and together with another.

use super::columns;
use super::entry::{NOISY, TableEntry};
use super::group::TableGroup;
use super::numbers::{list, milliseconds, percent, rate, ratio};
use super::styled::{Styled, Tone};
use super::table::{Column, Table, TableLine};
use super::{Basis, CompareError, Comparison, Format, WIDTH, doubts, heading, text};
use base::statistics::{Difference, Ratio};
use plan::Label;
use results::Status;
use spec::AblationLabel;

/// The rows of one ablation in a group.
struct Ablated<'a> {
    /// The strategy's label, with the values of its own axes.
    name: String,
    units: Vec<&'a str>,
    rows: Vec<(AblationLabel<&'a str>, &'a TableEntry)>,
    /// The row with all keys.
    all: Option<&'a TableEntry>,
}

/// A change of memory and speed between rows, or between changes.
struct Contribution<'a> {
    key: String,
    /// The rows that it compares.
    rows: Vec<&'a TableEntry>,
    bytes: Option<i128>,
    memory: Option<f64>,
    speed: Option<Ratio>,
    /// Ratio of the estimated step times.
    estimate: Option<f64>,
}

/// The ladders of all experiments that have an ablation.
///
/// # Errors
/// None has one, or the format is for programs.
pub(super) fn render(comparisons: &[Comparison], format: Format) -> Result<Styled, CompareError> {
    let mut out = Styled::default();
    for comparison in comparisons {
        let Some(ladder) = Ladder::of(comparison) else { continue };
        (0..2 * usize::from(!out.lines.is_empty())).for_each(|_| out.blank());
        match format {
            Format::Table => out.lines.extend(ladder.text(comparison).lines),
            Format::Markdown => out.push(Tone::Plain, &ladder.markdown(comparison)),
            Format::Csv | Format::Json => return Err(CompareError::NoLadder),
        }
    }
    if out.lines.is_empty() {
        let experiments: Vec<String> =
            comparisons.iter().map(|one| format!("`{}`", one.experiment)).collect();
        return Err(CompareError::NoAblation {
            experiments: list(&experiments),
            several: experiments.len() > 1,
        });
    }
    Ok(out)
}

/// The contributions of keys, by ablation and kind of row.
struct Ladder {
    table: Table,
    legend: Vec<String>,
}

impl Ladder {
    fn text(&self, comparison: &Comparison) -> Styled {
        let sentences_end = comparison.width.min(WIDTH);
        let mut out = Styled::default();
        out.push(Tone::Title, &heading::lines(comparison, sentences_end).join("\n"));
        let layout = self.table.layout(comparison.width);
        out.lines.extend(layout.lines);
        out.blank();
        let dropped = Some(layout.dropped).filter(|dropped| !dropped.is_empty());
        let dropped = dropped.map(|dropped| format!("not shown: {}", list(&dropped)));
        let legend: Vec<String> = self.legend.iter().cloned().chain(dropped).collect();
        out.push(Tone::Legend, &text::pack(&legend, "; ", sentences_end).join("\n"));
        let doubts = doubts(comparison);
        if !doubts.is_empty() {
            out.blank();
        }
        doubts.iter().for_each(|doubt| out.push(Tone::Plain, &text::wrap(doubt, sentences_end)));
        out
    }

    fn markdown(&self, comparison: &Comparison) -> String {
        let [title, legend] =
            [heading::title(comparison), self.legend.join("; ")].map(|text| text::markdown(&text));
        let doubts: String =
            doubts(comparison).iter().map(|doubt| format!("- {}\n", text::markdown(doubt))).collect();
        format!("**{title}**\n\n{}\n\n{legend}\n\n{doubts}", self.table.markdown())
    }

    fn of(comparison: &Comparison) -> Option<Ladder> {
        let mut lines: Vec<Contribution<'_>> = Vec::new();
        let mut headings: Vec<(usize, String)> = Vec::new();
        for group in &comparison.groups {
            for ablated in ablations(group) {
                let sections = ablated.sections();
                if sections.is_empty() {
                    continue;
                }
                let place =
                    if group.heading.is_empty() { String::new() } else { format!("{}: ", group.heading) };
                headings.push((lines.len(), place + &ablated.ends(comparison)));
                for (title, section) in sections {
                    headings.push((lines.len(), title.to_owned()));
                    lines.extend(section);
                }
            }
        }
        if lines.is_empty() {
            return None;
        }
        let unit = columns::view(comparison).unit();
        let column = |title: &str, rank, cell: &dyn Fn(&Contribution<'_>) -> Option<String>| {
            let cells: Vec<Option<String>> = lines.iter().map(cell).collect();
            let is_known = cells.iter().any(Option::is_some);
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned())).collect();
            is_known.then(|| Column { title: title.to_owned(), cells, rank, ..Column::default() })
        };
        let columns = [
            column(unit.name, 0, &|line| line.bytes.map(|bytes| unit.show_change(bytes))),
            column("xmem", 3, &|line| line.memory.map(ratio)),
            column("xspeed", 1, &|line| match line.speed {
                Some(_) if line.is_level() => Some("=".to_owned()),
                speed => speed.map(|speed| ratio(speed.median)),
            }),
            column("+-%", 2, &|line| line.speed?.half_width().map(percent)),
            column("est xtime", 2, &|line| line.estimate.map(ratio)),
        ];
        let columns: Vec<Column> = columns.into_iter().flatten().collect();
        let table_line = |line: &Contribution<'_>| TableLine {
            mark: line.mark().to_owned(),
            name: line.key.clone(),
            note: line.note(comparison.basis),
        };
        let table_lines: Vec<TableLine> = lines.iter().map(table_line).collect();
        let has_mark = |mark: &str| table_lines.iter().any(|line| line.mark == mark);
        let has_column = |title: &str| columns.iter().any(|column| column.title == title);
        let is_oom = |line: &Contribution<'_>| line.rows.iter().any(|row| row.status == Status::Oom);
        let legend = [
            (true, "alone: this key only; last: this key after all others".to_owned()),
            (
                headings.iter().any(|(_, heading)| heading == PAIRS),
                "pairs: memory beyond the sum, ratios beyond the product, of both alone".to_owned(),
            ),
            (has_mark("~"), format!("~ speed uncertain by more than {}%, or disturbed", percent(NOISY))),
            (lines.iter().any(Contribution::is_level), "= no measurable difference".to_owned()),
            (
                comparison.basis == Basis::Measured && lines.iter().any(is_oom),
                "memory of rows marked OOM is predicted".to_owned(),
            ),
            (has_column("est xtime"), "est xtime: ratio of the estimated step times (roofline)".to_owned()),
        ];
        let legend = legend.into_iter().filter(|(occurs, _)| *occurs).map(|(_, text)| text).collect();
        let name = "key".to_owned();
        Some(Ladder {
            table: Table { name, lines: table_lines, columns, headings, ..Table::default() },
            legend,
        })
    }
}

/// Doubts about the measured speeds.
fn doubts(comparison: &Comparison) -> Vec<String> {
    match comparison.basis {
        Basis::Measured => doubts::sentences(comparison),
        Basis::Predicted => Vec::new(),
    }
}

impl Contribution<'_> {
    fn is_level(&self) -> bool {
        self.speed.is_some_and(|speed| speed.difference == Difference::None)
    }

    fn mark(&self) -> &'static str {
        let is_noisy = self.speed.and_then(|speed| speed.half_width()).is_some_and(|half| half > NOISY);
        let is_disturbed = self.speed.is_some() && self.rows.iter().any(|row| row.is_disturbed());
        match self.bytes {
            None => "-",
            Some(_) if is_noisy || is_disturbed => "~",
            Some(_) => "",
        }
    }

    /// Why figures are missing, and of what kind they are.
    fn note(&self, basis: Basis) -> String {
        // A row that ran out of memory has its predicted memory.
        let lacking = self.rows.iter().find(|row| row.memory.is_none() && row.status != Status::Ok);
        let lacking = lacking.and_then(|row| Some(format!("{} {}", row.label, columns::status(row)?)));
        let oom = self.rows.iter().find(|row| basis == Basis::Measured && row.status == Status::Oom);
        let oom = oom.map(|row| format!("{} OOM", row.label));
        let other = self.rows.iter().find(|row| !matches!(row.status, Status::Ok | Status::Oom));
        let other = other.and_then(|row| Some(format!("{} {}", row.label, columns::status(row)?)));
        let emulated = self.speed.is_some() && self.rows.iter().any(|row| row.row.emulated);
        let emulated = emulated.then(|| "emulated".to_owned());
        lacking.or(other).or(oom).into_iter().chain(emulated).collect::<Vec<_>>().join("; ")
    }
}

const PAIRS: &str = "pairs";

/// The ablations of a group, in the order of their first rows.
fn ablations(group: &TableGroup) -> Vec<Ablated<'_>> {
    let mut found: Vec<Ablated<'_>> = Vec::new();
    for entry in &group.entries {
        let label = &entry.row.strategy;
        let name = Label::of(label, &entry.row.axes).name;
        // Rows of several tables are told apart by the table's name: `lean/none (before)`.
        let of_table = name.strip_suffix(')').and_then(|name| name.rsplit_once(" ("));
        let name = of_table.map_or(name, |(name, _)| name);
        let Some((family, subset)) = AblationLabel::of(name) else { continue };
        let family = format!("{family}{}", &label[name.len()..]);
        let at = found.iter().position(|ablated| ablated.name == family).unwrap_or_else(|| {
            let all = group.entries.iter().find(|entry| entry.row.strategy == family);
            found.push(Ablated { name: family, units: Vec::new(), rows: Vec::new(), all });
            found.len() - 1
        });
        let Ablated { units, rows, .. } = &mut found[at];
        let of_row: &[&str] = match &subset {
            AblationLabel::Only(only) => only,
            AblationLabel::Without(unit) => std::slice::from_ref(unit),
        };
        units.extend(of_row.iter().filter(|unit| !units.contains(unit)).collect::<Vec<_>>());
        rows.push((subset, entry));
    }
    found
}

impl<'a> Ablated<'a> {
    fn without(&self, unit: &str) -> Option<&'a TableEntry> {
        let is_wanted =
            |subset: &AblationLabel<&str>| matches!(subset, AblationLabel::Without(one) if *one == unit);
        self.rows.iter().find(|(subset, _)| is_wanted(subset)).map(|(_, entry)| *entry)
    }

    fn only(&self, units: &[&str]) -> Option<&'a TableEntry> {
        let is_wanted = |subset: &AblationLabel<&str>| match subset {
            AblationLabel::Only(only) => {
                only.len() == units.len() && units.iter().all(|unit| only.contains(unit))
            }
            AblationLabel::Without(_) => false,
        };
        self.rows.iter().find(|(subset, _)| is_wanted(subset)).map(|(_, entry)| *entry)
    }

    /// `lean: 54.2 MiB, 12k tok/s without its keys; 12.1 MiB, 20k tok/s with all`
    fn ends(&self, comparison: &Comparison) -> String {
        let view = columns::view(comparison);
        let figures = |entry: Option<&TableEntry>| {
            let memory = entry.and_then(|entry| entry.memory);
            let memory = memory.map(|bytes| format!("{} {}", view.unit().show(bytes), view.unit().name));
            let speed = entry.and_then(|entry| entry.speed.median());
            let speed = speed.map(|speed| format!("{} {}", rate(speed), comparison.speed_unit));
            let estimate = entry.and_then(|entry| entry.row.estimated_step_ms);
            let estimate = estimate.filter(|_| comparison.basis == Basis::Predicted);
            let estimate = estimate.map(|ms| format!("est {} ms", milliseconds(ms)));
            let is_oom = entry.is_some_and(|entry| entry.status == Status::Oom);
            let oom = is_oom.then(|| "OOM".to_owned());
            let known: Vec<String> = [memory, speed, estimate, oom].into_iter().flatten().collect();
            if known.is_empty() { "no result".to_owned() } else { known.join(", ") }
        };
        let (none, all) = (figures(self.only(&[])), figures(self.all));
        format!("{}: {none} without its keys; {all} with all", self.name)
    }

    /// The sections with rows.
    fn sections(&self) -> Vec<(&'static str, Vec<Contribution<'a>>)> {
        let none = self.only(&[]);
        let alone = self.units.iter().filter_map(|unit| Some(step(unit, none?, self.only(&[unit])?)));
        let last = self.units.iter().filter_map(|unit| Some(step(unit, self.without(unit)?, self.all?)));
        let pairs = self.units.iter().enumerate().flat_map(|(at, one)| {
            self.units[at + 1..].iter().filter_map(move |other| {
                let alone = [self.only(&[one])?, self.only(&[other])?];
                Some(interaction(format!("{one} + {other}"), none?, alone, self.only(&[one, other])?))
            })
        });
        let sections =
            [("alone", alone.collect::<Vec<_>>()), ("last", last.collect()), (PAIRS, pairs.collect())];
        sections.into_iter().filter(|(_, lines)| !lines.is_empty()).collect()
    }
}

/// From one row to another that has one more key.
fn step<'a>(unit: &str, from: &'a TableEntry, to: &'a TableEntry) -> Contribution<'a> {
    let [before, after] = [from, to].map(bytes);
    let quotient = |(after, before): (f64, f64)| (before > 0.0).then_some(after / before);
    Contribution {
        key: unit.to_owned(),
        rows: vec![from, to],
        bytes: after.zip(before).map(|(after, before)| after - before),
        memory: after.zip(before).and_then(|(after, before)| quotient((after as f64, before as f64))),
        speed: to.speed_over(from),
        estimate: to.estimated_pace().zip(from.estimated_pace()).and_then(quotient),
    }
}

/// The change by two keys together, beyond the changes by each of them alone.
fn interaction<'a>(
    key: String,
    none: &'a TableEntry,
    [one, other]: [&'a TableEntry; 2],
    both: &'a TableEntry,
) -> Contribution<'a> {
    let rows = [none, one, other, both];
    let all = |figures: [Option<f64>; 4]| {
        let [none, one, other, both] = figures;
        let (none, one, other, both) = (none?, one?, other?, both?);
        (one > 0.0 && other > 0.0).then_some(both / one * (none / other))
    };
    let change = || Some(bytes(both)? - bytes(one)? - bytes(other)? + bytes(none)?);
    Contribution {
        key,
        bytes: change(),
        memory: all(rows.map(|row| row.memory.map(|bytes| bytes as f64))),
        speed: both.speed.products(&none.speed).over(&one.speed.products(&other.speed)),
        estimate: all(rows.map(TableEntry::estimated_pace)),
        rows: rows.to_vec(),
    }
}

fn bytes(entry: &TableEntry) -> Option<i128> {
    entry.memory.map(i128::from)
}
