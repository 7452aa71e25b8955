//! Layout of a table with grouped rows, as lines of limited width or as Markdown.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::columns::Cell;
use super::numbers::Unit;
use super::styled::Tone;
use super::text::{cut, cut_middle, markdown, pad_left, pad_right, width};

/// Spaces between columns.
const GAP: usize = 2;
/// Names and notes are not shortened below these widths as long as numeric columns can be dropped instead.
const LEAST_NAME: usize = 16;
const LEAST_NOTE: usize = 24;

/// A numeric column: one cell per row.
#[derive(Debug, Default)]
pub(super) struct Column {
    pub(super) title: String,
    pub(super) cells: Vec<String>,
    /// The cells' exact numbers, by which rows are ordered.
    pub(super) values: Vec<Option<f64>>,
    /// If the table is too wide, columns of the highest rank are dropped first; 0 is never dropped.
    pub(super) rank: u8,
}

impl Column {
    pub(super) fn cell(&self, row: usize) -> Cell {
        Cell { text: self.cells[row].clone(), value: self.values.get(row).copied().flatten() }
    }
}

#[derive(Debug)]
pub(super) struct TableLine {
    pub(super) mark: String,
    pub(super) name: String,
    pub(super) note: String,
}

impl TableLine {
    fn tone(&self) -> Tone {
        match self.mark.chars().last() {
            Some('*') => Tone::Good,
            Some('~' | '!' | 'r') => Tone::Doubtful,
            Some('x' | '-') => Tone::Bad,
            _ => Tone::Plain,
        }
    }
}

/// The column of what other columns leave of a sum: parts without a column join it.
#[derive(Debug)]
pub(super) struct Remainder {
    /// Its index.
    pub(super) at: usize,
    /// Its own bytes, by row.
    pub(super) own: Vec<Option<u64>>,
    /// The columns of the other parts, with their bytes by row.
    pub(super) parts: Vec<(usize, Vec<Option<u64>>)>,
    pub(super) unit: Unit,
}

impl Remainder {
    /// Its cells if these columns are shown.
    fn cells(&self, kept: &[usize]) -> Vec<Option<String>> {
        let joining = || self.parts.iter().filter(|(at, _)| !kept.contains(at));
        let sum = |(row, own): (usize, &Option<u64>)| {
            let joined = joining().filter_map(|(_, bytes)| bytes[row]);
            own.iter().copied().chain(joined).reduce(u64::saturating_add).map(|bytes| self.unit.show(bytes))
        };
        self.own.iter().enumerate().map(sum).collect()
    }

    fn has_part(&self, kept: &[usize]) -> bool {
        self.parts.iter().any(|(at, _)| kept.contains(at))
    }
}

/// The lines of a table, and its columns without room.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) lines: Vec<(Tone, String)>,
    /// Titles of the dropped columns.
    pub(super) dropped: Vec<String>,
    /// Titles of the columns that joined the remainder.
    pub(super) joined: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Title of the column of names.
    pub(super) name: String,
    /// Title of the column of notes.
    pub(super) note: String,
    pub(super) lines: Vec<TableLine>,
    pub(super) columns: Vec<Column>,
    /// Headings, each with the index of the line that follows.
    pub(super) headings: Vec<(usize, String)>,
    pub(super) remainder: Option<Remainder>,
}

