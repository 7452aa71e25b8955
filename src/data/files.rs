//! Resolves paths and globs to a list of files.

use std::path::{Path, PathBuf};

use super::DataError;
use base::globs::{self, GlobError};

/// The files of paths and globs, sorted, without duplicates. An existing path is taken literally; all others are globs.
///
/// # Errors
///
/// All globs without a match, folders and unreadable paths.
pub(super) fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Vec<DataError>> {
    if paths.is_empty() {
        return Err(vec![DataError::NoPaths]);
    }
    let (mut files, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        if path.is_file() {
            files.push(path.clone());
        } else if path.is_dir() {
            errors.push(DataError::Folder { path: path.clone() });
        } else {
            match matches(path) {
                Ok(matches) => files.extend(matches),
                Err(error) => errors.push(error),
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    files.sort();
    files.dedup();
    Ok(files)
}

fn matches(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let pattern = path.to_string_lossy().into_owned();
    match globs::files(&pattern) {
        Ok(files) if files.is_empty() => Err(DataError::NoMatch { pattern }),
        Ok(files) => Ok(files),
        Err(GlobError::Invalid(message)) => Err(DataError::BadGlob { pattern, message: message.to_owned() }),
        Err(GlobError::Unreadable { path, error }) => Err(DataError::Unreadable { path, error }),
        Err(GlobError::TooMany) => Err(DataError::TooManyFiles { pattern }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_without_duplicates() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "c.rs", "odd[1].txt"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let found = find(&[
            folder.path().join("b.txt"),
            folder.path().join("odd[1].txt"),
            folder.path().join("*.txt"),
            folder.path().join("**/*.rs"),
        ])
        .unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.txt", "b.txt", "c.rs", "odd[1].txt"]);
    }

    #[test]
    fn unmatched_paths_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let glob = folder.path().join("*.txt");
        let one = |paths: &[PathBuf]| find(paths).unwrap_err().remove(0);
        let error = one(std::slice::from_ref(&glob));
        assert_eq!(error.to_string(), format!("no file matches `{}`", glob.display()));
        assert_eq!(error.blame(), crate::ErrorKey::Data("paths"));
        assert!(matches!(one(&[folder.path().join("none")]), DataError::NoMatch { .. }));
        assert!(matches!(one(&[folder.path().to_path_buf()]), DataError::Folder { .. }));
        assert!(matches!(one(&[folder.path().join("[")]), DataError::BadGlob { .. }));
        assert!(matches!(one(&[]), DataError::NoPaths));
        let several = find(&[folder.path().join("none"), folder.path().to_path_buf()]).unwrap_err();
        assert!(matches!(&several[..], [DataError::NoMatch { .. }, DataError::Folder { .. }]));
    }

    #[test]
    fn globs_skip_folders() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        let errors = find(&[folder.path().join("*")]).unwrap_err();
        assert!(matches!(&errors[..], [DataError::NoMatch { .. }]));
        std::fs::write(folder.path().join("inner/text"), "x").unwrap();
        assert_eq!(find(&[folder.path().join("**/*")]).unwrap().len(), 1);
    }
}
