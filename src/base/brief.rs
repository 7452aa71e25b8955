//! What somebody wrote, in a message: as much of it as one can bear. A name, a value or a path may be as long as a file.

use std::borrow::Cow;

/// The longest line of a message, in characters, and the most lines.
const LONGEST_LINE: usize = 800;
const MOST_LINES: usize = 400;

/// What stands for what is left out.
const LEFT_OUT: &str = " ... ";

/// On one line, whatever it holds, and with its middle left out where it is too long: what is wrong is said at the beginning
/// or at the end.
pub fn line(text: &str) -> Cow<'_, str> {
    match text.contains('\n') {
        true => Cow::Owned(cut(&text.replace('\n', "\u{240a}")).into_owned()),
        false => cut(text),
    }
}

/// Every line so, and the lines in the middle left out where there are too many.
pub fn lines(text: &str) -> Cow<'_, str> {
    // As many bytes as there are characters at the least.
    if text.len() <= LONGEST_LINE {
        return Cow::Borrowed(text);
    }
    let all: Vec<&str> = text.split('\n').collect();
    let (first, last) = if all.len() > MOST_LINES {
        (&all[..MOST_LINES / 2], &all[all.len() - MOST_LINES / 2..])
    } else {
        (&all[..], &[][..])
    };
    let left_out = (!last.is_empty()).then_some(Cow::Borrowed(LEFT_OUT));
    let shown = first.iter().map(|text| cut(text)).chain(left_out).chain(last.iter().map(|text| cut(text)));
    Cow::Owned(shown.collect::<Vec<_>>().join("\n"))
}

fn cut(line: &str) -> Cow<'_, str> {
    let ends = (LONGEST_LINE - LEFT_OUT.len()) / 2;
    let place = |(at, _)| at;
    if line.char_indices().nth(LONGEST_LINE).is_none() {
        return Cow::Borrowed(line);
    }
    let head = line.char_indices().nth(ends).map_or(line.len(), place);
    let tail = line.char_indices().nth_back(ends - 1).map_or(0, place);
    Cow::Owned([&line[..head], LEFT_OUT, &line[tail..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_what_is_too_long_stay() {
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
    fn a_message_has_a_first_and_a_last_line() {
        let numbers: Vec<String> = (0..1_000_000).map(|number| number.to_string()).collect();
        let cut = lines(&numbers.join("\n")).into_owned();
        assert_eq!(cut.lines().count(), MOST_LINES + 1);
        assert!(cut.starts_with("0\n1\n") && cut.ends_with("\n999998\n999999"), "{cut}");
    }
}
