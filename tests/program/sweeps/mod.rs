//! Sweeps in a test folder: starting them, and the files that they leave.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::SystemTime;

use crate::test_folder::{TestFolder, Tiny, piped};

impl TestFolder {
    /// An experiment of three runs under four labels, with two repeats.
    pub fn experiment(&self, name: &str, steps: usize) -> String {
        let file = format!("{name}.toml");
        let more = format!(
            r#"
[measure]
warmup_steps = 1
steps = {steps}
repeats = 2

[strategies.plain]
[strategies.recompute]
recompute = "block"
[strategies.accumulate]
accumulate = 2
[strategies.again]
recompute = "block"
"#
        );
        self.write(&file, format!("name = \"{name}\"\n{}", Tiny::default().with(&more)));
        file
    }

    /// The same experiment with one step and a part of its text replaced.
    pub fn changed(&self, name: &str, from: &str, to: &str) -> String {
        let file = self.experiment(name, 1);
        let text = fs::read_to_string(self.path(&file)).unwrap();
        self.write(&file, text.replace(from, to));
        file
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.program(&[&["sweep", "--device", "cpu"], args].concat())
    }

    pub fn sweep(&self, args: &[&str]) -> Sweep {
        Sweep::of(self.command(args).output().unwrap())
    }

    pub fn start(&self, args: &[&str]) -> Child {
        piped(self.command(args))
    }

    /// All committed results of an experiment and their modification times.
    pub fn results(&self, name: &str) -> Vec<(PathBuf, SystemTime)> {
        let files = self.find(&format!("results/{name}/*/*/[0-9]*/result.json")).into_iter();
        files.map(|file| (file.clone(), fs::metadata(file).unwrap().modified().unwrap())).collect()
    }

    /// The number of private folders that killed sweeps left behind.
    pub fn private_folders(&self, name: &str) -> usize {
        self.find(&format!("results/{name}/*/*/.*-*")).len()
    }

    /// The strategy and status of each row of a table.
    pub fn table(&self, name: &str) -> Vec<(String, String)> {
        let mut table = csv::Reader::from_path(self.path(&format!("results/{name}.csv"))).unwrap();
        table.records().map(Result::unwrap).map(|row| (row[2].to_string(), row[4].to_string())).collect()
    }

    /// All files and folders in `results`, except the digest cache, which exists only once the data is old enough.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        let mut files = BTreeSet::new();
        let mut folders = vec![self.path("results")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                }
                if entry.file_name() != ".digests.json" {
                    files.insert(entry.path());
                }
            }
        }
        files
    }

    /// Hidden entries in `results`: private files of sweeps that did not finish.
    pub fn left_behind(&self) -> Vec<PathBuf> {
        let is_hidden = |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b".");
        self.files().into_iter().filter(is_hidden).collect()
    }

    /// Ids and command lines of the processes whose working directory is this folder.
    pub fn processes(&self) -> Vec<(String, String)> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let here = processes.filter(|process| {
            fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == self.path(""))
        });
        let named = here.filter_map(|process| {
            let command = fs::read(process.path().join("cmdline")).ok()?;
            Some((process.file_name().into_string().ok()?, String::from_utf8_lossy(&command).into_owned()))
        });
        named.collect()
    }

    /// The id of a child process that executes a run of this folder.
    pub fn child(&self) -> Option<String> {
        self.children().into_iter().next()
    }

    /// The ids of the child processes that execute a run of this folder: one for each rank.
    pub fn children(&self) -> Vec<String> {
        let is_child = |(_, command): &(String, String)| command.contains("execute-run");
        self.processes().into_iter().filter(is_child).map(|(id, _)| id).collect()
    }
}

pub struct Sweep {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Sweep {
    pub fn of(output: Output) -> Sweep {
        Sweep {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn ended_with(self, code: i32) -> Sweep {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        self
    }
}
