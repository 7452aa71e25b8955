//! The folder of dumped runs, `<folder>/<run id>/`: each is written in a private folder, then renamed into place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::private::{self, PrivateFolder};
use super::{Committed, StoreError, is_taken, probe};
use base::regular;
use base::temporary::AbandonedFile;
use execute::DumpContents;

/// The file with the digest of the dumped result: with another version of the program, the same run may end in
/// different bits.
const DIGEST_FILE: &str = "result.digest";

/// Dumps of runs, from which other programs can reproduce them or continue.
#[derive(Debug)]
pub struct Dumps {
    folder: PathBuf,
    contents: DumpContents,
    in_doubt: Vec<AbandonedFile>,
}

impl Dumps {
    /// Creates the folder and checks that it is writable.
    ///
    /// # Errors
    ///
    /// The path cannot be created or written to, or the disk is full.
    pub fn open(folder: &Path, contents: DumpContents) -> Result<Dumps, StoreError> {
        let mut dumps = Dumps { folder: folder.to_path_buf(), contents, in_doubt: Vec::new() };
        dumps.clean();
        probe::check_writable(folder, folder).map_err(|error| error.of_option(contents.option()))?;
        Ok(dumps)
    }

    pub fn contents(&self) -> DumpContents {
        self.contents
    }

    /// Removes leftovers of killed sweeps.
    pub fn clean(&mut self) {
        self.in_doubt = private::clean(&self.folder);
    }

    /// Possible leftovers of killed sweeps that could not be removed.
    pub fn in_doubt(&self) -> &[AbandonedFile] {
        &self.in_doubt
    }

    /// The path of a run's committed dump.
    pub fn place(&self, run_id: &str) -> PathBuf {
        self.folder.join(run_id)
    }

    /// Whether there is a dump of the run with this result digest and these files.
    ///
    /// # Errors
    ///
    /// The path is taken by the dump of another result or by an incomplete dump.
    pub fn has(&self, run_id: &str, digest: &str, files: &[&str]) -> Result<bool, StoreError> {
        let place = self.place(run_id);
        if !place.try_exists().map_err(StoreError::read(&place))? {
            return Ok(false);
        }
        let file = place.join(DIGEST_FILE);
        let found = match regular::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            found => found.map_err(StoreError::read(&file))?,
        };
        let mut complete = true;
        for file in files.iter().map(|name| place.join(name)) {
            complete &= regular::is_file(&file).map_err(StoreError::read(&file))?;
        }
        if complete && found.trim() == digest {
            Ok(true)
        } else {
            Err(StoreError::InTheWay { path: place, option: self.contents.option() })
        }
    }

    /// Creates a private folder for a run's dump.
    ///
    /// # Errors
    ///
    /// The folder cannot be created.
    pub fn begin(&self, run_id: &str) -> Result<PrivateFolder, StoreError> {
        Ok(PrivateFolder::create(&self.folder, run_id, self.contents.option())?.without_parent())
    }

    /// Commits a complete private folder as the dump of a run with this result digest.
    ///
    /// # Errors
    ///
    /// The disk is full or fails, or the path is taken by something else.
    pub fn commit(
        &self,
        private: PrivateFolder,
        run_id: &str,
        digest: &str,
        files: &[&str],
    ) -> Result<Committed, StoreError> {
        private.write(DIGEST_FILE, format!("{digest}\n").as_bytes())?;
        private.sync()?;
        let place = self.place(run_id);
        match fs::rename(private.path(), &place) {
            Ok(()) => {}
            Err(error) if is_taken(&error) && self.has(run_id, digest, files)? => {
                return Ok(Committed::Theirs);
            }
            Err(error) => return Err(StoreError::write(&place)(error).of_option(self.contents.option())),
        }
        private.committed();
        private::sync_folder(&self.folder)?;
        Ok(Committed::Ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 2] = ["first.safetensors", "second.safetensors"];

    fn filled(dumps: &Dumps, contents: &str) -> PrivateFolder {
        let private = dumps.begin("a").unwrap();
        FILES.iter().for_each(|name| private.write(name, contents.as_bytes()).unwrap());
        private
    }

    fn names(folder: &Path) -> Vec<String> {
        private::names(folder).unwrap()
    }

    #[test]
    fn dump_is_committed_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path(), DumpContents::Tensors).unwrap();
        let private = filled(&dumps, "first");
        assert!(!dumps.has("a", "bits", &FILES).unwrap());
        assert_eq!(dumps.commit(private, "a", "bits", &FILES).unwrap(), Committed::Ours);
        assert!(dumps.has("a", "bits", &FILES).unwrap());
        assert_eq!(dumps.commit(filled(&dumps, "second"), "a", "bits", &FILES).unwrap(), Committed::Theirs);
        for name in FILES {
            assert_eq!(fs::read(dumps.place("a").join(name)).unwrap(), b"first");
        }
        drop(filled(&dumps, "given up"));
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn folder_of_user_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path(), DumpContents::Tensors).unwrap();
        drop(filled(&dumps, "given up"));
        assert_eq!(names(folder.path()), [""; 0]);
        assert!(folder.path().is_dir());
    }

    #[test]
    fn other_contents_at_path_are_kept_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path(), DumpContents::Tensors).unwrap();
        let refused = |error: StoreError| {
            let place = dumps.place("a").display().to_string();
            assert!(
                error.to_string().starts_with(&format!("{place} is not what --dump writes of this result")),
                "{error}"
            );
        };
        fs::create_dir(dumps.place("a")).unwrap();
        fs::write(dumps.place("a").join("mine"), "").unwrap();
        refused(dumps.has("a", "bits", &FILES).unwrap_err());
        refused(dumps.commit(filled(&dumps, ""), "a", "bits", &FILES).unwrap_err());
        assert_eq!(names(&dumps.place("a")), ["mine"]);

        fs::remove_dir_all(dumps.place("a")).unwrap();
        dumps.commit(filled(&dumps, "kept"), "a", "bits", &FILES).unwrap();
        refused(dumps.has("a", "other bits", &FILES).unwrap_err());
        refused(dumps.commit(filled(&dumps, "new"), "a", "other bits", &FILES).unwrap_err());
        assert!(FILES.iter().all(|name| fs::read(dumps.place("a").join(name)).unwrap() == b"kept"));
        fs::remove_file(dumps.place("a").join(FILES[0])).unwrap();
        refused(dumps.has("a", "bits", &FILES).unwrap_err());
    }

    #[test]
    fn leftovers_of_killed_sweeps_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dumps = Dumps::open(folder.path(), DumpContents::Tensors).unwrap();
        let (alive, killed) = (filled(&dumps, ""), filled(&dumps, ""));
        killed.log().unlock().unwrap();
        std::mem::forget(killed);
        Dumps::open(folder.path(), DumpContents::Tensors).unwrap();
        assert_eq!(names(folder.path()), [alive.path().file_name().unwrap().to_str().unwrap()]);
    }

    #[test]
    fn error_of_uncreatable_folder_mentions_its_option() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Dumps::open(&file, DumpContents::Tensors).unwrap_err().to_string();
        assert!(error.starts_with("cannot create the folder ") && error.ends_with("with --dump"), "{error}");
    }
}