impl Table {
    /// The table in lines of at most `most` columns.
    pub(super) fn layout(&self, most: usize) -> Layout {
        let widest =
            |cells: &mut dyn Iterator<Item = &String>| cells.map(|cell| width(cell)).max().unwrap_or(0);
        let mark = widest(&mut self.lines.iter().map(|line| &line.mark)).max(1);
        let name = widest(&mut self.lines.iter().map(|line| &line.name)).max(width(&self.name));
        // The title may be wider than all notes.
        let note = widest(&mut self.lines.iter().map(|line| &line.note)).max(width(&self.note));
        let mut widths: Vec<usize> =
            self.columns.iter().map(|c| widest(&mut c.cells.iter()).max(width(&c.title))).collect();

        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let mut dropped: Vec<usize> = Vec::new();
        let room = |kept: &[usize], widths: &[usize]| {
            most.saturating_sub(mark + 1 + kept.iter().map(|at| GAP + widths[*at]).sum::<usize>())
        };
        let for_note = if note == 0 { 0 } else { GAP + note.min(LEAST_NOTE) };
        let has_room = room(&kept, &widths) >= name + for_note;
        let least_name = if has_room { name.min(LEAST_NAME) } else { self.distinct_width(name) };
        let least = least_name + for_note;
        while room(&kept, &widths) < least {
            let last = kept.iter().copied().max_by_key(|at| self.columns[*at].rank);
            let Some(last) = last.filter(|at| self.columns[*at].rank > 0) else { break };
            kept.retain(|at| *at != last);
            dropped.push(last);
            if let Some(remainder) = &self.remainder {
                if kept.contains(&remainder.at) && !remainder.has_part(&kept) {
                    kept.retain(|at| *at != remainder.at);
                    dropped.push(remainder.at);
                }
                let cells = remainder.cells(&kept);
                let cells = cells.iter().flatten().chain([&self.columns[remainder.at].title]);
                widths[remainder.at] = widest(&mut cells.into_iter());
            }
        }
        let remainder = self.remainder.as_ref().filter(|remainder| kept.contains(&remainder.at));
        let is_joined = |at: &usize| {
            remainder.is_some_and(|remainder| remainder.parts.iter().any(|(part, _)| part == at))
        };
        let (joined, dropped): (Vec<usize>, Vec<usize>) = dropped.into_iter().partition(is_joined);
        let rest = remainder.map(|remainder| (remainder.at, remainder.cells(&kept)));
        let room = room(&kept, &widths);
        // Names have priority over notes, except for the notes' minimum width.
        let for_name = room.saturating_sub(for_note).max(least_name.min(room));
        let name = name.min(for_name.max(LEAST_NAME));
        let note = room.saturating_sub(name + GAP);
        let names = self.short_names(name);

        let line = |mark_text: &str, name_text: &str, number: &dyn Fn(usize) -> String, note_text: &str| {
            let mut line = format!("{} {}", pad_left(mark_text, mark), pad_right(name_text, name));
            for at in &kept {
                line.push_str(&" ".repeat(GAP));
                line.push_str(&pad_left(&number(*at), widths[*at]));
            }
            if !note_text.is_empty() {
                line.push_str(&" ".repeat(GAP));
                line.push_str(&cut(note_text, note));
            }
            line.trim_end().to_string()
        };
        let titles =
            line("", &cut_middle(&self.name, name), &|at| self.columns[at].title.clone(), &self.note);
        let mut lines = vec![(Tone::Title, titles)];
        for (row, content) in self.lines.iter().enumerate() {
            let first = self.headings.partition_point(|(at, _)| *at < row);
            let headings = self.headings[first..].iter().take_while(|(at, _)| *at == row);
            lines.extend(headings.map(|(_, text)| (Tone::Title, cut_middle(text, most))));
            let number = |at: usize| match &rest {
                Some((rest, cells)) if *rest == at && cells[row].is_some() => {
                    cells[row].clone().unwrap_or_default()
                }
                _ => self.columns[at].cells[row].clone(),
            };
            lines.push((content.tone(), line(&content.mark, &names[row], &number, &content.note)));
        }
        let titles =
            |indices: Vec<usize>| indices.into_iter().map(|at| self.columns[at].title.clone()).collect();
        Layout { lines, dropped: titles(dropped), joined: titles(joined) }
    }

