//! The folder that runs are dumped in: `<folder>/<run id>/`, each written in private and renamed into place whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::private::{self, PrivateFolder};
use super::{Committed, StoreError, is_taken, probe};
use base::regular;
use base::temporary::InDoubt;
use execute::DUMP_FILES;

/// The option that names the folder.
const OPTION: &str = "--dump";

/// The file with the digest of the result that a dump repeats: the same run may end in other bits with another version
/// of the program.
const DIGEST_FILE: &str = "result.digest";

/// What runs start from, learn from and end with, for others to repeat.
#[derive(Debug)]
pub struct Dumps {
    folder: PathBuf,
    in_doubt: Vec<InDoubt>,
}

impl Dumps {
    /// Makes the folder and proves that it can be written to.
    ///
    /// # Errors
    ///
    /// A path that cannot be made or written to, a disk without room.
    pub fn open(folder: &Path) -> Result<Dumps, StoreError> {
        let in_doubt = private::clean(folder);
        probe::prove(folder, folder).map_err(|error| error.of_option(OPTION))?;
        Ok(Dumps { folder: folder.to_path_buf(), in_doubt })
    }

    /// What may be left behind by sweeps that ended before their time and could not be removed.
    pub fn in_doubt(&self) -> &[InDoubt] {
        &self.in_doubt
    }

    /// Where a run's dump is once it is committed.
    pub fn place(&self, run_id: &str) -> PathBuf {
        self.folder.join(run_id)
    }

    /// Whether a run is dumped, as it ended in the result with this digest.
    ///
    /// # Errors
    ///
    /// Something else is in its place: the dump of another result, or what is no whole dump.
    pub fn has(&self, run_id: &str, digest: &str) -> Result<bool, StoreError> {
        let place = self.place(run_id);
        if !place.try_exists().map_err(StoreError::read(&place))? {
            return Ok(false);
        }
        let file = place.join(DIGEST_FILE);
        let of = match regular::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            of => of.map_err(StoreError::read(&file))?,
        };
        let mut whole = true;
        for file in DUMP_FILES.map(|name| place.join(name)) {
            whole &= regular::is_file(&file).map_err(StoreError::read(&file))?;
        }
        if whole && of.trim() == digest {
            Ok(true)
        } else {
            Err(StoreError::InTheWay { path: place, option: OPTION })
        }
    }

    /// Makes a folder to dump a run into.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn begin(&self, run_id: &str) -> Result<PrivateFolder, StoreError> {
        Ok(PrivateFolder::create(&self.folder, run_id, OPTION)?.without_parent())
    }

    /// Makes a private folder, complete, the dump of a run that ended in the result with this digest.
    ///
    /// # Errors
    ///
    /// The disk is full or fails, or something else is in its place.
    pub fn commit(
        &self,
        private: PrivateFolder,
        run_id: &str,
        digest: &str,
    ) -> Result<Committed, StoreError> {
        private.write(DIGEST_FILE, format!("{digest}\n").as_bytes())?;
        private.sync()?;
        let place = self.place(run_id);
        match fs::rename(private.path(), &place) {
            Ok(()) => {}
            Err(error) if is_taken(&error) && self.has(run_id, digest)? => return Ok(Committed::Theirs),
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
        assert!(!dumps.has("a", "bits").unwrap());
        assert_eq!(dumps.commit(private, "a", "bits").unwrap(), Committed::Ours);
        assert!(dumps.has("a", "bits").unwrap());
        assert_eq!(dumps.commit(filled(&dumps, "second"), "a", "bits").unwrap(), Committed::Theirs);
        for name in DUMP_FILES {
            assert_eq!(fs::read(dumps.place("a").join(name)).unwrap(), b"first");
        }
        drop(filled(&dumps, "given up"));
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn the_folder_that_the_user_named_stays() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path()).unwrap();
        drop(filled(&dumps, "given up"));
        assert_eq!(names(folder.path()), [""; 0]);
        assert!(folder.path().is_dir());
    }

    #[test]
    fn what_is_in_the_way_stays_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path()).unwrap();
        let refused = |error: StoreError| {
            let place = dumps.place("a").display().to_string();
            assert!(error.to_string().starts_with(&format!("{place} is no dump of this result")), "{error}");
        };
        fs::create_dir(dumps.place("a")).unwrap();
        fs::write(dumps.place("a").join("mine"), "").unwrap();
        refused(dumps.has("a", "bits").unwrap_err());
        refused(dumps.commit(filled(&dumps, ""), "a", "bits").unwrap_err());
        assert_eq!(names(&dumps.place("a")), ["mine"]);

        fs::remove_dir_all(dumps.place("a")).unwrap();
        dumps.commit(filled(&dumps, "kept"), "a", "bits").unwrap();
        refused(dumps.has("a", "other bits").unwrap_err());
        refused(dumps.commit(filled(&dumps, "new"), "a", "other bits").unwrap_err());
        assert!(DUMP_FILES.iter().all(|name| fs::read(dumps.place("a").join(name)).unwrap() == b"kept"));
        fs::remove_file(dumps.place("a").join(DUMP_FILES[0])).unwrap();
        refused(dumps.has("a", "bits").unwrap_err());
    }

    #[test]
    fn what_ended_before_its_time_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path()).unwrap();
        let (alive, killed) = (filled(&dumps, ""), filled(&dumps, ""));
        killed.log().unlock().unwrap();
        std::mem::forget(killed);
        Dumps::open(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [alive.path().file_name().unwrap().to_str().unwrap()]);
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
