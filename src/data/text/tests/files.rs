//! Reading files as one text: compressed, with byte order marks and line ends, and those that are not text.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

/// A set of plain files, opened as `TextSet::open` does.
fn opened(set: &TextSet) -> RowSlices<TokenFiles> {
    let versions = digest::versions(set.find().unwrap().all()).unwrap();
    set.row_of(&set.files(&mut DigestCache::default()).unwrap(), versions).unwrap()
}

fn summary(set: &TextSet) -> RowSummary {
    set.summary(&set.files(&mut DigestCache::default()).unwrap()).unwrap()
}

#[test]
fn inspected_and_opened_text_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.txt"), "world").unwrap();
    fs::write(folder.path().join("a.txt"), "hello ").unwrap();
    let paths = [folder.path().join("*.txt")];
    let read = |paths: &[PathBuf]| opened(&plain(paths, 0.5));
    let data = read(&paths);
    let mut text = [0; 11];
    data.row.read(0, Ids::U8(&mut text)).unwrap();
    assert_eq!(&text, b"hello world");
    let summary = summary(&plain(&paths, 0.5));
    assert_eq!(summary, data.contents);
    assert_eq!((summary.splits.training, summary.splits.evaluation), (5, 6));

    // The same files elsewhere are the same data; other contents are not.
    let copy = tempfile::tempdir().unwrap();
    fs::write(copy.path().join("x.txt"), "hello ").unwrap();
    fs::write(copy.path().join("y.txt"), "world").unwrap();
    assert_eq!(read(&[copy.path().join("*")]).contents, data.contents);
    fs::write(copy.path().join("y.txt"), "World").unwrap();
    assert_ne!(read(&[copy.path().join("*")]).contents.digest, data.contents.digest);
}

/// More files than are kept open: the others are reopened for each sample and checked for changes.
#[test]
fn many_files_are_one_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = |file: usize| folder.path().join(format!("{file:03}.txt"));
    let of = |file: usize| format!("{file} and ").repeat(1 + file % 3);
    (0..300).for_each(|file| fs::write(path(file), of(file)).unwrap());
    let data = opened(&plain(&[folder.path().join("*")], 0.9));
    let expected: String = (0..300).map(of).collect();
    for first in [0, 11, expected.len() - 40] {
        let mut text = vec![0; expected.len() - first];
        data.row.read(first, Ids::U8(&mut text)).unwrap();
        assert_eq!(text, expected.as_bytes()[first..]);
    }
    fs::write(path(299), "something else").unwrap();
    let read = data.row.read(expected.len() - 1, Ids::U8(&mut [0]));
    assert!(matches!(read, Err(DataError::Changed { path: found }) if found == path(299)));
}

#[test]
fn empty_files_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty");
    fs::write(&path, "").unwrap();
    let data = plain(&[path], 0.9);
    assert!(matches!(
        data.open(&Sample::NONE, &mut DigestCache::default()),
        Err(DataError::Empty { files: 1 })
    ));
    let error = data.inspect(&mut DigestCache::default()).unwrap_err();
    assert!(matches!(&error[..], [DataError::Empty { files: 1 }]));
}

pub(super) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Made by the `zstd` program: a frame of "one sheep\n" with its checksum, a skippable frame, and one of 50 times
/// "two sheep\n".
const ZSTANDARD: [&[u8]; 3] = [
    b"\x28\xb5\x2f\xfd\x24\x0aQ\0\0one sheep\nA\x0a\x01T",
    b"\x51\x2a\x4d\x18\x03\0\0\0abc",
    b"\x28\xb5\x2f\xfd\x64\xf4\0\x8d\0\0Ptwo sheep\n\x01\0\xe7U\x0b\x12\xe7Ct\xc9",
];

/// All members and frames, as if the files were decompressed.
#[test]
fn compressed_text_is_read_whole() {
    let text = ["one sheep\n".to_owned(), "two sheep\n".repeat(50)].concat();
    let members = [gzip(b"one sheep\n"), gzip("two sheep\n".repeat(50).as_bytes())].concat();
    for (name, file) in [("a.txt.gz", members), ("a.txt.zst", ZSTANDARD.concat())] {
        let mut folder = TestFolder::with(&[(name, &file)]);
        let set = folder.set(Encoding::Bytes, None);
        let row = folder.row(&set).unwrap();
        assert!(row.iter().copied().eq(text.bytes().map(i32::from)), "{name}");
        let contents = folder.inspect(&set).unwrap();
        let note = format!("{} is decompressed while reading", folder.text(name).display());
        assert_eq!(contents.notes(), [Note::new(note)]);
    }
    let lines = gzip(b"{\"text\": \"one\"}\r\n{\"text\": \"two\"}\r\n");
    let mut folder = TestFolder::with(&[("a.jsonl.gz", &lines)]);
    assert_eq!(folder.row(&folder.set(Encoding::Bytes, Some("text"))).unwrap().len(), 6);
}

