//! Text in a fixed number of columns.

use base::brief;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width in terminal columns.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Replaces control characters and line breaks: names and messages come from files.
pub(super) fn one_line(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(visible).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Shortened to `columns` at the end.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_string();
    }
    format!("{}…", head(text, columns.saturating_sub(1)).trim_end())
}

/// Shortened to `columns` in the middle, since names differ at their ends.
pub fn cut_middle(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_string();
    }
    let rest = columns.saturating_sub(1);
    let reversed: String = text.chars().rev().collect();
    let tail: String = head(&reversed, rest / 2).chars().rev().collect();
    format!("{}…{tail}", head(text, rest - rest / 2))
}

fn head(text: &str, columns: usize) -> String {
    let mut used = 0;
    text.chars()
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= columns
        })
        .collect()
}

pub(super) fn pad_left(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

pub(super) fn pad_right(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// Wraps between words, indents continuation lines and replaces control characters.
pub fn wrap(text: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in one_line(text).split_whitespace() {
        let word = cut_middle(word, columns - 2);
        let line = lines.last_mut().expect("there is always a line to write on");
        if line.trim().is_empty() {
            line.push_str(&word);
        } else if width(line) + 1 + width(&word) <= columns {
            line.push(' ');
            line.push_str(&word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines.join("\n")
}

/// Joins pieces into as few lines as possible, wrapped between pieces, and within pieces that are wider than a line.
pub(super) fn pack(pieces: &[String], separator: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        let indent = if lines.is_empty() { "" } else { "  " };
        match lines.last_mut() {
            Some(line) if width(line) + width(separator) + width(piece) <= columns => {
                line.push_str(separator);
                line.push_str(piece);
            }
            _ if width(piece) + indent.len() > columns => {
                let wrapped = wrap(&brief::line(piece), columns - indent.len());
                let indented = wrapped.lines().map(|line| line.trim_start()).enumerate();
                lines.extend(
                    indented.map(|(at, line)| format!("{}{line}", if at == 0 { indent } else { "  " })),
                );
            }
            _ => lines.push(format!("{indent}{piece}")),
        }
    }
    lines
}

/// Escapes text for GitHub Markdown, so that nothing in names is HTML. Pairs of backticks stay code.
pub(super) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        if ticks > 0 {
            let (run, after) = rest.split_at(ticks);
            let end = code_end(after, ticks);
            match end {
                // A `|` ends a table cell even inside code.
                Some(end) => out.push_str(&format!("{run}{}{run}", after[..end].replace('|', "\\|"))),
                None => out.push_str(&"\\`".repeat(ticks)),
            }
            rest = &after[end.map_or(0, |end| end + ticks)..];
            continue;
        }
        if matches!(c, '\\' | '*' | '_' | '<' | '>' | '~' | '[' | ']' | '#' | '|' | '&') {
            out.push('\\');
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// The end of code that begins with this number of backticks: before the next run of as many.
fn code_end(text: &str, ticks: usize) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text[at..].find('`')?;
        let run = text[at..].len() - text[at..].trim_start_matches('`').len();
        if run == ticks {
            return Some(at);
        }
        at += run;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_middle_keeps_both_ends() {
        assert_eq!(cut_middle("bf16-recompute/accumulate=4", 14), "bf16-re…late=4");
        assert_eq!(cut("a long story", 7), "a long…");
        assert_eq!(cut("界界界", 5), "界界…");
        assert_eq!(width(&cut_middle("界界界界", 6)), 5);
    }

    #[test]
    fn wrap_breaks_between_words_and_removes_controls() {
        assert_eq!(wrap("one two three", 8), "one two\n  three");
        assert_eq!(one_line(" a\n\tb\u{7} c "), "a b c");
        assert_eq!(wrap("a\u{1b}[2J", 8), "a [2J");
    }

    #[test]
    fn markdown_holds_no_html() {
        for (text, escaped) in [
            ("a|b <i>*_", r"a\|b \<i\>\*\_"),
            ("use `--repeats 6|7` & <b>", r"use `--repeats 6\|7` \& \<b\>"),
            // Backticks without an equal run after them are not code.
            ("a`<img src=x>", r"a\`\<img src=x\>"),
            ("``<img>` <b>", r"\`\`\<img\>\` \<b\>"),
            ("`a``<b>` <i>", r"`a``<b>` \<i\>"),
        ] {
            assert_eq!(markdown(text), escaped, "{text}");
        }
    }
}
