//! Sweeps with failing calls, and the checks of their outcome.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::failing_calls::calls::{Calls, Failure, Log, Shim};
use crate::failing_calls::tree::{FileTree, written};
use crate::sweeps::Sweep;
use crate::test_folder::TestFolder;

/// Far longer than a sweep takes even on a busy machine: a sweep that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The age from which the digest of a data file is cached.
const SETTLED: Duration = Duration::from_millis(3100);

/// Too little memory to measure device rates, which takes ten times as long as such a run.
const MEMORY: [&str; 2] = ["--memory", "3 MiB"];

/// The results before a sweep, and its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scenario {
    /// No results.
    Nothing,
    /// A final result and a failed one, which is retried.
    Failed,
    /// All results, measured again.
    Fresh,
    /// All results, and their runs are dumped.
    Dump,
    /// All results, and other runs are added.
    Set,
}

impl Scenario {
    pub(crate) const ALL: [Scenario; 5] =
        [Scenario::Nothing, Scenario::Failed, Scenario::Fresh, Scenario::Dump, Scenario::Set];

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Scenario::Nothing | Scenario::Failed => &[],
            Scenario::Fresh => &["--fresh"],
            Scenario::Dump => &["--dump", "results/dumps"],
            Scenario::Set => &["--set", "train.seed=1"],
        }
    }

    /// The part of a complete sweep that exists before.
    fn before(self, complete: &FileTree) -> FileTree {
        let mut before = complete.clone();
        let results = complete.results().unwrap();
        match self {
            Scenario::Nothing => before.remove(Path::new("")),
            Scenario::Failed => before.set_status(&results[1].0, "failed"),
            Scenario::Fresh | Scenario::Dump | Scenario::Set => {}
        }
        before
    }
}

/// The outcome of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// The call did not happen this time.
    NotReached,
    /// All runs finished.
    Tolerated,
    /// The sweep reported the failure.
    Reported,
}

/// A scenario with its files before and after.
struct PreparedScenario {
    scenario: Scenario,
    before: FileTree,
    /// The files after a sweep without failures.
    after: FileTree,
    calls: Calls,
}

