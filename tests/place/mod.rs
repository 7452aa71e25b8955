//! A folder in which sweeps are started.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with text and experiments, where the program is started.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let text: String = (0..2000).map(|number| format!("{number} ")).collect();
        fs::write(place.path("text.txt"), text).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Three runs under four labels, twice each.
    pub fn experiment(&self, name: &str, steps: usize) -> String {
        let file = format!("{name}.toml");
        let text = format!(
            r#"
            name = "{name}"
            [model.transformer]
            layers = 1
            d_model = 16
            heads = 2
            context = 16
            [data.text]
            paths = ["text.txt"]
            tokens = "bytes"
            split = 0.9
            [train]
            batch_size = 4
            optimizer.adamw = {{ lr = 1e-3 }}
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
        fs::write(self.path(&file), text).unwrap();
        file
    }

    /// The same with a part of its text replaced.
    pub fn changed(&self, name: &str, from: &str, to: &str) -> String {
        let file = self.experiment(name, 1);
        let text = fs::read_to_string(self.path(&file)).unwrap();
        fs::write(self.path(&file), text.replace(from, to)).unwrap();
        file
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.current_dir(self.0.path()).args(["sweep", "--device", "cpu"]).args(args);
        command
    }

    pub fn start_command(&self, args: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.current_dir(self.0.path()).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn sweep(&self, args: &[&str]) -> Sweep {
        Sweep::of(self.command(args).output().unwrap())
    }

    pub fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// All committed results of an experiment, with the time each was written.
    pub fn results(&self, name: &str) -> Vec<(PathBuf, std::time::SystemTime)> {
        let pattern = self.path(&format!("results/{name}/*/[0-9]*/result.json"));
        let files = glob::glob(pattern.to_str().unwrap()).unwrap().map(Result::unwrap);
        files.map(|file| (file.clone(), fs::metadata(file).unwrap().modified().unwrap())).collect()
    }

    /// What sweeps that were killed have left behind.
    pub fn private_folders(&self, name: &str) -> usize {
        glob::glob(self.path(&format!("results/{name}/*/.*-*")).to_str().unwrap()).unwrap().count()
    }

    /// The strategy and status of each row of a table.
    pub fn table(&self, name: &str) -> Vec<(String, String)> {
        let mut table = csv::Reader::from_path(self.path(&format!("results/{name}.csv"))).unwrap();
        table.records().map(Result::unwrap).map(|row| (row[2].to_string(), row[4].to_string())).collect()
    }

    /// Everything in the folder for results but the cache of digests, which is there once data is old enough.
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

    /// What is in the folder for results that is nobody's result.
    pub fn left_behind(&self) -> Vec<PathBuf> {
        let is_hidden = |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b".");
        self.files().into_iter().filter(is_hidden).collect()
    }

    /// The processes that were started here, and what they call themselves.
    pub fn processes(&self) -> Vec<(String, String)> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let here = processes.filter(|process| {
            fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == self.0.path())
        });
        let named = here.filter_map(|process| {
            let command = fs::read(process.path().join("cmdline")).ok()?;
            Some((process.file_name().into_string().ok()?, String::from_utf8_lossy(&command).into_owned()))
        });
        named.collect()
    }

    /// The id of a process that works on a run here.
    pub fn child(&self) -> Option<String> {
        let is_child = |(_, command): &(String, String)| command.contains("execute-run");
        self.processes().into_iter().find(is_child).map(|(id, _)| id)
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

#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
