//! Notes about text files that a user may not expect, for `check`.

use super::examine::TextFile;
use super::{Encoding, TextSet};
use crate::files::SplitFiles;

/// Notes about the files of a set.
pub(super) fn of(set: &TextSet, files: &SplitFiles<TextFile>) -> Vec<String> {
    let sees = match set.encoding {
        Encoding::Bytes | Encoding::Ids => "CR and LF are two tokens",
        Encoding::Tokenizer(_) => "the tokenizer reads CR and LF",
    };
    let is_jsonl = |file: &TextFile| {
        let name = file.path.to_string_lossy();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
        set.records.is_none() && [".jsonl", ".ndjson"].iter().any(|end| name.ends_with(end))
    };
    [
        note(files, |file| file.text.is_compressed, "decompressed while reading"),
        note(files, |file| file.text.is_marked, "read behind a UTF-8 byte order mark, which is skipped"),
        note(
            files,
            |file| file.text.has_crlf && set.records.is_none(),
            &format!("read with CRLF line ends: {sees}"),
        ),
        note(files, is_jsonl, "read as plain text, JSON syntax included; for its texts only, set jsonl"),
    ]
    .into_iter()
    .flatten()
    .chain(files.notes(|file| &file.path))
    .collect()
}

/// "a.txt and 2 more are ..." about the files for which it holds.
fn note(files: &SplitFiles<TextFile>, holds: impl Fn(&TextFile) -> bool, what: &str) -> Option<String> {
    let mut found = files.all().filter(|file| holds(file));
    let first = found.next()?.path.display();
    Some(match found.count() {
        0 => format!("{first} is {what}"),
        more => format!("{first} and {more} more are {what}"),
    })
}
