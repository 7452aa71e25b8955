//! Plans for several machines side by side: a group of columns for each machine.

use super::{NONE, TableColumn, TableView, mark, view};
use crate::entry::TableEntry;
use crate::numbers::Unit;
use crate::styled::{Styled, Tone};
use crate::text::{cut_middle, markdown, one_line, pack, pad_left, pad_right, width, wrap};
use crate::{Comparison, WIDTH, heading};

/// Spaces between columns, and between groups of columns.
const GAP: usize = 2;
const GROUP_GAP: usize = 3;
/// Names are shortened to this width if a block then holds more machines.
const LEAST_NAME: usize = 16;

/// The plans of one experiment for several machines.
pub(crate) struct SideBySide<'a> {
    /// The machines, with the experiment's comparison on each.
    machines: Vec<(&'a str, TableView<'a>)>,
    first: &'a Comparison,
    columns: Vec<&'static TableColumn>,
    /// The first machine's rows: the heading of their group, and the label.
    rows: Vec<(&'a str, &'a TableEntry)>,
}

/// A machine's columns, with the titles.
struct Group {
    name: String,
    titles: Vec<String>,
    /// By row.
    cells: Vec<Vec<String>>,
    fits: usize,
    predicted: usize,
}

impl<'a> SideBySide<'a> {
    /// `None` without machines.
    pub(crate) fn new(
        comparisons: &'a [(&'a str, Comparison)],
        columns: Vec<&'static TableColumn>,
    ) -> Option<SideBySide<'a>> {
        let (_, first) = comparisons.first()?;
        let sizes = comparisons.iter().flat_map(|(_, comparison)| comparison.entries());
        let sizes = sizes.flat_map(|entry| [entry.memory, entry.row.torch_peak_bytes]);
        let unit = Unit::for_sizes(sizes.flatten());
        let machines =
            comparisons.iter().map(|(name, comparison)| (*name, TableView { unit, ..view(comparison) }));
        let groups = first.groups.iter();
        let rows = groups.flat_map(|group| group.entries.iter().map(|entry| (group.heading.as_str(), entry)));
        Some(SideBySide { machines: machines.collect(), first, columns, rows: rows.collect() })
    }

    /// The columns of a machine. Its rows are those with the strategies and axis points of the first machine's.
    fn group(&self, name: &str, view: &TableView<'_>) -> Group {
        let entry_like = |wanted: &TableEntry| {
            let is_same = |entry: &&&TableEntry| {
                (&entry.row.strategy, &entry.row.axes) == (&wanted.row.strategy, &wanted.row.axes)
            };
            view.entries.iter().find(is_same).copied()
        };
        let entries: Vec<Option<&TableEntry>> =
            self.rows.iter().map(|(_, entry)| entry_like(entry)).collect();
        let marks: Vec<&str> =
            entries.iter().map(|entry| entry.map_or("-", |entry| self.mark(entry))).collect();
        let cell = |entry: Option<&TableEntry>, column: &TableColumn| {
            entry.and_then(|entry| (column.cell)(view, entry)).map_or(NONE.to_owned(), |cell| cell.text)
        };
        let cells = entries.iter().zip(&marks).map(|(entry, mark)| {
            let mut cells: Vec<String> = self.columns.iter().map(|column| cell(*entry, column)).collect();
            if let (Some(first), "x" | "r") = (cells.first_mut(), *mark) {
                *first = format!("{mark} {first}");
            }
            cells
        });
        Group {
            name: one_line(name),
            titles: self.columns.iter().map(|column| column.title(view)).collect(),
            cells: cells.collect(),
            fits: marks.iter().filter(|mark| ["", "r"].contains(mark)).count(),
            predicted: marks.iter().filter(|mark| **mark != "-").count(),
        }
    }

    /// `x` out of memory, `r` fits only by retrying, `-` not predicted; empty: it fits.
    fn mark(&self, entry: &TableEntry) -> &'static str {
        match entry.row.torch_fits.as_str() {
            _ if !self.is_of_torch() => {
                ["x", "r", "-"].into_iter().find(|known| mark(entry).contains(known)).unwrap_or("")
            }
            "yes" => "",
            "retry" => "r",
            "no" => "x",
            _ => "-",
        }
    }

    /// Whether the columns show PyTorch's memory beside this program's.
    fn is_of_torch(&self) -> bool {
        self.columns.iter().any(|column| column.name.starts_with("torch"))
    }

    fn groups(&self) -> Vec<Group> {
        self.machines.iter().map(|(name, view)| self.group(name, view)).collect()
    }

    /// Blocks of as many machines as `most` columns hold, with heading and legend.
    pub(crate) fn table(&self, most: usize) -> Styled {
        let groups = self.groups();
        let labels: Vec<String> = self.rows.iter().map(|(_, entry)| one_line(&entry.label)).collect();
        let name = labels.iter().map(|label| width(label)).max().unwrap_or(0).max(self.name_title().len());
        let mut out = Styled::default();
        let sentences = most.min(WIDTH);
        out.push(Tone::Title, &heading::of_machines(self.first, groups.len(), sentences).join("\n"));
        let mut rest = groups.as_slice();
        while !rest.is_empty() {
            let room = most.saturating_sub(2 + name.min(LEAST_NAME));
            let count = fitting(rest, room).max(1);
            let (block, others) = rest.split_at(count);
            let used: usize = block.iter().map(|group| GROUP_GAP + group.width()).sum();
            self.block(&mut out, block, &labels, name.min(most.saturating_sub(2 + used).max(LEAST_NAME)));
            out.blank();
            rest = others;
        }
        out.push(Tone::Legend, &pack(&self.legend(&groups), "; ", sentences).join("\n"));
        out.blank();
        let told = |group: &Group| wrap(&group.sentence(self.is_of_torch()), sentences);
        groups.iter().for_each(|group| out.push(Tone::Plain, &told(group)));
        out
    }

    fn block(&self, out: &mut Styled, groups: &[Group], labels: &[String], name: usize) {
        let line = |label: &str, cells: &dyn Fn(&Group) -> String| {
            let cells: String = groups.iter().map(|group| " ".repeat(GROUP_GAP) + &cells(group)).collect();
            format!("  {}{cells}", pad_right(&cut_middle(label, name), name)).trim_end().to_owned()
        };
        out.push(Tone::Title, &line("", &|group| pad_right(&group.name, group.width())));
        out.push(Tone::Title, &line(self.name_title(), &|group| group.aligned(&group.titles)));
        let mut last = "";
        for (row, (heading, _)) in self.rows.iter().enumerate() {
            if *heading != last {
                out.push(Tone::Title, &one_line(heading));
                last = heading;
            }
            out.push(Tone::Plain, &line(&labels[row], &|group| group.aligned(&group.cells[row])));
        }
    }

    fn name_title(&self) -> &'static str {
        if self.first.by.is_some() { "point" } else { "strategy" }
    }

    fn legend(&self, groups: &[Group]) -> Vec<String> {
        let occurs = |mark: &str| {
            let starts = |cells: &Vec<String>| cells.first().is_some_and(|cell| cell.starts_with(mark));
            groups.iter().any(|group| group.cells.iter().any(starts))
        };
        let program = if self.is_of_torch() { " in PyTorch" } else { "" };
        let marks = [
            ("x ", format!("x out of memory{program}")),
            ("r ", "r fits only because PyTorch returns cached memory and tries again".to_owned()),
            (NONE, "- not predicted".to_owned()),
        ];
        let view = self.machines.first().map(|(_, view)| view);
        let unit = view.map(|view| format!("sizes in {}", view.unit.name));
        let explained = self.columns.iter().filter_map(|column| column.explained(view?));
        marks
            .into_iter()
            .filter(|(mark, _)| occurs(mark))
            .map(|(_, text)| text)
            .chain(unit)
            .chain(explained)
            .collect()
    }

    /// The same as GitHub Markdown.
    pub(crate) fn markdown(&self) -> String {
        let groups = self.groups();
        let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let titles = groups
            .iter()
            .flat_map(|group| group.titles.iter().map(|title| markdown(&format!("{} {title}", group.name))));
        let mut lines = vec![
            format!(
                "**{}**\n",
                markdown(&heading::of_machines(self.first, groups.len(), usize::MAX).join(" "))
            ),
            row([self.name_title().to_owned()].into_iter().chain(titles).collect()),
            format!("|---|{}", "---:|".repeat(groups.len() * self.columns.len())),
        ];
        for (at, (heading, entry)) in self.rows.iter().enumerate() {
            let label =
                if heading.is_empty() { entry.label.clone() } else { format!("{heading}, {}", entry.label) };
            let cells = groups.iter().flat_map(|group| group.cells[at].iter().map(|cell| markdown(cell)));
            lines.push(row([markdown(&one_line(&label))].into_iter().chain(cells).collect()));
        }
        lines.push(format!("\n{}\n", markdown(&self.legend(&groups).join("; "))));
        lines.extend(
            groups.iter().map(|group| format!("- {}", markdown(&group.sentence(self.is_of_torch())))),
        );
        lines.join("\n") + "\n"
    }
}

