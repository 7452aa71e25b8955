//! Reading files as one text.

use super::*;

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
