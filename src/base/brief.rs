//! Truncation of user text in messages. A name, a value or a path may be as long as a file.

use std::borrow::Cow;

/// The maximum line length of a message in characters, and the maximum number of lines.
const LONGEST_LINE: usize = 800;
const MOST_LINES: usize = 400;

/// The mark of omitted text.
const OMITTED: &str = " ... ";

/// Returns text as one line. Line breaks become `␊`; if it is too long, its middle is omitted, because the cause of an
/// error stands at the beginning or the end.
pub fn line(text: &str) -> Cow<'_, str> {
    match text.contains('\n') {
        true => Cow::Owned(cut(&text.replace('\n', "\u{240a}")).into_owned()),
        false => cut(text),
    }
}

/// Truncates each line, and omits the middle lines if there are too many.
pub fn lines(text: &str) -> Cow<'_, str> {
    // The byte length is an upper bound of the number of characters.
    if text.len() <= LONGEST_LINE {
        return Cow::Borrowed(text);
    }
    let all: Vec<&str> = text.split('\n').collect();
    let (first, last) = if all.len() > MOST_LINES {
        (&all[..MOST_LINES / 2], &all[all.len() - MOST_LINES / 2..])
    } else {
        (&all[..], &[][..])
    };
    let omitted = (!last.is_empty()).then_some(Cow::Borrowed(OMITTED));
    let shown = first.iter().map(|text| cut(text)).chain(omitted).chain(last.iter().map(|text| cut(text)));
    Cow::Owned(shown.collect::<Vec<_>>().join("\n"))
}

/// Whether it is a directional mark, embedding, override or isolate, which would let a name show another text.
pub fn is_directional(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn cut(line: &str) -> Cow<'_, str> {
    let ends = (LONGEST_LINE - OMITTED.len()) / 2;
    let offset = |(at, _)| at;
    if line.char_indices().nth(LONGEST_LINE).is_none() {
        return Cow::Borrowed(line);
    }
    let head = line.char_indices().nth(ends).map_or(line.len(), offset);
    let tail = line.char_indices().nth_back(ends - 1).map_or(0, offset);
    Cow::Owned([&line[..head], OMITTED, &line[tail..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_keep_both_ends() {
        let short = "`é` must be a number,\nnot \"x\"";
        assert!(matches!(lines(short), Cow::Borrowed(_)));
        assert_eq!(line(short), "`é` must be a number,␊not \"x\"");
        let long = format!("must be a number, not \"{}\"", "é".repeat(20 << 20));
        let cut = line(&long);
        assert_eq!(cut.chars().count(), LONGEST_LINE - 1);
        assert!(cut.starts_with("must be a number, not \"éé") && cut.ends_with("éé\""), "{cut}");
        assert_eq!(line(&"x".repeat(LONGEST_LINE)).len(), LONGEST_LINE);
        assert_eq!(lines(&format!("a\n{long}\nb")), format!("a\n{cut}\nb"));
    }

    #[test]
    fn long_messages_keep_first_and_last_lines() {
        let numbers: Vec<String> = (0..1_000_000).map(|number| number.to_string()).collect();
        let cut = lines(&numbers.join("\n")).into_owned();
        assert_eq!(cut.lines().count(), MOST_LINES + 1);
        assert!(cut.starts_with("0\n1\n") && cut.ends_with("\n999998\n999999"), "{cut}");
    }
}
