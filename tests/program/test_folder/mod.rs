//! A temporary folder with text and experiments, in which tests start the program.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test file uses its part

pub mod target;
mod tiny;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use results::{Row, csv};
use spec::RunConfig;
use tempfile::TempDir;
pub use tiny::Tiny;

/// Timeout of `wait_for`: longer than any expected wait.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct TestFolder(TempDir);

impl TestFolder {
    /// A folder with the training text `text.txt`.
    pub fn new() -> TestFolder {
        let dir = TestFolder(tempfile::tempdir().unwrap());
        let text: String = (0..2000).map(|number| format!("{number} ")).collect();
        dir.write("text.txt", text);
        dir
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    pub fn find(&self, pattern: &str) -> Vec<PathBuf> {
        glob::glob(self.path(pattern).to_str().unwrap()).unwrap().map(Result::unwrap).collect()
    }

    /// A command that starts the program in this folder.
    pub fn program(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.current_dir(self.0.path()).args(args);
        command
    }

    /// The same under resource limits that the shell sets first.
    pub fn program_under(&self, limits: &str, args: &[&str]) -> Command {
        let mut shell = Command::new("sh");
        shell.current_dir(self.0.path());
        shell.args(["-c", &format!("{limits} exec \"$@\""), "sh", env!("CARGO_BIN_EXE_runner")]).args(args);
        shell
    }

    /// Runs the program and asserts that it succeeds.
    #[track_caller]
    pub fn runner(&self, args: &[&str]) -> Output {
        let output = self.program(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        output
    }

    /// The rows of a result table.
    pub fn rows(&self, table: &str) -> Vec<Row> {
        csv::read(&self.path(table)).unwrap()
    }

    pub fn rows_by_strategy(&self, table: &str) -> HashMap<String, Row> {
        self.rows(table).into_iter().map(|row| (row.strategy.clone(), row)).collect()
    }

    /// The run configurations of an experiment. Nothing is run.
    pub fn configs(&self, experiment: &str) -> Vec<RunConfig> {
        self.write("a.toml", experiment);
        let experiment = plan::expand(&self.path("a.toml"), &[], &|_| None).unwrap();
        experiment.points.into_iter().map(|point| point.config.unwrap()).collect()
    }
}

/// Starts a command with stdout and stderr piped, to be read after it ends.
pub fn piped(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Standard output followed by standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Text with its wrapped lines joined.
pub fn unwrapped(text: &str) -> String {
    text.replace("\n  ", " ")
}

#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
