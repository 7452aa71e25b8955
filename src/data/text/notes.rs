//! Notes about text files that a user may not expect, for `check`.

use super::examine::TextFile;
use super::{Encoding, RecordFormat, TextSet};
use crate::Note;
use crate::documents::DocumentSet;
use crate::files::SplitFiles;

/// Notes about the files of a set.
pub(super) fn of(set: &TextSet, files: &SplitFiles<TextFile>) -> Vec<Note> {
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
    .map(Note::new)
    .chain(files.notes(|file| &file.path, |file| &file.digest))
    .collect()
}

/// How many documents are used and left out; `empty` is the number of documents without tokens.
pub(super) fn of_documents(set: &TextSet, documents: &DocumentSet, empty: usize) -> Note {
    let (short, masked) = documents.left_out();
    let hidden = match set.records {
        Some(RecordFormat::Chat { .. }) => "without an answer",
        _ => "whose targets are all masked",
    };
    let used = documents.ends.len() - short - masked;
    let reasons = [(empty, "without tokens"), (short, "of one token"), (masked, hidden)];
    let reasons: Vec<String> =
        reasons.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}")).collect();
    match reasons.is_empty() {
        true => Note::new(format!("documents: {used} used")),
        false => {
            let left_out = empty + short + masked;
            Note::warning(format!("documents: {used} used, {left_out} left out ({})", reasons.join(", ")))
        }
    }
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
