//! The folder that runs are dumped in: `<folder>/<run id>/`, each written in private and renamed into place whole.

use std::fs;
use std::path::{Path, PathBuf};

use super::private::{self, PrivateFolder};
use super::{Committed, StoreError, is_taken, probe};
use crate::execute::DUMP_FILES;

/// The option that names the folder.
const OPTION: &str = "--dump";

/// What runs start from, learn from and end with, for others to repeat.
#[derive(Debug)]
pub struct Dumps {
    folder: PathBuf,
}

impl Dumps {
    /// Makes the folder and proves that it can be written to.
    ///
    /// # Errors
    ///
    /// A path that cannot be made or written to, a disk without room.
    pub fn open(folder: &Path) -> Result<Dumps, StoreError> {
        probe::prove(folder, folder).map_err(|error| error.of_option(OPTION))?;
        private::clean(folder);
        Ok(Dumps { folder: folder.to_path_buf() })
    }

    /// Where a run's dump is once it is committed.
    pub fn place(&self, run_id: &str) -> PathBuf {
        self.folder.join(run_id)
    }

    /// Whether a run is dumped.
    pub fn has(&self, run_id: &str) -> bool {
        let place = self.place(run_id);
        DUMP_FILES.iter().all(|name| place.join(name).is_file())
    }

    /// Makes a folder to dump a run into.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn begin(&self, run_id: &str) -> Result<PrivateFolder, StoreError> {
        PrivateFolder::create(&self.folder, run_id, OPTION)
    }

    /// Makes a private folder, complete, the dump of a run.
    ///
    /// # Errors
    ///
    /// The disk is full or fails, or something else is in its place.
    pub fn commit(&self, private: PrivateFolder, run_id: &str) -> Result<Committed, StoreError> {
        private.sync()?;
        let place = self.place(run_id);
        match fs::rename(private.path(), &place) {
            Ok(()) => {}
            Err(error) if is_taken(&error) && self.has(run_id) => return Ok(Committed::Theirs),
            Err(error) => return Err(StoreError::write(&place)(error).of_option(OPTION)),
        }
        private.committed();
        private::sync_folder(&self.folder)?;
        Ok(Committed::Ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(dumps: &Dumps, contents: &str) -> PrivateFolder {
        let private = dumps.begin("a").unwrap();
        DUMP_FILES.iter().for_each(|name| private.write(name, contents.as_bytes()).unwrap());
        private
    }

    fn names(folder: &Path) -> Vec<String> {
        private::names(folder).unwrap()
    }

    #[test]
    fn a_dump_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path()).unwrap();
        let private = filled(&dumps, "first");
        assert!(!dumps.has("a"));
        assert_eq!(dumps.commit(private, "a").unwrap(), Committed::Ours);
        assert!(dumps.has("a"));
        assert_eq!(dumps.commit(filled(&dumps, "second"), "a").unwrap(), Committed::Theirs);
        for name in DUMP_FILES {
            assert_eq!(fs::read(dumps.place("a").join(name)).unwrap(), b"first");
        }
        drop(filled(&dumps, "given up"));
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn what_is_in_the_way_stays_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path()).unwrap();
        fs::create_dir(dumps.place("a")).unwrap();
        fs::write(dumps.place("a").join("mine"), "").unwrap();
        let error = dumps.commit(filled(&dumps, ""), "a").unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write {}", dumps.place("a").display())), "{error}");
        assert_eq!(names(&dumps.place("a")), ["mine"]);
    }

    #[test]
    fn what_ended_before_its_time_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path()).unwrap();
        let private = filled(&dumps, "");
        // No process has this number.
        let name = private.path().file_name().unwrap().to_str().unwrap();
        let stale = name.replace(&format!("-{}@", std::process::id()), "-4294967295@");
        fs::create_dir(folder.path().join(stale)).unwrap();
        Dumps::open(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [name]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_blamed_on_its_option() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Dumps::open(&file).unwrap_err().to_string();
        assert!(error.starts_with("cannot make the folder ") && error.ends_with("with --dump"), "{error}");
    }
}
