use std::fs;
use std::io;
use std::ops::Range;

use super::*;
use crate::ids::Ids;
use crate::slices::ReadTokens;
use crate::{Batch, ErrorKey, Order, Part, Sample, Split, TrainingStep};
use ops::TensorType;

/// The repository's folder.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Text in memory.
#[derive(Debug)]
struct Text(Vec<u8>);

impl ReadTokens for Text {
    fn read(&self, first: usize, mut tokens: Ids<'_>) -> Result<(), DataError> {
        tokens.put(self.0[first..].iter().map(|byte| u32::from(*byte)));
        Ok(())
    }
}

/// Text in which every byte is its own position.
fn counting(bytes: u8, split: f64) -> RowSlices<Text> {
    let text: Vec<u8> = (0..bytes).collect();
    let splits = Splits::of(text.len(), split, UNITS).unwrap();
    let contents = RowSummary { digest: String::new(), splits, below: BYTES };
    RowSlices { row: Text(text), contents }
}

fn given(key: &'static str, count: usize) -> KeyedCount {
    KeyedCount { key, count }
}

fn sample(context: usize) -> Sample {
    let part = |name| Part { name, ty: TensorType::i32(&[context]), below: Some(given("vocabulary", 300)) };
    let parts = vec![part("tokens"), part("targets")];
    Sample { parts, length: Some(given("context", context)), tokens: Some(context) }
}

/// The tokens and targets of a filled batch.
fn filled(samples: usize, context: usize, fill: impl FnOnce(&mut Batch)) -> (Vec<i32>, Vec<i32>) {
    let mut batch = Batch::new(&sample(context).parts, samples);
    fill(&mut batch);
    let numbers = |name| {
        let (numbers, _) = batch.part(name).unwrap().bytes.as_chunks();
        numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    };
    (numbers("tokens"), numbers("targets"))
}

fn training(data: &RowSlices<Text>, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
    filled((samples.end - samples.start) as usize, context, |batch| {
        data.fill_training(
            &TrainingStep { seed: 3, number: 5, samples: 8, order: Order::Drawn },
            samples,
            batch,
        )
        .unwrap();
    })
}

fn evaluation(data: &RowSlices<Text>, samples: Range<u64>, context: usize) -> (Vec<i32>, Vec<i32>) {
    filled((samples.end - samples.start) as usize, context, |batch| {
        data.fill_evaluation(8, samples, batch).unwrap();
    })
}

#[test]
fn targets_are_the_next_tokens() {
    let data = counting(100, 0.9);
    let (tokens, targets) = training(&data, 0..50, 8);
    assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
    assert!(targets.iter().all(|target| (1..90).contains(target)));
}

/// Micro-batches, ranks and workers share a step.
#[test]
fn sample_ranges_match_the_whole_step() {
    let data = counting(200, 0.6);
    for draw in [training, evaluation] {
        let whole = draw(&data, 0..8, 16);
        for range in [0..1, 0..3, 2..5, 3..8, 7..8] {
            let numbers = range.start as usize * 16..range.end as usize * 16;
            let (tokens, targets) = draw(&data, range, 16);
            assert_eq!(tokens, whole.0[numbers.clone()]);
            assert_eq!(targets, whole.1[numbers]);
        }
    }
}

