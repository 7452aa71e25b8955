//! Resolves paths and globs to a list of files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::digest::{self, FileDigest};
use super::slices::Splits;
use super::{DataError, Note};
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

/// Files by split.
#[derive(Clone, Debug)]
pub(super) struct SplitFiles<T> {
    /// Of the training split or, without files of its own for evaluation, of both.
    pub(super) training: Vec<T>,
    /// `None`: the evaluation split is a share of the training files.
    pub(super) evaluation: Option<Vec<T>>,
}

impl SplitFiles<PathBuf> {
    /// The files of the paths for training, and of those for evaluation, if there are any.
    ///
    /// # Errors
    /// Those of [`find`].
    pub(super) fn find(
        training: &[PathBuf],
        evaluation: &[PathBuf],
    ) -> Result<SplitFiles<PathBuf>, Vec<DataError>> {
        let evaluation = (!evaluation.is_empty()).then(|| find(evaluation)).transpose();
        match (find(training), evaluation) {
            (Ok(training), Ok(evaluation)) => Ok(SplitFiles { training, evaluation }),
            (training, evaluation) => {
                let evaluation =
                    evaluation.err().unwrap_or_default().into_iter().map(DataError::in_evaluation);
                Err(training.err().unwrap_or_default().into_iter().chain(evaluation).collect())
            }
        }
    }
}

impl<T> SplitFiles<T> {
    /// # Errors
    /// All errors of `each`.
    pub(super) fn try_map<U>(
        self,
        mut each: impl FnMut(T) -> Result<U, DataError>,
    ) -> Result<SplitFiles<U>, Vec<DataError>> {
        let mut errors = Vec::new();
        let training =
            self.training.into_iter().filter_map(|file| each(file).map_err(|error| errors.push(error)).ok());
        let training = training.collect();
        let evaluation = self.evaluation.map(|files| {
            let of = |file| each(file).map_err(|error| errors.push(error.in_evaluation())).ok();
            files.into_iter().filter_map(of).collect()
        });
        if errors.is_empty() { Ok(SplitFiles { training, evaluation }) } else { Err(errors) }
    }

    /// The files of each split.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[T]> {
        std::iter::once(self.training.as_slice()).chain(self.evaluation.as_deref())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.parts().flatten()
    }

    /// The sizes of the splits, of files with these numbers of tokens.
    ///
    /// # Errors
    /// A split has no tokens, or `share` is not a fraction.
    pub(super) fn splits(
        &self,
        tokens: impl Fn(&T) -> usize,
        share: f64,
        units: [&'static str; 2],
    ) -> Result<Splits, DataError> {
        let count = |files: &[T]| match files.iter().map(&tokens).sum() {
            0 => Err(DataError::Empty { files: files.len() }),
            count => Ok(count),
        };
        let training = count(&self.training)?;
        match &self.evaluation {
            None => Splits::of(training, share, units),
            Some(files) => {
                Ok(Splits::given(training, count(files).map_err(DataError::in_evaluation)?, units))
            }
        }
    }

    /// The digest of all files and of their splits.
    pub(super) fn digest(&self, of: impl Fn(&T) -> FileDigest) -> String {
        let digests = self.parts().map(|files| digest::combine(&files.iter().map(&of).collect::<Vec<_>>()));
        digest::of_splits(digests.collect())
    }

    /// Notes about the files of each split, if they are declared apart.
    pub(super) fn notes(&self, path: impl Fn(&T) -> &Path, digest: impl Fn(&T) -> &FileDigest) -> Vec<Note> {
        let Some(evaluation) = &self.evaluation else { return Vec::new() };
        let list = |files: &[T]| match files {
            [] => "no file".to_owned(),
            [first] => path(first).display().to_string(),
            [first, others @ ..] => format!("{} and {} more", path(first).display(), others.len()),
        };
        let files = format!("training reads {}; evaluation reads {}", list(&self.training), list(evaluation));
        let trained: HashMap<&str, &T> =
            self.training.iter().map(|file| (digest(file).sha256.as_str(), file)).collect();
        let mut copies = evaluation.iter().filter(|file| digest(file).bytes > 0).filter_map(|file| {
            let original = trained.get(digest(file).sha256.as_str())?;
            Some((path(file), path(original)))
        });
        let shared = copies.next().map(|(copy, original)| {
            let [resolved, resolved_original] = [copy, original].map(|path| path.canonicalize().ok());
            let how = match resolved.is_some() && resolved == resolved_original {
                true => "is the same file as",
                false => "has the same bytes as",
            };
            let [shown, original] = [copy, original].map(Path::display);
            let first = match self.training.iter().any(|file| path(file) == copy) {
                true => format!("{shown} is both trained and evaluated on"),
                false => format!("{shown}, for evaluation, {how} {original}, for training"),
            };
            match copies.count() {
                0 => first,
                more => format!("{first}; {} files for evaluation are trained on", more + 1),
            }
        });
        std::iter::once(Note::new(files)).chain(shared.map(Note::warning)).collect()
    }
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
