//! What each key of an ablated strategy contributes: alone, as the last one, and together with another.

use super::columns;
use super::entry::TableEntry;
use super::group::TableGroup;
use super::numbers::{count, list, milliseconds, percent, rate, ratio};
use super::rounds::Rounds;
use super::styled::{Styled, Tone};
use super::table::{Column, Table, TableLine};
use super::{Basis, CompareError, Comparison, WIDTH, heading, text};
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
struct Contribution {
    key: String,
    bytes: Option<i128>,
    memory: Option<f64>,
    speed: Option<Ratio>,
    /// Ratio of the estimated step times.
    estimate: Option<f64>,
    note: String,
}

/// The ladders of all ablations, as the text of one table.
///
/// # Errors
/// No strategy is ablated.
pub(super) fn table(comparison: &Comparison) -> Result<Styled, CompareError> {
    let (table, legend) = build(comparison)?;
    let sentences_end = comparison.width.min(WIDTH);
    let mut out = Styled::default();
    out.push(Tone::Title, &heading::lines(comparison, sentences_end).join("\n"));
    let layout = table.layout(comparison.width);
    out.lines.extend(layout.lines);
    out.blank();
    let dropped = Some(layout.dropped).filter(|dropped| !dropped.is_empty());
    let dropped = dropped.map(|dropped| format!("not shown: {}", list(&dropped)));
    let legend: Vec<String> = legend.into_iter().chain(dropped).collect();
    out.push(Tone::Legend, &text::pack(&legend, "; ", sentences_end).join("\n"));
    Ok(out)
}

/// The same as GitHub Markdown.
///
/// # Errors
/// No strategy is ablated.
pub(super) fn markdown(comparison: &Comparison) -> Result<String, CompareError> {
    let (table, legend) = build(comparison)?;
    let [title, legend] = [heading::title(comparison), legend.join("; ")].map(|text| text::markdown(&text));
    Ok(format!("**{title}**\n\n{}\n\n{legend}\n", table.markdown()))
}

