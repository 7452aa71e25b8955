//! Calls to the system, and how they fail.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// What processes are started with.
pub(crate) const PROCESSES: [&str; 2] = ["sweep", "execute-run"];

/// Calls that fail alike.
pub(crate) struct Kind {
    /// In the shim.
    pub(crate) name: &'static str,
    /// The first is one that lasts.
    pub(crate) errors: &'static [i32],
}

/// Of what is to be written, only a part is.
pub(crate) const SHORT: i32 = 0;

impl Kind {
    pub(crate) const ALL: [Kind; 17] = [
        Kind { name: "open", errors: &[libc::EMFILE, libc::EACCES, libc::EIO, libc::ENOSPC] },
        Kind { name: "read", errors: &[libc::EIO, libc::EINTR] },
        Kind { name: "write", errors: &[libc::ENOSPC, SHORT, libc::EIO, libc::EINTR] },
        Kind { name: "sync", errors: &[libc::EIO, libc::ENOSPC, libc::EINTR] },
        Kind { name: "rename", errors: &[libc::ENOSPC, libc::EACCES, libc::EIO] },
        Kind { name: "mkdir", errors: &[libc::ENOSPC, libc::EACCES] },
        Kind { name: "remove", errors: &[libc::EACCES, libc::EIO] },
        Kind { name: "lock", errors: &[libc::ENOLCK, libc::EINTR, libc::EIO] },
        Kind { name: "stat", errors: &[libc::EACCES, libc::EIO] },
        Kind { name: "list", errors: &[libc::EIO, libc::ENOMEM] },
        Kind { name: "resolve", errors: &[libc::EACCES, libc::ENOMEM] },
        Kind { name: "seek", errors: &[libc::EIO] },
        Kind { name: "pipe", errors: &[libc::EMFILE] },
        Kind { name: "map", errors: &[libc::ENOMEM] },
        Kind { name: "thread", errors: &[libc::EAGAIN] },
        Kind { name: "spawn", errors: &[libc::EAGAIN, libc::ENOMEM] },
        Kind { name: "wait", errors: &[libc::ECHILD] },
    ];
}

/// A call that fails in every process that was started with this argument.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) process: &'static str,
    pub(crate) kind: &'static str,
    /// From 1.
    pub(crate) number: usize,
    /// Whether all that follow fail too.
    pub(crate) lasts: bool,
    pub(crate) error: i32,
}

impl Failure {
    /// To be tried again at once.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.error == libc::EINTR && !self.lasts
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { process, kind, number, .. } = self;
        let from = if self.lasts { "from " } else { "" };
        let error = match self.error {
            SHORT => "a short write".to_owned(),
            error => std::io::Error::from_raw_os_error(error).to_string(),
        };
        write!(f, "{process}: {from}{kind} {number}: {error}")
    }
}

/// What makes calls fail.
pub(crate) struct Shim {
    folder: TempDir,
}

impl Shim {
    /// # Panics
    /// If there is no C compiler: nothing could be tried then.
    pub(crate) fn build() -> Shim {
        let shim = Shim { folder: tempfile::tempdir().unwrap() };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/failing_calls/shim.c");
        let mut cc = Command::new("cc");
        cc.args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            source,
            "-ldl",
            "-o",
        ]);
        let built = cc.arg(shim.shared_object()).output();
        let built = built.unwrap_or_else(|error| panic!("this test needs a C compiler named `cc`: {error}"));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        shim
    }

    fn shared_object(&self) -> PathBuf {
        self.folder.path().join("shim.so")
    }

    /// Counts a command's calls, and those of its children, and makes one fail.
    pub(crate) fn load(&self, command: &mut Command, failure: Option<&Failure>, log: &Path) {
        command.env("LD_PRELOAD", self.shared_object()).env("FAILING_CALLS_LOG", log);
        if let Some(Failure { process, kind, number, lasts, error }) = failure {
            let last = if *lasts { i64::MAX.to_string() } else { number.to_string() };
            command.env("FAILING_CALLS", format!("{process} {kind} {number} {last} {error}"));
        }
    }
}

/// How many calls a process made, by its first argument and by kind.
pub(crate) type Calls = BTreeMap<(&'static str, &'static str), usize>;

/// What the shim tells of a command.
pub(crate) struct Log {
    text: String,
}

impl Log {
    /// Takes it away, for the next.
    pub(crate) fn take(file: &Path) -> Log {
        let text = fs::read_to_string(file).unwrap_or_default();
        let _ = fs::remove_file(file);
        Log { text }
    }

    /// What the calls that failed were about: paths of files, or in words.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &str> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("failed "));
        lines.filter_map(|line| line.splitn(4, ' ').nth(3))
    }

    /// Of several processes, the most that one made.
    pub(crate) fn counts(&self) -> Calls {
        let mut counts = Calls::new();
        for line in self.text.lines().filter_map(|line| line.strip_prefix("counted ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let Some(process) = PROCESSES.into_iter().find(|process| words[0] == *process) else { continue };
            let kind = Kind::ALL.iter().find(|kind| kind.name == words[1]).expect("a kind").name;
            let count: &mut usize = counts.entry((process, kind)).or_default();
            *count = (*count).max(words[2].parse().expect("a number"));
        }
        counts
    }
}
