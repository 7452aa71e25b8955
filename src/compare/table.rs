//! A table of rows in groups, as lines of a fixed width or as Markdown.

use super::text::{cut, cut_middle, markdown, pad_left, pad_right, width};

/// What separates columns.
const GAP: usize = 2;
/// What names and notes are not shortened below, if numbers can be left out instead.
const LEAST_NAME: usize = 16;
const LEAST_NOTE: usize = 20;

/// Numbers, one per row.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: String,
    pub(super) cells: Vec<String>,
    /// Where there is no room, the highest goes first; 0 stays.
    pub(super) rank: u8,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) mark: String,
    pub(super) name: String,
    pub(super) note: String,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Title of the names.
    pub(super) name: String,
    pub(super) note: String,
    pub(super) lines: Vec<Line>,
    pub(super) columns: Vec<Column>,
    /// Headings, each before the line with this number.
    pub(super) headings: Vec<(usize, String)>,
}

impl Table {
    /// The lines, each at most `most` wide, and the titles of the columns that found no room.
    pub(super) fn lines(&self, most: usize) -> (Vec<String>, Vec<String>) {
        let widest =
            |cells: &mut dyn Iterator<Item = &String>| cells.map(|cell| width(cell)).max().unwrap_or(0);
        let mark = widest(&mut self.lines.iter().map(|line| &line.mark)).max(1);
        let name = widest(&mut self.lines.iter().map(|line| &line.name)).max(width(&self.name));
        // The title needs its room too, even over notes that are shorter or none at all.
        let note = widest(&mut self.lines.iter().map(|line| &line.note)).max(width(&self.note));
        let widths: Vec<usize> =
            self.columns.iter().map(|c| widest(&mut c.cells.iter()).max(width(&c.title))).collect();

        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let mut dropped = Vec::new();
        let room = |kept: &[usize]| {
            most.saturating_sub(mark + 1 + kept.iter().map(|at| GAP + widths[*at]).sum::<usize>())
        };
        let least = name.min(LEAST_NAME) + if note == 0 { 0 } else { GAP + note.min(LEAST_NOTE) };
        while room(&kept) < least {
            let last = kept.iter().copied().max_by_key(|at| self.columns[*at].rank);
            let Some(last) = last.filter(|at| self.columns[*at].rank > 0) else { break };
            kept.retain(|at| *at != last);
            dropped.push(self.columns[last].title.clone());
        }
        let room = room(&kept);
        let for_note = if note == 0 { 0 } else { GAP + note };
        // Names before notes, as long as a note can still say something.
        let name = name.min(room.saturating_sub(for_note.min(GAP + LEAST_NOTE)).max(name.min(LEAST_NAME)));
        let note = room.saturating_sub(name + GAP);

        let line = |mark_text: &str, name_text: &str, number: &dyn Fn(usize) -> String, note_text: &str| {
            let mut line =
                format!("{} {}", pad_left(mark_text, mark), pad_right(&cut_middle(name_text, name), name));
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
        let mut lines = vec![line("", &self.name, &|at| self.columns[at].title.clone(), &self.note)];
        for (row, content) in self.lines.iter().enumerate() {
            lines.extend(
                self.headings.iter().filter(|(at, _)| *at == row).map(|(_, text)| cut_middle(text, most)),
            );
            let number = |at: usize| self.columns[at].cells[row].clone();
            lines.push(line(&content.mark, &content.name, &number, &content.note));
        }
        (lines, dropped)
    }

    /// A Markdown table with everything in it; headings become rows.
    pub(super) fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let titles = self.columns.iter().map(|column| markdown(&column.title));
        let mut lines = vec![
            row([String::new(), self.name.clone()]
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
            let numbers = self.columns.iter().map(|column| column.cells[at].clone());
            lines.push(row(cells.into_iter().chain(numbers).chain([markdown(&content.note)]).collect()));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_over_no_notes_has_room() {
        let line = |name: &str, note: &str| Line { mark: "*".into(), name: name.into(), note: note.into() };
        for note in ["", "x", "ab"] {
            let table = Table {
                name: "strategy".into(),
                note: "did".into(),
                lines: vec![line(&"n".repeat(60), note)],
                ..Table::default()
            };
            for most in 25..70 {
                let (lines, _) = table.lines(most);
                assert!(lines.iter().all(|line| width(line) <= most), "{most}: {lines:?}");
                assert!(lines[0].ends_with("did"), "{most}: {lines:?}");
            }
        }
    }
}
