//! The files that a glob matches. The work is linear in the entries of the folders that can contain matches, and bounded.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glob::Pattern;

use crate::regular;

/// Maximum number of folder entries that are looked at for one glob, and maximum bytes of all matching paths.
pub const MOST_ENTRIES: usize = 1_000_000;
const MOST_BYTES: usize = 256 << 20;

/// A glob without an answer.
#[derive(Debug)]
pub enum GlobError {
    /// The problem.
    Invalid(&'static str),
    Unreadable {
        path: PathBuf,
        error: io::Error,
    },
    /// There are more than [`MOST_ENTRIES`] entries to look at, or the matching paths are too long.
    TooMany,
}

/// A component of a glob.
enum Component {
    Literal(String),
    /// `**`: any number of folders.
    Folders,
    Pattern(Pattern),
}

/// The files that match a glob, sorted. Links to folders are followed, except to a folder that contains the link.
///
/// # Errors
/// The glob is invalid, a folder or file is unreadable, or there are too many.
pub fn files(glob: &str) -> Result<Vec<PathBuf>, GlobError> {
    let root = if glob.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() };
    let mut components = Vec::new();
    for part in glob.split('/').filter(|part| !part.is_empty()) {
        components.push(match Pattern::new(part).map_err(|error| GlobError::Invalid(error.msg))? {
            _ if part == "**" => Component::Folders,
            pattern if part.contains(['*', '?', '[']) => Component::Pattern(pattern),
            _ => Component::Literal(part.to_owned()),
        });
    }
    if glob.ends_with('/') {
        return Ok(Vec::new());
    }
    let mut walk = Walk { components, files: BTreeSet::new(), entries: 0, bytes: 0, pending: Vec::new() };
    walk.pending.push((root, BTreeSet::from([0])));
    while let Some((folder, states)) = walk.pending.pop() {
        walk.visit(&folder, states)?;
    }
    Ok(walk.files.into_iter().collect())
}

struct Walk {
    components: Vec<Component>,
    files: BTreeSet<PathBuf>,
    entries: usize,
    bytes: usize,
    /// Folders to visit, each with the indices of the components that its entries may match.
    pending: Vec<(PathBuf, BTreeSet<usize>)>,
}

impl Walk {
    fn visit(&mut self, folder: &Path, mut states: BTreeSet<usize>) -> Result<(), GlobError> {
        // `**` also matches no folder.
        for index in 0..self.components.len() {
            if states.contains(&index) && matches!(self.components[index], Component::Folders) {
                states.insert(index + 1);
            }
        }
        let is_last = |index: usize| index + 1 == self.components.len();
        let mut reads_entries = false;
        let (mut found, mut next) = (Vec::new(), Vec::new());
        for &index in &states {
            match self.components.get(index) {
                Some(Component::Literal(name)) if is_last(index) => found.push(folder.join(name)),
                Some(Component::Literal(name)) => next.push((folder.join(name), index + 1)),
                Some(Component::Folders | Component::Pattern(_)) => reads_entries = true,
                None => {}
            }
        }
        for (path, state) in next {
            if regular::is_folder(&path).map_err(unreadable(&path))? {
                self.pending.push((path, BTreeSet::from([state])));
            }
        }
        for path in found {
            if regular::is_file(&path).map_err(unreadable(&path))? {
                self.add(path)?;
            }
        }
        if reads_entries { self.read_entries(folder, &states) } else { Ok(()) }
    }