/// A test folder and its scenarios.
pub(crate) struct Trial<'a> {
    shim: &'a Shim,
    dir: TestFolder,
    file: String,
    scenarios: Vec<PreparedScenario>,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(shim: &'a Shim, scenarios: &[Scenario]) -> Trial<'a> {
        let dir = TestFolder::new();
        let file = dir.experiment("tiny", 2);
        let text = fs::read_to_string(dir.path(&file)).unwrap().replace("text.txt", "*.txt");
        let two = text.split("[strategies.accumulate]").next().unwrap().replace("repeats = 2", "");
        dir.write(&file, two);
        dir.write("more.txt", "More.");
        thread::sleep(SETTLED);
        let mut trial = Trial { shim, dir, file, scenarios: Vec::new() };
        trial.finish(Scenario::Nothing).unwrap();
        let complete = trial.tree();
        for &scenario in scenarios {
            let before = scenario.before(&complete);
            before.write(&trial.results());
            let sweep = trial.swept(scenario, None).unwrap();
            sweep.ended_with(0);
            let calls = Log::take(&trial.log()).counts();
            trial.scenarios.push(PreparedScenario { scenario, before, after: trial.tree(), calls });
        }
        trial
    }

    fn results(&self) -> PathBuf {
        self.dir.path("results")
    }

    fn tree(&self) -> FileTree {
        FileTree::read(&self.results())
    }

    fn sweep(&self, scenario: Scenario) -> std::process::Command {
        let mut command = self.dir.command(&[&self.file, MEMORY[0], MEMORY[1]]);
        command.args(scenario.arguments()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Sweeps without failures.
    fn finish(&self, scenario: Scenario) -> Result<(), String> {
        let sweep = Sweep::of(self.sweep(scenario).output().unwrap());
        if sweep.code == Some(0) {
            Ok(())
        } else {
            Err(format!("the next sweep ended with {:?}: {}", sweep.code, sweep.err))
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.path("calls.log")
    }

    /// The calls of a sweep and its children, by scenario.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Calls> {
        self.scenarios.iter().map(|scenario| &scenario.calls)
    }

    fn swept(&self, scenario: Scenario, failure: Option<&Failure>) -> Result<Sweep, String> {
        let mut command = self.sweep(scenario);
        self.shim.load(&mut command, failure, &self.log());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > PATIENCE {
                child.kill().unwrap();
                return Err(format!("it hangs: {:?}", Sweep::of(child.wait_with_output().unwrap()).err));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Sweep::of(child.wait_with_output().unwrap()))
    }

    /// # Errors
    /// The violated expectation.
    pub(crate) fn try_failure(&self, scenario: usize, failure: &Failure) -> Result<Outcome, String> {
        let PreparedScenario { scenario, before, after, calls } = &self.scenarios[scenario];
        before.write(&self.results());
        let first = self.finals(before)?;
        let sweep = self.swept(*scenario, Some(failure))?;
        let log = Log::take(&self.log());
        let tree = self.tree();
        let with_output = |problem| {
            format!(
                "{problem}\ncode {:?}, failed {:?}, out: {}\nerr: {}",
                sweep.code,
                log.failed().collect::<Vec<_>>(),
                sweep.out,
                sweep.err
            )
        };
        self.check_end(&sweep, &log, failure, &tree, after).map_err(with_output)?;
        check_locks(&sweep, &log, failure, calls).map_err(with_output)?;
        self.check_results(&tree, after).map_err(with_output)?;
        let kept = self.finals(&tree)?;
        if *scenario != Scenario::Fresh {
            check_kept(&first, &kept).map_err(with_output)?;
        }

        self.finish(*scenario).map_err(with_output)?;
        let tree = self.tree();
        self.check_results(&tree, after).map_err(with_output)?;
        check_complete(&tree, after)
            .map_err(|problem| with_output(format!("after the next sweep, {problem}")))?;
        if *scenario != Scenario::Fresh {
            check_kept(&kept, &self.finals(&tree)?).map_err(with_output)?;
        }
        Ok(match sweep.code {
            _ if log.failed().next().is_none() => Outcome::NotReached,
            Some(0) => Outcome::Tolerated,
            _ => Outcome::Reported,
        })
    }

    /// Final results and their modification times.
    fn finals(&self, tree: &FileTree) -> Result<BTreeMap<PathBuf, Option<std::time::SystemTime>>, String> {
        let results = tree.results()?.into_iter().filter(|(_, row)| is_final(row));
        Ok(results.map(|(folder, _)| (folder.clone(), written(&self.results(), &folder))).collect())
    }

    fn check_end(
        &self,
        sweep: &Sweep,
        log: &Log,
        failure: &Failure,
        tree: &FileTree,
        after: &FileTree,
    ) -> Result<(), String> {
        ensure(matches!(sweep.code, Some(0..=2)), || "it does not end as it should".into())?;
        ensure(!sweep.err.contains("panicked"), || "it panics".into())?;
        for (file, text) in tree.logs() {
            ensure(!text.contains("panicked"), || format!("{} reports a panic: {text}", file.display()))?;
        }
        let processes = self.dir.processes();
        ensure(processes.is_empty(), || format!("{processes:?} outlive it"))?;
        if sweep.code == Some(0) {
            // Files that could not be removed are reported and left to the next sweep.
            let in_doubt = sweep.err.contains(" may be abandoned and was not removed: ");
            let checked = if in_doubt { &tree.without_private() } else { tree };
            return check_complete(checked, after)
                .map_err(|problem| format!("no error is reported, but {problem}"));
        }
        ensure(!failure.is_interrupt(), || "it does not retry the call".into())?;
        ensure(log.failed().next().is_some(), || "nothing failed".into())?;
        // If writing the messages fails, or those of the child and its log, nothing can be reported.
        let is_mute = failure.kind == "write" && (failure.process == "sweep" || failure.lasts);
        if is_mute && log.failed().any(|what| what.starts_with("pipe:")) {
            return Ok(());
        }
        let is_named = log.failed().any(|what| is_named(&sweep.err, what));
        ensure(is_named, || "what failed is not named".into())
    }

    /// Checks that no final result is wrong or incomplete.
    fn check_results(&self, tree: &FileTree, after: &FileTree) -> Result<(), String> {
        for (folder, row) in tree.results()?.into_iter().filter(|(_, row)| is_final(row)) {
            same(&folder, tree, after)
                .map_err(|problem| format!("{}, {}: {problem}", folder.display(), row["status"]))?;
        }
        Ok(())
    }
}

/// Checks that no process continues without its lock if the system has locks: others would take its files for
/// abandoned.
fn check_locks(sweep: &Sweep, log: &Log, failure: &Failure, calls: &Calls) -> Result<(), String> {
    let is_lost = failure.kind == "lock" && failure.error != libc::ENOLCK && log.failed().next().is_some();
    let of = (failure.process, failure.kind);
    let is_tried_again = || log.counts().get(&of) > calls.get(&of);
    ensure(!is_lost || sweep.code != Some(0) || is_tried_again(), || "it goes on without the lock".into())
}

fn is_final(row: &serde_json::Value) -> bool {
    ["ok", "oom", "diverged", "skipped"].iter().any(|status| row["status"] == *status)
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

fn check_kept<T: PartialEq>(
    before: &BTreeMap<PathBuf, T>,
    after: &BTreeMap<PathBuf, T>,
) -> Result<(), String> {
    let lost: Vec<_> = before.iter().filter(|(folder, time)| after.get(*folder) != Some(time)).collect();
    ensure(lost.is_empty(), || {
        format!("final results changed: {:?}", lost.iter().map(|(f, _)| f).collect::<Vec<_>>())
    })
}

/// Checks that no file is missing and none is left over.
fn check_complete(tree: &FileTree, after: &FileTree) -> Result<(), String> {
    same(Path::new(""), tree, after)
}

fn same(folder: &Path, tree: &FileTree, expected: &FileTree) -> Result<(), String> {
    let (found, expected) = (tree.deterministic(folder), expected.deterministic(folder));
    for (file, contents) in &expected {
        let Some(other) = found.get(file) else { return Err(format!("{} is missing", file.display())) };
        ensure(contents == other, || format!("{} differs:\n{other}\nnot\n{contents}", file.display()))?;
    }
    let strange: Vec<_> = found.keys().filter(|file| !expected.contains_key(*file)).collect();
    ensure(strange.is_empty(), || format!("there are {strange:?}"))
}

/// Whether an error message is about the subject of the failed call.
fn is_named(error: &str, what: &str) -> bool {
    let words: &[&str] = match what {
        _ if what.starts_with("pipe:") => {
            &["read the run's messages", "send a message to the parent", "cannot watch the parent"]
        }
        "memory" => &["refused by the system", "no thread could be started"],
        "thread" => &["no thread could be started"],
        "pipe" | "child" | "/proc/self/exe" => &["could not be started", "child"],
        _ => &[],
    };
    let names: Vec<_> = Path::new(what).iter().map(|name| name.to_string_lossy()).collect();
    let path = names[names.len().saturating_sub(2)..].join("/");
    if words.iter().any(|word| error.contains(word)) || error.contains(&path) {
        return true;
    }
    let names = names.iter().map(|name| own_name(name));
    // An error about a log file names its folder.
    let mut names: Vec<&str> = names.filter(|name| !["", "log.txt"].contains(name)).collect();
    let name = names.pop().unwrap_or_default();
    // A number alone is ambiguous, so its parent must be named too.
    let parent = if name.parse::<usize>().is_ok() { names.pop() } else { None };
    !name.is_empty() && error.contains(&parent.map_or(name.to_owned(), |parent| format!("{parent}/{name}")))
}

/// The final name of a file that has a temporary name until it is complete.
fn own_name(name: &str) -> &str {
    match name.strip_prefix('.').and_then(|name| name.split_once(".runner-")) {
        // For a probe file, only the folder matters.
        Some(("probe", _)) => "",
        Some((own, _)) => own,
        None => name,
    }
}