#[test]
fn shortest_text_has_one_sample() {
    let data = counting(9, 1.0);
    assert!(data.contents.splits.check(&sample(8), false).is_ok());
    assert_eq!(training(&data, 0..1, 8).0, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(matches!(
        data.contents.splits.check(&sample(9), false),
        Err(DataError::TooShort { split: Split::Training, found: 9, least: 10, .. })
    ));
}

#[test]
fn every_start_is_drawn() {
    let data = counting(12, 1.0);
    let (tokens, _) = training(&data, 0..200, 8);
    let firsts: std::collections::BTreeSet<i32> = tokens.chunks_exact(8).map(|row| row[0]).collect();
    assert_eq!(firsts, (0..4).collect());
}

#[test]
fn evaluation_windows_follow_each_other_and_wrap() {
    let data = counting(100, 0.8);
    let batch = |index: u64| {
        let (tokens, targets) = evaluation(&data, 2 * index..2 * index + 2, 6);
        assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
        (tokens[0], tokens[6])
    };
    // 20 bytes, 19 with a target: three windows of six.
    assert_eq!(batch(0), (80, 86));
    assert_eq!(batch(1), (92, 80));
    assert_eq!(batch(2), (86, 92));
    assert_eq!(batch(3), batch(0));
}

#[test]
fn short_evaluation_split_suggests_the_largest_split() {
    let splits = Splits::of(1000, 0.95, UNITS).unwrap();
    let error = splits.check(&sample(64), true).unwrap_err();
    assert!(
        matches!(
            error,
            DataError::TooShort { split: Split::Evaluation, found: 50, largest_split: Some(0.93), .. }
        ),
        "{error:?}"
    );
    assert_eq!(error.blame(), ErrorKey::Data("split"));
    assert!(splits.check(&sample(64), false).is_ok());
    assert!(Splits::of(1000, 0.93, UNITS).unwrap().check(&sample(64), true).is_ok());

    let error = Splits::of(1000, 0.9, UNITS).unwrap().check(&sample(600), true).unwrap_err();
    assert!(matches!(error, DataError::TooShort { split: Split::Evaluation, largest_split: None, .. }));
    assert_eq!(error.blame(), ErrorKey::Key("context"));
}

#[test]
fn split_must_be_above_zero_and_at_most_one() {
    let whole = Splits::of(10, 1.0, UNITS).unwrap();
    assert_eq!((whole.training, whole.evaluation), (10, 0));
    for split in [0.0, -0.5, 1.5, f64::NAN] {
        assert!(matches!(Splits::of(10, split, UNITS), Err(DataError::BadSplit { .. })));
    }
}

#[test]
fn inspected_and_opened_text_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.txt"), "world").unwrap();
    fs::write(folder.path().join("a.txt"), "hello ").unwrap();
    let paths = [folder.path().join("*.txt")];
    let read = |paths: &[PathBuf]| plain(paths, 0.5).files(&mut DigestCache::default()).unwrap();
    let data = read(&paths);
    let mut text = [0; 11];
    data.row.read(0, Ids::U8(&mut text)).unwrap();
    assert_eq!(&text, b"hello world");
    let summary = plain(&paths, 0.5).summarise(&mut DigestCache::default()).unwrap();
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
    let data = plain(&[folder.path().join("*")], 0.9).files(&mut DigestCache::default()).unwrap();
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

#[test]
fn bytes_are_below_256_before_and_after_reading() {
    let (set, data) = (plain(&[], 0.9), counting(100, 0.9));
    let mut sample = sample(8);
    for (vocabulary, suits) in [(256, true), (255, false)] {
        sample.parts[1].below = Some(given("vocabulary", vocabulary));
        for checked in [set.check_known(&sample), set.check(data.contents(), &sample, true)] {
            let expected = "vocabulary = 255 is less than the 256 targets of data.text";
            assert_eq!(
                checked.map_err(|error| error.to_string()).err(),
                (!suits).then(|| expected.to_owned())
            );
        }
    }
}

/// A part that is missing, and parts of another type or shape.
#[test]
fn mismatched_parts_are_reported_with_both_types() {
    let (set, data) = (plain(&[], 0.9), counting(100, 0.9));
    let check =
        |parts: Vec<Part>| set.check(data.contents(), &Sample { parts, length: None, tokens: None }, true);
    assert!(check(sample(8).parts).is_ok());

    let tokens = sample(8).parts[0];
    let image = Part { name: "image", ty: TensorType::f32(&[28, 28]), below: None };
    let error = check(vec![tokens, image]).unwrap_err();
    let expected = "the model needs `image`, which data.text does not provide: its samples have `tokens` and \
                    `targets`";
    assert_eq!((error.to_string().as_str(), error.blame()), (expected, ErrorKey::DataSet));

    let floats = Part { ty: TensorType::f32(&[8]), ..tokens };
    let error = check(vec![floats]).unwrap_err();
    let expected = "the model needs `tokens` as f32[8], but data.text provides it as i32[8]";
    assert_eq!((error.to_string().as_str(), error.blame()), (expected, ErrorKey::DataSet));

    let square = Part { ty: TensorType::i32(&[4, 4]), ..tokens };
    assert!(matches!(check(vec![square]), Err(DataError::OtherType { .. })));
    let long = Part { ty: TensorType::i32(&[64]), ..tokens };
    let error = check(vec![long]).unwrap_err();
    let expected = "the evaluation split has 10 bytes; a sample needs at least 65";
    assert_eq!((error.to_string().as_str(), error.blame()), (expected, ErrorKey::DataSet));
    assert_eq!(error.help(), "use more text");
}

/// A set whose tokens are bytes.
fn plain(paths: &[PathBuf], split: f64) -> TextSet {
    TextSet {
        paths: paths.to_vec(),
        encoding: Encoding::Bytes,
        jsonl: None,
        documents: Documents::Joined,
        split,
    }
}

/// Texts encoded by Hugging Face's Python library (tests/reference/tokenizer/make.py).
#[derive(serde::Deserialize)]
struct Reference {
    texts: Vec<String>,
    special: Vec<Vec<i32>>,
    plain: Vec<Vec<i32>>,
}

impl Reference {
    fn read() -> Reference {
        serde_json::from_slice(&fs::read(Reference::folder().join("encoded.json")).unwrap()).unwrap()
    }

    fn folder() -> PathBuf {
        Path::new(ROOT).join("tests/reference/tokenizer")
    }

    fn tokenizer(special: bool, end: Option<&str>) -> Encoding {
        let (file, end) = (Reference::folder().join("tokenizer.json"), end.map(str::to_owned));
        Encoding::Tokenizer(TokenizerFile { file, special, end })
    }
}

/// A temporary folder with text files and a cache.
struct TestFolder {
    folder: tempfile::TempDir,
    digests: DigestCache,
}

impl TestFolder {
    fn with(files: &[(&str, &[u8])]) -> TestFolder {
        let folder = TestFolder { folder: tempfile::tempdir().unwrap(), digests: DigestCache::default() };
        fs::create_dir(folder.folder.path().join("texts")).unwrap();
        for (name, contents) in files {
            fs::write(folder.text(name), contents).unwrap();
        }
        folder
    }

    fn text(&self, name: &str) -> PathBuf {
        self.folder.path().join("texts").join(name)
    }

    fn set(&self, encoding: Encoding, jsonl: Option<&str>) -> TextSet {
        let paths = vec![self.text("*")];
        TextSet { paths, encoding, jsonl: jsonl.map(str::to_owned), documents: Documents::Joined, split: 1.0 }
    }

    /// All tokens of a set.
    fn row(&mut self, set: &TextSet) -> Result<Vec<i32>, DataError> {
        let cache = self.folder.path().join("cache");
        let data =
            set.joined(set.encoded_in(&cache, &mut self.digests, encoder::in_thread).map_err(first)?)?;
        let mut tokens = vec![[0; 4]; data.contents.splits.training];
        data.row.read(0, Ids::I32(&mut tokens)).unwrap();
        let tokens: Vec<i32> = tokens.into_iter().map(i32::from_ne_bytes).collect();
        let largest = tokens.iter().copied().max().unwrap_or(0) as usize;
        assert_eq!(data.contents.below, given("data.text.tokens", largest + 1));
        Ok(tokens)
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn cached(&self) -> usize {
        fs::read_dir(self.cache()).map_or(0, Iterator::count)
    }
}

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

/// Fails if text is encoded.
fn not_again() -> io::Result<encoder::Connection> {
    Err(io::Error::other("encoded again"))
}

#[test]
fn text_is_encoded_once() {
    let mut folder = TestFolder::with(&[("a.txt", b"one sheep"), ("b.txt", b"two sheep")]);
    let set = |folder: &TestFolder| folder.set(Reference::tokenizer(true, None), None);
    let row = folder.row(&set(&folder)).unwrap();
    assert_eq!(folder.cached(), 1);
    assert!(set(&folder).encoded_in(&folder.cache(), &mut folder.digests, not_again).is_ok());

    // Everything that determines the tokens changes the digest.
    let other = |folder: &TestFolder, encoding| folder.set(encoding, None);
    folder.row(&other(&folder, Reference::tokenizer(false, None))).unwrap();
    folder.row(&other(&folder, Reference::tokenizer(true, Some("<end>")))).unwrap();
    assert_eq!(folder.cached(), 3);
    fs::write(folder.text("b.txt"), "other sheep").unwrap();
    let changed = folder.row(&set(&folder)).unwrap();
    assert_ne!(changed, row);
    assert_eq!(folder.cached(), 4);
}

/// The only file of a cache.
fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// Damages the cache file at a path.
type Damage = fn(&Path);

/// Ways to damage a file of encoded text.
const DAMAGES: [(&str, Damage); 16] = [
    ("a token", |file| edit(file, |bytes| bytes[0] ^= 1)),
    ("tokens in another order", |file| edit(file, |bytes| bytes[..8].rotate_left(4))),
    ("the largest token", |file| edit(file, |bytes| *bytes.iter_mut().rev().nth(145 + 7).unwrap() ^= 1)),
    ("the last document", |file| {
        edit(file, |bytes| {
            let counts = bytes.len() - 144 - 24;
            bytes.drain(counts - 8..counts);
            bytes[counts] -= 1;
        })
    }),
    ("the mark", |file| edit(file, |bytes| *bytes.last_mut().unwrap() = b' ')),
    ("its end", |file| edit(file, |bytes| bytes.truncate(bytes.len() - 1))),
    ("its beginning", |file| edit(file, |bytes| drop(bytes.drain(..4)))),
    ("everything", |file| edit(file, Vec::clear)),
    ("zeros", |file| edit(file, |bytes| bytes.fill(0))),
    ("a longer file", |file| edit(file, |bytes| bytes.push(0))),
    ("another text", |file| {
        let other = file.with_file_name("other");
        fs::rename(&other, file).unwrap();
    }),
    ("no rights", |file| {
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    }),
    ("rights for others", |file| {
        edit(file, |bytes| bytes[0] ^= 1);
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    }),
    ("a folder", |file| {
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
        fs::write(file.join("file"), "x").unwrap();
    }),
    ("a broken link", |file| {
        fs::remove_file(file).unwrap();
        std::os::unix::fs::symlink("nowhere", file).unwrap();
    }),
    ("a pipe", |file| {
        fs::remove_file(file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
    }),
];

fn edit(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

#[test]
fn damaged_cache_files_are_made_anew() {
    let mut folder = TestFolder::with(&[("a.txt", b"one sheep"), ("b.txt", b"two sheep and more")]);
    let set = folder.set(Reference::tokenizer(true, None), None);
    let row = folder.row(&set).unwrap();
    let file = only_file(&folder.cache());
    let good = fs::read(&file).unwrap();
    // The same text with another source: as many tokens, in another order.
    let other = TestFolder::with(&[("a.txt", b"two sheep and more"), ("b.txt", b"one sheep")]);
    let mut other_digests = DigestCache::default();
    set_in(&other).encoded_in(&other.cache(), &mut other_digests, encoder::in_thread).unwrap();
    for (damage, apply) in DAMAGES {
        fs::copy(only_file(&other.cache()), file.with_file_name("other")).unwrap();
        apply(&file);
        let _ = fs::remove_file(file.with_file_name("other"));
        assert_eq!(folder.row(&set).unwrap(), row, "{damage}");
        assert_eq!(fs::read(only_file(&folder.cache())).unwrap(), good, "{damage}");
    }
}

fn set_in(folder: &TestFolder) -> TextSet {
    folder.set(Reference::tokenizer(true, None), None)
}

/// A cache that is removed while its text is in use, and files that killed processes leave.
#[test]
fn cache_may_vanish_and_is_cleaned() {
    let mut folder = TestFolder::with(&[("a.txt", b"one sheep"), ("b.txt", b"two sheep")]);
    let set = set_in(&folder);
    let row = folder.row(&set).unwrap();
    let (found, digest, below) =
        set.encoded_in(&folder.cache(), &mut folder.digests, encoder::in_thread).unwrap();
    let data = set.joined((found, digest, below)).unwrap();
    fs::remove_dir_all(folder.cache()).unwrap();
    let mut tokens = vec![[0; 4]; row.len()];
    data.row.read(0, Ids::I32(&mut tokens)).unwrap();
    assert_eq!(tokens.into_iter().map(i32::from_ne_bytes).collect::<Vec<_>>(), row);

    assert_eq!(folder.row(&set).unwrap(), row);
    for half in 0..25 {
        fs::write(folder.cache().join(base::temporary::name(half)), "half").unwrap();
        fs::write(folder.cache().join(format!("empty {half}")), "").unwrap();
    }
    assert_eq!(folder.row(&set).unwrap(), row);
    assert_eq!(folder.cached(), 1);
    // Nothing is left of a text that cannot be encoded.
    fs::write(folder.text("b.txt"), b"\xff").unwrap();
    assert!(matches!(folder.row(&set), Err(DataError::NotText { .. })));
    assert_eq!(folder.cached(), 1);
}

#[test]
fn cache_file_that_changes_in_use_is_an_error() {
    let mut folder = TestFolder::with(&[("a.txt", b"one sheep"), ("b.txt", b"two sheep")]);
    let set = set_in(&folder);
    let encoded = set.encoded_in(&folder.cache(), &mut folder.digests, encoder::in_thread).unwrap();
    let data = set.joined(encoded).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    edit(&only_file(&folder.cache()), |bytes| bytes[..8].rotate_left(4));
    assert!(matches!(data.row.read(0, Ids::I32(&mut [[0; 4]])), Err(DataError::Changed { .. })));
}

/// Processes that encode the same text at once: one works, the others take its file.
#[test]
fn text_is_encoded_once_by_several() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let text = "sheep ".repeat(100_000);
    let folder = TestFolder::with(&[("a.txt", text.as_bytes())]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let launch = || {
                    STARTED.fetch_add(1, Ordering::Relaxed);
                    encoder::in_thread()
                };
                set_in(&folder).encoded_in(&folder.cache(), &mut DigestCache::default(), launch).unwrap();
            });
        }
    });
    assert_eq!((STARTED.load(Ordering::Relaxed), folder.cached()), (1, 1));
}

