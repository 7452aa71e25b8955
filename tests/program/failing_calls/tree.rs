//! All files of a results folder, and the parts of them that are the same for every sweep.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

/// Contents of the files by their paths in the folder.
#[derive(Clone, Default)]
pub(crate) struct FileTree(BTreeMap<PathBuf, Vec<u8>>);

impl FileTree {
    /// Reads the files of a folder; none if the folder does not exist.
    pub(crate) fn read(folder: &Path) -> FileTree {
        let mut tree = FileTree::default();
        tree.add(folder, Path::new(""));
        tree
    }

    fn add(&mut self, folder: &Path, below: &Path) {
        for entry in fs::read_dir(folder.join(below)).into_iter().flatten().map(Result::unwrap) {
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                self.add(folder, &path);
            } else {
                self.0.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }

    /// Replaces the folder with these files.
    pub(crate) fn write(&self, folder: &Path) {
        if folder.exists() {
            fs::remove_dir_all(folder).unwrap();
        }
        for (path, contents) in &self.0 {
            let file = folder.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, contents).unwrap();
        }
    }

    /// The folders of all results and their rows.
    ///
    /// # Errors
    /// If a result is incomplete.
    pub(crate) fn results(&self) -> Result<Vec<(PathBuf, Value)>, String> {
        let results = self.0.iter().filter(|(path, _)| is_result(path));
        let row = |(path, contents): (&PathBuf, &Vec<u8>)| {
            let row = serde_json::from_slice(contents);
            let row = row.map_err(|error| format!("{} is torn: {error}", path.display()))?;
            Ok((path.parent().unwrap().to_path_buf(), row))
        };
        results.map(row).collect()
    }

    /// Changes the status of a successful result.
    pub(crate) fn set_status(&mut self, result: &Path, status: &str) {
        let text = self.0.get_mut(&result.join("result.json")).unwrap();
        *text = String::from_utf8_lossy(text)
            .replace(r#""status": "ok""#, &format!(r#""status": "{status}""#))
            .into();
    }

    pub(crate) fn remove(&mut self, folder: &Path) {
        self.0.retain(|path, _| !path.starts_with(folder));
    }

    /// The files without private ones.
    pub(crate) fn without_private(&self) -> FileTree {
        let kept = self.0.iter().filter(|(path, _)| !is_private(path));
        FileTree(kept.map(|(path, contents)| (path.clone(), contents.clone())).collect())
    }

    /// The contents of the files below a folder, without times.
    pub(crate) fn deterministic(&self, folder: &Path) -> BTreeMap<&Path, String> {
        let below = self.0.iter().filter(|(path, _)| path.starts_with(folder));
        below.filter_map(|(path, contents)| Some((path.as_path(), deterministic(path, contents)?))).collect()
    }

    /// Standard error of the children, by log file.
    pub(crate) fn logs(&self) -> impl Iterator<Item = (&Path, String)> {
        let logs = self.0.iter().filter(|(path, _)| path.ends_with("log.txt"));
        logs.map(|(path, contents)| (path.as_path(), String::from_utf8_lossy(contents).into_owned()))
    }
}

/// The modification time of a result.
pub(crate) fn written(folder: &Path, result: &Path) -> Option<SystemTime> {
    fs::metadata(folder.join(result).join("result.json")).and_then(|data| data.modified()).ok()
}

fn is_result(path: &Path) -> bool {
    path.ends_with("result.json") && !is_private(path)
}

/// Whether the file is private to a process.
fn is_private(path: &Path) -> bool {
    path.iter().any(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// The part of a file that is the same for every execution of a run; `None` for files that may be absent.
fn deterministic(path: &Path, contents: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(contents);
    match path.file_name()?.to_str()? {
        ".digests.json" => None,
        "log.txt" => Some(String::new()),
        "result.json" => {
            let mut row: Value = serde_json::from_slice(contents).ok()?;
            row.as_object_mut()?.retain(|column, _| !is_timing(column));
            Some(row.to_string())
        }
        name if name.starts_with("expected-") => {
            let mut list: Value = serde_json::from_slice(contents).ok()?;
            list.as_object_mut()?.remove("planned");
            Some(list.to_string())
        }
        name if name.ends_with(".csv") => Some(without_times(&text)),
        _ => Some(text.into_owned()),
    }
}

fn is_timing(column: &str) -> bool {
    let words = [
        "load",
        "clock_mhz",
        "clock_after_mhz",
        "cpu_wait",
        "process_bytes",
        "sweep",
        "external_peak_bytes",
        "ms",
    ];
    words.contains(&column) || column.contains("_ms") || column.contains("per_s")
}

fn without_times(text: &str) -> String {
    let mut table = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let Ok(header) = table.headers().cloned() else { return text.to_owned() };
    let kept = |record: &csv::StringRecord| {
        let cells = record.iter().enumerate();
        let cells = cells.filter(|(column, _)| header.get(*column).is_none_or(|name| !is_timing(name)));
        cells.map(|(_, cell)| cell).collect::<Vec<_>>().join(",")
    };
    let lines =
        table.records().map(|record| record.map_or_else(|error| error.to_string(), |record| kept(&record)));
    lines.collect::<Vec<_>>().join("\n")
}