#[test]
fn damaged_compressed_files_are_errors() {
    let long = gzip(&b"0123456789 sheep, not more and not less\n".repeat(50_000)[..]);
    let changed = |file: &[u8], at: usize| {
        let mut file = file.to_vec();
        file[at] ^= 0x55;
        file
    };
    let one = gzip(b"one sheep\n");
    let zstandard = ZSTANDARD.concat();
    for (file, problem) in [
        (long[..long.len() / 2].to_vec(), "is a damaged gzip file: its end is missing, after"),
        (
            changed(&one, one.len() - 6),
            "is a damaged gzip file: its checksum does not match, after 10 bytes of text",
        ),
        (changed(&long, long.len() / 2), "is a damaged gzip file: its "),
        (
            [one.as_slice(), b"rest of ten"].concat(),
            "is a damaged gzip file: it has an invalid header, after 10 bytes of text",
        ),
        (
            zstandard[..zstandard.len() - 9].to_vec(),
            "is a damaged Zstandard file: its end is missing, after 10 bytes",
        ),
        (
            changed(&zstandard, zstandard.len() - 1),
            "is a damaged Zstandard file: its checksum does not match, after 510",
        ),
        (
            changed(&zstandard, 12),
            "is a damaged Zstandard file: its checksum does not match, after 10 bytes of text",
        ),
        // A window of 128 GiB.
        (
            b"\x28\xb5\x2f\xfd\0\xd8\x01\0\0".to_vec(),
            "is a Zstandard file with a window of 128 GiB; the maximum is 100 MiB",
        ),
        // A block of the reserved type, and a frame with a dictionary.
        (
            b"\x28\xb5\x2f\xfd\x24\x0aW\0\0one sheep\n".to_vec(),
            "is a damaged Zstandard file: its data is invalid, after 0 bytes of text",
        ),
        (
            b"\x28\xb5\x2f\xfd\x21\x07\x0aQ\0\0one sheep\n".to_vec(),
            "is a Zstandard file that was compressed with a dictionary, which runner does not read",
        ),
        (gzip(&[&[b'a'; 257][..], b"ustar", &[b'a'; 250]].concat()), "contains a tar archive"),
    ] {
        assert_begins(&file, problem);
    }
}

/// A small file may expand to one that is larger than the limit.
#[test]
fn size_limit_of_documents_holds_for_decompressed_text() {
    let bomb = gzip(&vec![b'a'; 17 << 20]);
    let mut folder = TestFolder::with(&[("a.gz", &bomb)]);
    let error = folder.row(&folder.set(Reference::tokenizer(true, None), None)).unwrap_err().to_string();
    assert!(
        error.ends_with("is larger than 16.0 MiB when decompressed, the maximum of a document"),
        "{error}"
    );
    let bomb = gzip(&vec![b'a'; 65 << 20]);
    let mut folder = TestFolder::with(&[("a.gz", &bomb)]);
    let error = folder.row(&folder.set(Encoding::Bytes, Some("text"))).unwrap_err().to_string();
    assert!(error.ends_with("it is longer than 64.0 MiB"), "{error}");
}

fn assert_begins(file: &[u8], problem: &str) {
    let mut folder = TestFolder::with(&[("file", file)]);
    let error = folder.row(&folder.set(Encoding::Bytes, None)).unwrap_err();
    let found = error.to_string().replace(&format!("{} ", folder.text("file").display()), "");
    assert!(found.starts_with(problem), "{found} should begin with {problem}");
    assert!(!error.help().is_empty());
}

#[test]
fn binary_files_and_other_encodings_are_told_apart() {
    let utf16: Vec<u8> = "What is learnt from is this.".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (file, problem) in [
        (&b"text\0text"[..], "looks binary: byte 4 is 0"),
        (&utf16, "looks like UTF-16LE without a byte order mark: byte 1 is 0"),
        (
            b"one\nLa fin de l'\xe9t\xe9",
            "is not UTF-8 text: byte 16 in line 2 is 0xe9; it may be in Latin-1 or Windows-1252, where it is `\u{e9}`",
        ),
        (
            b"\xef\xbb\xbfone \x93sheep\x94",
            "is not UTF-8 text: byte 7 in line 1 is 0x93; it may be in Latin-1 or Windows-1252",
        ),
        (
            b"\x83V\x83t\x83g",
            "is not UTF-8 text: byte 0 in line 1 is 0x83; it may be in Shift_JIS, GB18030, EUC-KR or KOI8-R",
        ),
        (b"cut Zo\xc3", "is not UTF-8 text: byte 6 in line 1 is 0xc3; it ends within a character"),
        (b"\x01\x02\x03\xff\xfe\x04", "is not UTF-8 text: byte 3 in line 1 is 0xff; it looks binary"),
    ] {
        assert_begins(file, problem);
    }
    // Across the boundary of two reads: a character of two bytes, then an invalid byte.
    let long = ["a".repeat((1 << 20) - 1).as_bytes(), "\u{e9}".as_bytes(), b"b\xff"].concat();
    assert_begins(&long, "is not UTF-8 text: byte 1048578 in line 1 is 0xff");
}

