//! Text fitted to a width, line by line. Words are never cut, so that paths can be copied.

use std::ops::Range;

use unicode_width::UnicodeWidthChar;

/// The mark of advice in error messages.
const HELP: &str = "= help: ";

/// Wraps the lines that are wider than `width`. Continuation lines stand below the text of the line: after its last gap
/// of two spaces in the left half, after `= help: `, or after its indentation.
pub(super) fn fitted(text: &str, width: usize) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let mut out: Vec<String> = Vec::with_capacity(lines.len());
    // The part of the quoted line that the marks below it belong to.
    let mut shown = None;
    for (at, line) in lines.iter().enumerate() {
        out.push(match (excerpt_begin(line), shown.take()) {
            (Some(begin), Some(range)) => cropped(line, begin, range, false),
            (Some(begin), None) if line.chars().count() > width => {
                let range = marked_range(line, lines.get(at + 1).unwrap_or(&""), begin, width);
                shown = Some(range.clone());
                cropped(line, begin, range, true)
            }
            (Some(_), None) => (*line).to_owned(),
            (None, _) => fitted_line(line, width),
        });
    }
    out.join("\n")
}

/// The range of a quoted line's characters that has room, with the marked ones.
fn marked_range(line: &str, marks: &str, begin: usize, width: usize) -> Range<usize> {
    let (all, room) = (line.chars().count(), width.saturating_sub(begin));
    let is_mark = |c: char| c == '^' || c == '-';
    let first = marks.chars().skip(begin).position(is_mark).unwrap_or(0);
    let marked = marks.chars().filter(|c| is_mark(*c)).count();
    let start = match first + marked < room {
        true => begin,
        false => begin + first.saturating_sub(room.saturating_sub(marked + 1) / 2),
    };
    let start = start.min(all.saturating_sub(room)).max(begin);
    start..(start + room).min(all)
}

/// The characters of a range of a quoted line, or of the marks below it.
fn cropped(line: &str, begin: usize, range: Range<usize>, is_text: bool) -> String {
    let all: Vec<char> = line.chars().collect();
    let mut shown: Vec<char> = all.iter().skip(range.start).take(range.len()).copied().collect();
    if let (true, Some(last)) = (is_text && range.end < all.len(), shown.last_mut()) {
        *last = '…';
    }
    if let (true, Some(first)) = (is_text && range.start > begin, shown.first_mut()) {
        *first = '…';
    }
    all[..begin].iter().chain(&shown).collect()
}

fn fitted_line(line: &str, width: usize) -> String {
    if shown_width(line) <= width {
        return line.to_owned();
    }
    let begin = text_begin(line, width);
    let margin = match shown_width(&line[..begin]) {
        margin if line[..begin].trim().is_empty() && margin < 4 => margin + 2,
        margin => margin,
    };
    let mut out = line[..begin].to_owned();
    let (mut used, mut is_first) = (shown_width(&out), true);
    for word in line[begin..].split(' ') {
        let wide = shown_width(word);
        if !is_first && used + 1 + wide > width && used > margin {
            out.truncate(out.trim_end().len());
            out.push_str(&format!("\n{:margin$}", ""));
            used = margin;
        } else if !is_first {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += wide;
        is_first = false;
    }
    out
}

/// Where the text of a line begins, below which its continuation stands.
fn text_begin(line: &str, width: usize) -> usize {
    let indentation = line.len() - line.trim_start().len();
    if let Some(at) = line.find(HELP).filter(|at| line[..*at].trim().is_empty()) {
        return at + HELP.len();
    }
    let gaps = line[indentation..].match_indices("  ").map(|(at, _)| indentation + at);
    let ends = gaps.map(|gap| gap + line[gap..].len() - line[gap..].trim_start().len());
    ends.filter(|end| shown_width(&line[..*end]) <= width / 2).last().unwrap_or(indentation)
}

/// Where the text begins in a line that quotes a file beside its number, ` 12 | lr = 1`, or that marks it: `    | ^^`.
fn excerpt_begin(line: &str) -> Option<usize> {
    let rest = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    let text = rest.strip_prefix("| ")?;
    Some(line.len() - text.len())
}

/// The width in terminal columns, without escape sequences of colours.
fn shown_width(text: &str) -> usize {
    let mut is_escape = false;
    let mut width = 0;
    for c in text.chars() {
        match c {
            '\x1b' => is_escape = true,
            'm' if is_escape => is_escape = false,
            _ if is_escape => {}
            c => width += c.width().unwrap_or(0),
        }
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_lines_stand_below_the_text() {
        for (text, expected) in [
            ("one two three", "one two\n  three"),
            ("short", "short"),
            ("a  one two three", "a  one two\n   three"),
            ("      one two three", "      one\n      two\n      three"),
            (" = help: one two", " = help: one\n         two"),
            ("wrote /a/very/long/path.csv", "wrote\n  /a/very/long/path.csv"),
            ("\x1b[1mone\x1b[0m two three", "\x1b[1mone\x1b[0m two\n  three"),
        ] {
            assert_eq!(fitted(text, 11), expected, "{text}");
        }
    }

    #[test]
    fn quoted_lines_are_cropped_around_their_marks() {
        let text = |marks: &str| format!("  |\n1 | abcdefghijklmnopqrstuvwxyz\n  | {marks}\n");
        assert_eq!(fitted(&text("^^"), 14), "  |\n1 | abcdefghi…\n  | ^^\n");
        let far = format!("{}^^", " ".repeat(20));
        assert_eq!(fitted(&text(&far), 14), "  |\n1 | …rstuvwxyz\n  |     ^^\n");
        let last = format!("{}^", " ".repeat(25));
        assert_eq!(fitted(&text(&last), 14), "  |\n1 | …rstuvwxyz\n  |          ^\n");
        assert_eq!(fitted(&text("^"), 40), text("^"));
    }
}