    fn read_entries(&mut self, folder: &Path, states: &BTreeSet<usize>) -> Result<(), GlobError> {
        let readable = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        for entry in fs::read_dir(readable).map_err(unreadable(folder))? {
            let entry = entry.map_err(unreadable(folder))?;
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(GlobError::TooMany);
            }
            let name = entry.file_name();
            let (mut is_match, mut inner) = (false, BTreeSet::new());
            for &index in states {
                match self.components.get(index) {
                    Some(Component::Folders) => drop(inner.insert(index)),
                    // Names that are not UTF-8 match no pattern.
                    Some(Component::Pattern(pattern))
                        if name.to_str().is_some_and(|name| pattern.matches(name)) =>
                    {
                        is_match |= index + 1 == self.components.len();
                        inner.extend((index + 1 < self.components.len()).then_some(index + 1));
                    }
                    _ => {}
                }
            }
            if !is_match && inner.is_empty() {
                continue;
            }
            let path = folder.join(&name);
            let kind = entry.file_type().map_err(unreadable(&path))?;
            // An unreadable path may be what is searched: report it instead of skipping it.
            let (is_folder, is_file) = if kind.is_symlink() {
                let is_folder = regular::is_folder(&path).map_err(unreadable(&path))?;
                (
                    is_folder && !contains(folder, &path),
                    !is_folder && regular::is_file(&path).map_err(unreadable(&path))?,
                )
            } else {
                (kind.is_dir(), kind.is_file())
            };
            if is_match && is_file {
                self.add(path)?;
            } else if is_folder && !inner.is_empty() {
                self.pending.push((path, inner));
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), GlobError> {
        self.bytes += path.as_os_str().len();
        self.files.insert(path);
        if self.bytes > MOST_BYTES { Err(GlobError::TooMany) } else { Ok(()) }
    }
}

/// Whether a link leads to a folder that contains it.
fn contains(folder: &Path, link: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let Ok(linked) = id(link) else { return true };
    let Ok(folder) = fs::canonicalize(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    else {
        return true;
    };
    folder.ancestors().any(|ancestor| id(ancestor).is_ok_and(|id| id == linked))
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> GlobError + use<> {
    let path = path.to_owned();
    move |error| GlobError::Unreadable { path: path.clone(), error }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    /// The `glob` crate's own answer, for globs that both understand alike.
    fn expected(glob: &str) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            glob::glob(glob).unwrap().map(Result::unwrap).filter(|path| path.is_file()).collect();
        files.sort();
        files.dedup();
        files
    }

    #[test]
    fn matches_are_those_of_the_glob_crate() {
        let folder = tree(&[
            "a.txt",
            "b.rs",
            ".hidden",
            "x/a.txt",
            "x/y/a.txt",
            "x/y/b.txt",
            "x/y/z/c.txt",
            "x.txt/a.txt",
            "odd[1].txt",
        ]);
        symlink("x/y", folder.path().join("link")).unwrap();
        symlink("nowhere", folder.path().join("broken.txt")).unwrap();
        for glob in [
            "*.txt",
            "**/*.txt",
            "**/**/*",
            "**/a.txt",
            "x/**",
            "x/*/a.txt",
            "x/**/y/*.txt",
            "*/../a.txt",
            "**",
            "?.txt",
            "[ab].*",
            "[!a].*",
            "./*.txt",
            "x/y/a.txt",
            "none/*.txt",
            "*.txt/*",
            "**/y/**/*.txt",
            "odd[[]1].txt",
            "x/./y/*",
            "*/*/*/*",
            "link/*",
            "*/",
            "",
        ] {
            let glob = format!("{}/{glob}", folder.path().display());
            let normal = |paths: Vec<PathBuf>| -> BTreeSet<PathBuf> {
                paths.into_iter().map(|path| path.components().collect()).collect()
            };
            assert_eq!(normal(files(&glob).unwrap()), normal(expected(&glob)), "{glob}");
        }
        assert!(matches!(files("a[b"), Err(GlobError::Invalid(_))));
    }

    #[test]
    fn links_to_outer_folders_are_not_followed() {
        let folder = tree(&["a.txt", "x/y/b.txt"]);
        for link in ["one", "two", "x/three", "x/y/four"] {
            symlink(folder.path(), folder.path().join(link)).unwrap();
        }
        let found = files(&format!("{}/**/*.txt", folder.path().display())).unwrap();
        assert_eq!(found, ["a.txt", "x/y/b.txt"].map(|name| folder.path().join(name)));
    }

    /// Folders in each other, and many files in one.
    #[test]
    fn deep_and_wide_folders_are_walked_in_linear_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut path = folder.path().to_owned();
        for _ in 0..600 {
            path.push("d");
            fs::create_dir(&path).unwrap();
            (0..10).for_each(|name| fs::write(path.join(format!("{name}.txt")), "").unwrap());
        }
        let begun = std::time::Instant::now();
        assert_eq!(files(&format!("{}/**/**/*.txt", folder.path().display())).unwrap().len(), 6000);
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }
}
