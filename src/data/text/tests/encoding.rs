//! Encoding with a tokenizer and reading JSON Lines, against reference tokens, and their errors.

use super::*;
use crate::ErrorKey;

#[test]
fn encoded_documents_match_reference_library() {
    let reference = Reference::read();
    let files: Vec<(String, &[u8])> =
        reference.texts.iter().enumerate().map(|(n, text)| (format!("{n}.txt"), text.as_bytes())).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let lines: Vec<String> = reference
        .texts
        .iter()
        .map(|text| serde_json::json!({ "id": 7, "body": text }).to_string() + "\n\n")
        .collect();
    let (mut files, mut lines) =
        (TestFolder::with(&files), TestFolder::with(&[("a.jsonl", lines.concat().as_bytes())]));
    let ended: Vec<i32> = reference.plain.iter().flat_map(|ids| ids.iter().copied().chain([1])).collect();
    for (special, end, expected) in [
        (true, None, reference.special.concat()),
        (false, None, reference.plain.concat()),
        (false, Some("<end>"), ended),
    ] {
        let encoding = || Reference::tokenizer(special, end);
        assert_eq!(files.row(&files.set(encoding(), None)).unwrap(), expected);
        assert_eq!(lines.row(&lines.set(encoding(), Some("body"))).unwrap(), expected);
    }
    // The bytes of fields as tokens.
    let bytes: Vec<i32> = reference.texts.concat().bytes().map(i32::from).collect();
    assert_eq!(lines.row(&lines.set(Encoding::Bytes, Some("body"))).unwrap(), bytes);
}

#[test]
fn encoding_errors_are_reported_with_help() {
    let mut folder = TestFolder::with(&[("a.txt", b"good"), ("b.txt", b"good as well")]);
    let mut check = |encoding, text: &str, help: &str, blame| {
        let error = folder.row(&folder.set(encoding, None)).unwrap_err();
        let found = error.to_string().replace(&folder.folder.path().display().to_string(), "");
        let found = found.replace(ROOT, "");
        assert_eq!((found.as_str(), error.help().as_str(), error.blame()), (text, help, blame));
    };
    let text = "/tests/reference/tokenizer/tokenizer.json has no token `<eos>`";
    let help = "use `<begin>` or `<end>`";
    check(Reference::tokenizer(true, Some("<eos>")), text, help, ErrorKey::Data("tokens.end"));
    let other = |file: PathBuf| Encoding::Tokenizer(TokenizerFile { file, special: true, end: None });
    let help =
        "use the tokenizer.json of a model; relative paths are relative to the file that contains them";
    let (text, blame) = ("cannot read /none: there is no such file", ErrorKey::Data("tokens.file"));
    check(other("/none".into()), text, help, blame);
    let file = Reference::folder().join("encoded.json");
    let text =
        "/tests/reference/tokenizer/encoded.json is not a tokenizer: expected `,` or `}` at line 2 column 8";
    check(other(file), text, help, blame);
}

#[test]
fn too_long_documents_are_not_encoded() {
    let text = "sheep ".repeat(3 << 20);
    let mut folder = TestFolder::with(&[("a.txt", text.as_bytes())]);
    let error = folder.row(&folder.set(Reference::tokenizer(true, None), None)).unwrap_err();
    let found = error.to_string().replace(&folder.text("a.txt").display().to_string(), "FILE");
    assert_eq!(found, "FILE is a document of 18.0 MiB; the maximum is 16.0 MiB");
    assert_eq!(error.blame(), ErrorKey::Data("paths"));
    // Bytes have no such limit.
    assert_eq!(folder.row(&folder.set(Encoding::Bytes, None)).unwrap().len(), text.len());
}

#[test]
fn invalid_json_lines_are_reported() {
    for (lines, problem, help) in [
        (
            "{\"text\": \"a\"}\n\n{\"text\": 5, \"body\": \"b\"}",
            "line 3 of FILE: its `text` is a number, not text",
            "its fields with text are `body`",
        ),
        (
            "{\"body\": \"b\", \"title\": \"c\"}",
            "line 1 of FILE: it has no field `text`",
            "its fields with text are `body`, `title`",
        ),
        ("{}", "line 1 of FILE: it has no field `text`", "use a field that has text in every line"),
        (
            "plain text",
            "line 1 of FILE: it is not a JSON object: expected value at line 1 column 1",
            "each line must be an object such as {\"text\": \"...\"}, or the file an array of such objects; without jsonl, a file is one text",
        ),
    ] {
        let mut folder = TestFolder::with(&[("a.jsonl", lines.as_bytes())]);
        let error = folder.row(&folder.set(Encoding::Bytes, Some("text"))).unwrap_err();
        let file = folder.text("a.jsonl").display().to_string();
        assert_eq!(
            (error.to_string().replace(&file, "FILE").as_str(), error.help().as_str()),
            (problem, help)
        );
        assert_eq!(
            (error.blame(), error.path()),
            (ErrorKey::Data("paths"), Some(folder.text("a.jsonl").as_path()))
        );
    }
}

#[test]
fn files_without_text_are_told_apart() {
    for (file, problem) in [
        ("", "the 1 file found is empty"),
        (" \n\n", "the 1 file found has no records"),
        ("[]", "the 1 file found has no records"),
        ("{\"text\": \"\"}\n", "the 1 file found has 1 document, all without tokens"),
        ("{\"text\": \"\"}\n{\"text\": \"\"}", "the 1 file found has 2 documents, all without tokens"),
    ] {
        let mut folder = TestFolder::with(&[("a.jsonl", file.as_bytes())]);
        let error = folder.row(&folder.set(Encoding::Bytes, Some("text"))).unwrap_err();
        assert_eq!(error.to_string(), problem, "{file:?}");
        assert_eq!(error.blame(), ErrorKey::Data("paths"));
    }
}