/// Read in place behind the mark, and encoded.
#[test]
fn byte_order_mark_is_skipped_and_line_ends_are_noted() {
    let mut folder = TestFolder::with(&[("a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n"), ("b.txt", b"three\n")]);
    let set = folder.set(Encoding::Bytes, None);
    let data = opened(&set);
    let mut text = [0; 16];
    data.row.read(0, Ids::U8(&mut text)).unwrap();
    assert_eq!(&text, b"one\r\ntwo\r\nthree\n");
    assert_eq!(data.contents.splits.training, text.len());
    let file = folder.text("a.txt").display().to_string();
    let marked = format!("{file} is read behind a UTF-8 byte order mark, which is skipped");
    let ends = format!("{file} is read with CRLF line ends: CR and LF are two tokens");
    assert_eq!(data.contents.notes, [marked.clone(), ends].map(Note::new));
    let padded = TextSet { documents: Documents::Padded, ..set };
    assert_eq!(folder.row(&padded).unwrap().len(), text.len());

    let mut folder = TestFolder::with(&[("a.jsonl", b"\xef\xbb\xbf{\"text\": \"one\"}\r\n")]);
    let lines = folder.set(Encoding::Bytes, Some("text"));
    assert_eq!(folder.row(&lines).unwrap().len(), 3);
    let plain = folder.set(Encoding::Bytes, None);
    let notes = folder.inspect(&plain).unwrap().notes().to_vec();
    assert!(notes[2].text.ends_with("JSON syntax included; for its texts only, set jsonl"), "{notes:?}");
}

/// Plain, encoded, and separate documents.
#[test]
fn evaluation_files_are_a_split_of_their_own() {
    let files: [(&str, &[u8]); 3] = [("a.txt", b"one sheep"), ("b.txt", b"two"), ("v.val", b"three sheep")];
    let mut folder = TestFolder::with(&files);
    let paths = [folder.text("*.txt")];
    let set = TextSet { evaluate: vec![folder.text("v.val")], ..plain(&paths, 1.0) };
    let data = opened(&set);
    assert_eq!((data.contents.splits.training, data.contents.splits.evaluation), (12, 11));
    let file = |name| folder.text(name).display().to_string();
    let note = format!("training reads {} and 1 more; evaluation reads {}", file("a.txt"), file("v.val"));
    assert_eq!(data.contents.notes, [Note::new(note)]);
    let shared = TextSet { evaluate: vec![folder.text("b.txt")], ..plain(&paths, 1.0) };
    let note = format!("{} is both trained and evaluated on", file("b.txt"));
    assert_eq!(folder.inspect(&shared).unwrap().notes()[1], Note::warning(note));

    let documents = TextSet { documents: Documents::Packed, ..set };
    let cached = folder.encoded(&documents, encoder::in_thread).unwrap();
    let documents = documents.separated(&cached).unwrap();
    assert_eq!((documents.ends.as_slice(), documents.training), (&[9, 12, 23][..], 2));
    let mut text = vec![[0; 4]; 23];
    row(cached.encoded, cached.below).read(0, Ids::I32(&mut text)).unwrap();
    assert!(text.iter().map(|byte| byte[0]).eq(*b"one sheeptwothree sheep"));
    // Each split has its own file in the cache.
    assert_eq!(folder.cached(), 2);
    assert_ne!(documents.digest, folder.inspect(&plain(&paths, 1.0)).unwrap().digest());
}

#[test]
fn evaluation_files_that_copy_training_files_are_warned_of() {
    let mut folder =
        TestFolder::with(&[("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b""), ("v.val", b"")]);
    fs::write(folder.text("copy.val"), b"one").unwrap();
    std::os::unix::fs::symlink(folder.text("b.txt"), folder.text("link.val")).unwrap();
    let warned = |folder: &mut TestFolder, evaluate: &[&str]| {
        let evaluate = evaluate.iter().map(|name| folder.text(name)).collect();
        let set = TextSet { evaluate, ..plain(&[folder.text("*.txt")], 1.0) };
        let parent = format!("{}/", folder.folder.path().join("texts").display());
        let contents = folder.inspect(&set).unwrap();
        let warnings = contents.notes().iter().filter(|note| note.is_warning);
        warnings.map(|note| note.text.replace(&parent, "")).collect::<Vec<_>>()
    };
    let copy = "copy.val, for evaluation, has the same bytes as a.txt, for training";
    assert_eq!(warned(&mut folder, &["copy.val"]), [copy]);
    let link = "link.val, for evaluation, is the same file as b.txt, for training";
    // Empty files are no copies.
    assert_eq!(warned(&mut folder, &["link.val", "v.val"]), [link]);
    let all = format!("{copy}; 2 files for evaluation are trained on");
    assert_eq!(warned(&mut folder, &["link.val", "copy.val"]), [all]);
    fs::write(folder.text("v.val"), b"three").unwrap();
    assert!(warned(&mut folder, &["v.val"]).is_empty());
}