/// The number of groups that fit into this width.
fn fitting(groups: &[Group], room: usize) -> usize {
    let mut used = 0;
    let fits = |group: &&Group| {
        used += GROUP_GAP + group.width();
        used <= room
    };
    groups.iter().take_while(fits).count()
}

impl Group {
    fn width(&self) -> usize {
        let columns: usize = self.widths().iter().sum();
        width(&self.name).max(columns + GAP * self.titles.len().saturating_sub(1))
    }

    fn widths(&self) -> Vec<usize> {
        let widest = |at: usize| self.cells.iter().map(|cells| width(&cells[at])).max().unwrap_or(0);
        self.titles.iter().enumerate().map(|(at, title)| width(title).max(widest(at))).collect()
    }

    /// Cells under the group's titles.
    fn aligned(&self, cells: &[String]) -> String {
        let cells = cells.iter().zip(self.widths()).map(|(cell, width)| pad_left(cell, width));
        pad_left(&cells.collect::<Vec<_>>().join(&" ".repeat(GAP)), self.width())
    }

    fn sentence(&self, is_of_torch: bool) -> String {
        let Group { name, fits, predicted, .. } = self;
        match (fits, predicted) {
            (_, 0) if is_of_torch => {
                format!(
                    "{name}: PyTorch's memory is not predicted; `--columns memory,fits` shows this program's."
                )
            }
            (_, 0) => format!("{name}: no run is predicted."),
            (0, 1) => format!("{name}: the run does not fit."),
            (1, 1) => format!("{name}: the run fits."),
            (0, _) => format!("{name}: none of {predicted} runs fits."),
            (all, _) if all == predicted => format!("{name}: all {predicted} runs fit."),
            _ => format!("{name}: {fits} of {predicted} runs fit."),
        }
    }
}
