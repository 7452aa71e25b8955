//! System calls and the errors that they fail with.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// First arguments of the parent and the child processes.
pub(crate) const PROCESSES: [&str; 2] = ["sweep", "execute-run"];

/// System calls that fail with the same errors.
pub(crate) struct CallKind {
    /// The name in the shim.
    pub(crate) name: &'static str,
    /// The first error is also used for persistent failures.
    pub(crate) errors: &'static [i32],
}

/// Pseudo error: the call writes only a part of the data.
pub(crate) const SHORT_WRITE: i32 = 0;

impl CallKind {
    pub(crate) const ALL: [CallKind; 17] = [
        CallKind { name: "open", errors: &[libc::EMFILE, libc::EACCES, libc::EIO, libc::ENOSPC] },
        CallKind { name: "read", errors: &[libc::EIO, libc::EINTR] },
        CallKind { name: "write", errors: &[libc::ENOSPC, SHORT_WRITE, libc::EIO, libc::EINTR] },
        CallKind { name: "sync", errors: &[libc::EIO, libc::ENOSPC, libc::EINTR] },
        CallKind { name: "rename", errors: &[libc::ENOSPC, libc::EACCES, libc::EIO] },
        CallKind { name: "mkdir", errors: &[libc::ENOSPC, libc::EACCES] },
        CallKind { name: "remove", errors: &[libc::EACCES, libc::EIO] },
        CallKind { name: "lock", errors: &[libc::ENOLCK, libc::EINTR, libc::EIO] },
        CallKind { name: "stat", errors: &[libc::EACCES, libc::EIO] },
        CallKind { name: "list", errors: &[libc::EIO, libc::ENOMEM] },
        CallKind { name: "resolve", errors: &[libc::EACCES, libc::ENOMEM] },
        CallKind { name: "seek", errors: &[libc::EIO] },
        CallKind { name: "pipe", errors: &[libc::EMFILE] },
        CallKind { name: "map", errors: &[libc::ENOMEM] },
        CallKind { name: "thread", errors: &[libc::EAGAIN] },
        CallKind { name: "spawn", errors: &[libc::EAGAIN, libc::ENOMEM] },
        CallKind { name: "wait", errors: &[libc::ECHILD] },
    ];
}

/// A call that fails in every process with this first argument.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) process: &'static str,
    pub(crate) kind: &'static str,
    /// The number of the call, from 1.
    pub(crate) number: usize,
    /// Whether all later calls fail too.
    pub(crate) lasts: bool,
    pub(crate) error: i32,
}

impl Failure {
    /// Whether the program must retry the call at once.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.error == libc::EINTR && !self.lasts
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { process, kind, number, .. } = self;
        let from = if self.lasts { "from " } else { "" };
        let error = match self.error {
            SHORT_WRITE => "a short write".to_owned(),
            error => std::io::Error::from_raw_os_error(error).to_string(),
        };
        write!(f, "{process}: {from}{kind} {number}: {error}")
    }
}

/// Builds a C file of this repository as a shared object.
///
/// # Panics
/// If there is no C compiler to build it.
pub(crate) fn build_shared_object(source: &str, to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    let built =
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source)).args(["-ldl", "-o"]).arg(to).output();
    let built = built.unwrap_or_else(|error| panic!("this test needs a C compiler named `cc`: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The shared object that makes calls fail.
pub(crate) struct Shim {
    folder: TempDir,
}

impl Shim {
    /// # Panics
    /// If there is no C compiler to build it.
    pub(crate) fn build() -> Shim {
        let shim = Shim { folder: tempfile::tempdir().unwrap() };
        build_shared_object("tests/program/failing_calls/shim.c", &shim.shared_object());
        shim
    }

    fn shared_object(&self) -> PathBuf {
        self.folder.path().join("shim.so")
    }

    /// Counts the calls of a command and its children, and makes the given one fail.
    pub(crate) fn load(&self, command: &mut Command, failure: Option<&Failure>, log: &Path) {
        command.env("LD_PRELOAD", self.shared_object()).env("FAILING_CALLS_LOG", log);
        if let Some(Failure { process, kind, number, lasts, error }) = failure {
            let last = if *lasts { i64::MAX.to_string() } else { number.to_string() };
            command.env("FAILING_CALLS", format!("{process} {kind} {number} {last} {error}"));
        }
    }
}

/// The number of calls by first argument of the process and by kind.
pub(crate) type Calls = BTreeMap<(&'static str, &'static str), usize>;

/// The log that the shim wrote for a command.
pub(crate) struct Log {
    text: String,
}

impl Log {
    /// Reads the log file and removes it.
    pub(crate) fn take(file: &Path) -> Log {
        let text = fs::read_to_string(file).unwrap_or_default();
        let _ = fs::remove_file(file);
        Log { text }
    }

    /// The subjects of the failed calls: paths of files, or words such as "memory".
    pub(crate) fn failed(&self) -> impl Iterator<Item = &str> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("failed "));
        lines.filter_map(|line| line.splitn(4, ' ').nth(3))
    }

    /// The calls counted; of several processes with the same first argument, the maximum.
    pub(crate) fn counts(&self) -> Calls {
        let mut counts = Calls::new();
        for line in self.text.lines().filter_map(|line| line.strip_prefix("counted ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let Some(process) = PROCESSES.into_iter().find(|process| words[0] == *process) else { continue };
            let kind = CallKind::ALL.iter().find(|kind| kind.name == words[1]).expect("a kind").name;
            let count: &mut usize = counts.entry((process, kind)).or_default();
            *count = (*count).max(words[2].parse().expect("a number"));
        }
        counts
    }
}
