//! The cache of encoded texts: reuse, damage and concurrent processes.

use std::io;

use super::*;

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
    assert!(folder.encoded(&set(&folder), not_again).is_ok());

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
            let counts = bytes.len() - 144 - 32;
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
    let mut other = TestFolder::with(&[("a.txt", b"two sheep and more"), ("b.txt", b"one sheep")]);
    other.encoded(&set_in(&other), encoder::in_thread).unwrap();
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
    let data = set.joined(folder.encoded(&set, encoder::in_thread).unwrap()).unwrap();
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
    assert!(matches!(folder.row(&set), Err(DataError::Unfit { .. })));
    assert_eq!(folder.cached(), 1);
}

#[test]
fn cache_file_that_changes_in_use_is_an_error() {
    let mut folder = TestFolder::with(&[("a.txt", b"one sheep"), ("b.txt", b"two sheep")]);
    let set = set_in(&folder);
    let data = set.joined(folder.encoded(&set, encoder::in_thread).unwrap()).unwrap();
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
                let mut digests = DigestCache::default();
                let set = set_in(&folder);
                let files = set.files(&mut digests).unwrap();
                set.encoded_in(&folder.cache(), &files, &mut digests, launch).unwrap();
            });
        }
    });
    assert_eq!((STARTED.load(Ordering::Relaxed), folder.cached()), (1, 1));
}