#[test]
fn encoding_errors_are_reported_with_help() {
    let mut folder = TestFolder::with(&[("a.txt", b"good"), ("b.txt", b"good \xff bad")]);
    let mut check = |encoding, text: &str, help: &str, blame| {
        let error = folder.row(&folder.set(encoding, None)).unwrap_err();
        let found = error.to_string().replace(&folder.folder.path().display().to_string(), "");
        let found = found.replace(ROOT, "");
        assert_eq!((found.as_str(), error.help().as_str(), error.blame()), (text, help, blame));
    };
    let paths = ErrorKey::Data("paths");
    let text = "/texts/b.txt is not UTF-8 text: invalid from byte 5 on";
    check(Reference::tokenizer(true, None), text, "tokens = \"bytes\" accepts any file", paths);
    let text = "/tests/reference/tokenizer/tokenizer.json has no token `<eos>`";
    let help = "use `<begin>` or `<end>`";
    check(Reference::tokenizer(true, Some("<eos>")), text, help, ErrorKey::Data("tokens.end"));
    let other = |file: PathBuf| Encoding::Tokenizer(TokenizerFile { file, special: true, end: None });
    let help =
        "use the tokenizer.json of a model; relative paths are relative to the file that contains them";
    let (text, blame) =
        ("cannot read /none: No such file or directory (os error 2)", ErrorKey::Data("tokens.file"));
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
            "each line must be an object such as {\"text\": \"...\"}; without jsonl, a file is one text",
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
    let mut folder = TestFolder::with(&[("a.jsonl", b"\n{\"text\": \"\"}\n")]);
    assert!(matches!(
        folder.row(&folder.set(Encoding::Bytes, Some("text"))),
        Err(DataError::Empty { files: 1 })
    ));
}