fn build(comparison: &Comparison) -> Result<(Table, Vec<String>), CompareError> {
    let mut lines: Vec<Contribution> = Vec::new();
    let mut headings: Vec<(usize, String)> = Vec::new();
    for group in &comparison.groups {
        for ablated in ablations(group) {
            let place = if group.heading.is_empty() { String::new() } else { format!("{}: ", group.heading) };
            headings.push((lines.len(), place + &ablated.ends(comparison)));
            for (title, section) in ablated.sections() {
                headings.push((lines.len(), title.to_owned()));
                lines.extend(section);
            }
            // A prediction has all figures of a run that does not fit, except whether it would.
            if comparison.basis == Basis::Predicted {
                lines.iter_mut().filter(|line| line.bytes.is_some()).for_each(|line| line.note.clear());
            }
        }
    }
    if lines.is_empty() {
        return Err(CompareError::NoAblation { experiment: comparison.experiment.clone() });
    }
    let unit = columns::view(comparison).unit();
    let column = |title: &str, rank, cell: &dyn Fn(&Contribution) -> Option<String>| {
        let cells: Vec<Option<String>> = lines.iter().map(cell).collect();
        let is_known = cells.iter().any(Option::is_some);
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned())).collect();
        is_known.then(|| Column { title: title.to_owned(), cells, rank, ..Column::default() })
    };
    let is_same = |line: &Contribution| line.speed.is_some_and(|speed| speed.difference == Difference::None);
    let columns: Vec<Column> = [
        column(unit.name, 0, &|line| line.bytes.map(|bytes| unit.show_change(bytes))),
        column("xmem", 3, &|line| line.memory.map(ratio)),
        column("xspeed", 1, &|line| match line.speed {
            Some(_) if is_same(line) => Some("=".to_owned()),
            speed => speed.map(|speed| ratio(speed.median)),
        }),
        column("+-%", 2, &|line| line.speed?.half_width().map(percent)),
        column("est xtime", 2, &|line| line.estimate.map(ratio)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let has = |title: &str| columns.iter().any(|column| column.title == title);
    let legend = [
        (true, "alone: added to none of the keys; last: added to all others"),
        (
            headings.iter().any(|(_, heading)| heading == PAIRS),
            "pairs: memory beyond the sum, ratios beyond the product, of both alone",
        ),
        (lines.iter().any(is_same), "= no measurable difference"),
        (has("est xtime"), "est xtime: ratio of the estimated step times (roofline)"),
    ];
    let legend = legend.into_iter().filter(|(occurs, _)| *occurs).map(|(_, text)| text.to_owned()).collect();
    let line = |Contribution { key, bytes, note, .. }: Contribution| TableLine {
        mark: if bytes.is_some() { String::new() } else { "-".to_owned() },
        name: key,
        note,
    };
    let lines = lines.into_iter().map(line).collect();
    Ok((Table { name: "key".to_owned(), lines, columns, headings, ..Table::default() }, legend))
}

const PAIRS: &str = "pairs";

/// The ablations of a group, in the order of their first rows.
fn ablations(group: &TableGroup) -> Vec<Ablated<'_>> {
    let mut found: Vec<Ablated<'_>> = Vec::new();
    for entry in &group.entries {
        let label = &entry.row.strategy;
        let name = Label::of(label, &entry.row.axes).name;
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
    fn row(&self, subset: &AblationLabel<&str>) -> Option<&'a TableEntry> {
        self.rows.iter().find(|(of_row, _)| of_row == subset).map(|(_, entry)| *entry)
    }

    fn only(&self, units: &[&'a str]) -> Option<&'a TableEntry> {
        self.row(&AblationLabel::Only(units.to_vec()))
    }

    /// `lean: 54.2 MiB, 12k tok/s without its 3 keys; 12.1 MiB, 20k tok/s with all`
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
        format!("{}: {none} without its {}; {all} with all", self.name, count(self.units.len(), "key"))
    }

    /// The sections with rows.
    fn sections(&self) -> Vec<(&'static str, Vec<Contribution>)> {
        let none = self.only(&[]);
        let alone = self.units.iter().filter_map(|unit| Some(step(unit, none, self.only(&[unit])?)));
        let last = self
            .units
            .iter()
            .filter_map(|unit| Some(step(unit, Some(self.row(&AblationLabel::Without(unit))?), self.all?)));
        let pairs = self.units.iter().enumerate().flat_map(|(at, one)| {
            self.units[at + 1..].iter().filter_map(move |other| {
                let both = self.only(&[one, other])?;
                Some(interaction(
                    format!("{one} + {other}"),
                    none,
                    [self.only(&[one]), self.only(&[other])],
                    both,
                ))
            })
        });
        let sections =
            [("alone", alone.collect::<Vec<_>>()), ("last", last.collect()), (PAIRS, pairs.collect())];
        sections.into_iter().filter(|(_, lines)| !lines.is_empty()).collect()
    }
}

/// From one row to another that has one more key.
fn step(unit: &str, from: Option<&TableEntry>, to: &TableEntry) -> Contribution {
    let [before, after] = [from.and_then(bytes), bytes(to)];
    let quotient = |(after, before): (f64, f64)| (before > 0.0).then_some(after / before);
    Contribution {
        key: unit.to_owned(),
        bytes: after.zip(before).map(|(after, before)| after - before),
        memory: after.zip(before).and_then(|(after, before)| quotient((after as f64, before as f64))),
        speed: from.and_then(|from| to.speed_over(from)),
        estimate: to.estimated_pace().zip(from.and_then(TableEntry::estimated_pace)).and_then(quotient),
        note: note(from.into_iter().chain([to])),
    }
}

/// The change by two keys together, beyond the changes by each of them alone.
fn interaction(
    key: String,
    none: Option<&TableEntry>,
    alone: [Option<&TableEntry>; 2],
    both: &TableEntry,
) -> Contribution {
    let figures = || Some((none?, alone[0]?, alone[1]?));
    let memory = figures().and_then(|(none, one, other)| Some([bytes(none)?, bytes(one)?, bytes(other)?]));
    let memory = memory.zip(bytes(both));
    let product = |[none, one, other]: [f64; 3], both: f64| {
        (one > 0.0 && other > 0.0).then_some(both / one * (none / other))
    };
    let speed = figures().and_then(|(none, one, other)| {
        let combined = |a: &TableEntry, b: &TableEntry| -> Rounds { a.speed.products(&b.speed) };
        combined(both, none).over(&combined(one, other))
    });
    let estimates = figures().and_then(|(none, one, other)| {
        let pace = TableEntry::estimated_pace;
        product([pace(none)?, pace(one)?, pace(other)?], pace(both)?)
    });
    Contribution {
        key,
        bytes: memory.map(|([none, one, other], both)| both - one - other + none),
        memory: memory.and_then(|(alone, both)| product(alone.map(|bytes| bytes as f64), both as f64)),
        speed,
        estimate: estimates,
        note: note(none.into_iter().chain(alone.into_iter().flatten()).chain([both])),
    }
}

fn bytes(entry: &TableEntry) -> Option<i128> {
    entry.memory.map(i128::from)
}

/// The first row without a result.
fn note<'e>(entries: impl Iterator<Item = &'e TableEntry>) -> String {
    let mut missing = entries.filter(|entry| !matches!(entry.status, Status::Ok));
    missing.next().map_or_else(String::new, |entry| {
        let status = format!("{:?}", entry.status).to_uppercase();
        let message =
            if entry.row.message.is_empty() { String::new() } else { format!(": {}", entry.row.message) };
        format!("{} {status}{message}", entry.label)
    })
}