    /// The groups of lines between headings.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.headings.iter().map(|(at, _)| *at).chain([self.lines.len()]);
        let begins = std::iter::once(0).chain(self.headings.iter().map(|(at, _)| *at));
        begins.zip(ends).map(|(begin, end)| begin..end)
    }

    /// The smallest width to which names can be shortened and stay distinct within their groups; else `widest`.
    fn distinct_width(&self, widest: usize) -> usize {
        let distinct = |width: usize| {
            self.groups().all(|group| {
                let names: HashSet<&str> = self.lines[group].iter().map(|line| line.name.as_str()).collect();
                let cut: HashSet<String> = names.iter().map(|name| cut_middle(name, width)).collect();
                cut.len() == names.len()
            })
        };
        (LEAST_NAME..widest).find(|width| distinct(*width)).unwrap_or(widest)
    }

    /// Names shortened to `most` columns. Names of a group that become equal end in `#1`, `#2`, ...
    fn short_names(&self, most: usize) -> Vec<String> {
        let mut names: Vec<String> = self.lines.iter().map(|line| cut_middle(&line.name, most)).collect();
        for group in self.groups() {
            let whole = |at: usize| self.lines[at].name.as_str();
            let mut wholes: HashMap<String, HashSet<&str>> = HashMap::new();
            for at in group.clone() {
                wholes.entry(names[at].clone()).or_default().insert(whole(at));
            }
            let alike = group.filter(|at| wholes[&names[*at]].len() > 1).collect::<Vec<_>>();
            for (number, at) in alike.into_iter().enumerate() {
                let number = format!("#{}", number + 1);
                names[at] = cut(whole(at), most.saturating_sub(number.len())) + &number;
            }
        }
        names
    }

    /// The complete table as Markdown; headings become rows.
    pub(super) fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let titles = self.columns.iter().map(|column| markdown(&column.title));
        let mut lines = vec![
            row([String::new(), markdown(&self.name)]
                .into_iter()
                .chain(titles)
                .chain([self.note.clone()])
                .collect()),
            format!("|---|---|{}---|", "---:|".repeat(self.columns.len())),
        ];
        for (at, content) in self.lines.iter().enumerate() {
            for (_, heading) in self.headings.iter().filter(|(before, _)| *before == at) {
                let empty = std::iter::repeat_n(String::new(), self.columns.len() + 1);
                let cells = [String::new(), format!("**{}**", markdown(heading))];
                lines.push(row(cells.into_iter().chain(empty).collect()));
            }
            let cells = [markdown(&content.mark), markdown(&content.name)];
            let numbers = self.columns.iter().map(|column| markdown(&column.cells[at]));
            lines.push(row(cells.into_iter().chain(numbers).chain([markdown(&content.note)]).collect()));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_title_fits_over_short_notes() {
        let line =
            |name: &str, note: &str| TableLine { mark: "*".into(), name: name.into(), note: note.into() };
        for note in ["", "x", "ab"] {
            let table = Table {
                name: "strategy".into(),
                note: "effects".into(),
                lines: vec![line(&"n".repeat(60), note)],
                ..Table::default()
            };
            for most in 29..70 {
                let Layout { lines, .. } = table.layout(most);
                assert!(lines.iter().all(|(_, line)| width(line) <= most), "{most}: {lines:?}");
                assert!(lines[0].1.ends_with("effects"), "{most}: {lines:?}");
            }
        }
    }

    /// Parts without a column join the remainder, so that each row adds up; a remainder of everything has no column.
    #[test]
    fn parts_add_up_at_any_width() {
        let gib = |numbers: &[u64]| numbers.iter().map(|number| Some(number << 30)).collect::<Vec<_>>();
        let unit = Unit::for_sizes([1 << 30].into_iter());
        let parts = [("act", 2, gib(&[40, 4])), ("param", 3, gib(&[3, 30])), ("opt", 4, gib(&[6, 60]))];
        let own = gib(&[1, 1]);
        let cells = |bytes: &[Option<u64>]| bytes.iter().map(|bytes| unit.show(bytes.unwrap())).collect();
        let column = |title: &str, rank, bytes: &[Option<u64>]| Column {
            title: title.into(),
            rank,
            cells: cells(bytes),
            ..Column::default()
        };
        let mut columns: Vec<Column> =
            parts.iter().map(|(title, rank, bytes)| column(title, *rank, bytes)).collect();
        columns.push(column("other", 1, &own));
        let parts = parts.into_iter().enumerate().map(|(at, (_, _, bytes))| (at, bytes)).collect();
        let line = |name: &str| TableLine { mark: " ".into(), name: name.into(), note: String::new() };
        let table = Table {
            name: "strategy".into(),
            lines: vec![line("a"), line("b")],
            columns,
            remainder: Some(Remainder { at: 3, own, parts, unit }),
            ..Table::default()
        };
        let mut seen = HashSet::new();
        for most in 10..50 {
            let Layout { lines, dropped, joined } = table.layout(most);
            seen.insert(joined.len());
            assert!(dropped.is_empty() || lines[0].1.trim() == "strategy", "{most}: {lines:?} {dropped:?}");
            for (line, sum) in lines[1..].iter().zip([50.0, 95.0]) {
                let cells = line.1.split_whitespace().skip(1).map(|cell| cell.parse::<f64>().unwrap());
                let found: f64 = cells.sum();
                assert!(found == sum || dropped.len() == 4, "{most}: {line:?}");
            }
        }
        assert_eq!(seen, HashSet::from([0, 1, 2]));
    }
}
