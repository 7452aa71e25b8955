//! Sweeps under which calls fail, and what must hold of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::failing_calls::calls::{Calls, Failure, Log, Shim};
use crate::failing_calls::tree::{Tree, written};
use crate::place::Place;
use crate::sweeps::Sweep;

/// Longer than a sweep takes here, by far, also on a busy machine: one that takes longer waits for what never comes.
const PATIENCE: Duration = Duration::from_secs(120);

/// What data must be old for its digest to be kept.
const SETTLED: Duration = Duration::from_millis(3100);

/// Too little to measure the device's rates in, which takes ten times as long as such a run.
const MEMORY: [&str; 2] = ["--memory", "3 MiB"];

/// What there is before a sweep, and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scene {
    /// Nothing is there.
    Nothing,
    /// A final result, and one to be tried again.
    Failed,
    /// All is there, and measured again.
    Fresh,
    /// All is there, and dumped.
    Dump,
    /// All is there, and more comes beside it.
    Set,
}

impl Scene {
    pub(crate) const ALL: [Scene; 5] = [Scene::Nothing, Scene::Failed, Scene::Fresh, Scene::Dump, Scene::Set];

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Scene::Nothing | Scene::Failed => &[],
            Scene::Fresh => &["--fresh"],
            Scene::Dump => &["--dump", "results/dumps"],
            Scene::Set => &["--set", "train.seed=1"],
        }
    }

    /// What of a complete sweep there is before.
    fn before(self, complete: &Tree) -> Tree {
        let mut before = complete.clone();
        let results = complete.results().unwrap();
        match self {
            Scene::Nothing => before.remove(Path::new("")),
            Scene::Failed => before.set_status(&results[1].0, "failed"),
            Scene::Fresh | Scene::Dump | Scene::Set => {}
        }
        before
    }
}

/// What came of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// There was no such call this time.
    NotMet,
    /// All runs were done.
    Borne,
    /// The sweep said what could not be done.
    Told,
}

/// A scene in a place.
struct Stage {
    scene: Scene,
    before: Tree,
    /// What a sweep leaves that nothing fails in.
    after: Tree,
    calls: Calls,
}

/// A place and its scenes.
pub(crate) struct Tried<'a> {
    shim: &'a Shim,
    place: Place,
    file: String,
    stages: Vec<Stage>,
}

impl<'a> Tried<'a> {
    pub(crate) fn new(shim: &'a Shim, scenes: &[Scene]) -> Tried<'a> {
        let place = Place::new();
        let file = place.experiment("tiny", 2);
        let text = fs::read_to_string(place.path(&file)).unwrap().replace("text.txt", "*.txt");
        let two = text.split("[strategies.accumulate]").next().unwrap().replace("repeats = 2", "");
        place.write(&file, two);
        place.write("more.txt", "More.");
        thread::sleep(SETTLED);
        let mut tried = Tried { shim, place, file, stages: Vec::new() };
        tried.finish(Scene::Nothing).unwrap();
        let complete = tried.tree();
        for &scene in scenes {
            let before = scene.before(&complete);
            before.write(&tried.results());
            let sweep = tried.swept(scene, None).unwrap();
            sweep.ended_with(0);
            let calls = Log::take(&tried.log()).counts();
            tried.stages.push(Stage { scene, before, after: tried.tree(), calls });
        }
        tried
    }

    fn results(&self) -> PathBuf {
        self.place.path("results")
    }

    fn tree(&self) -> Tree {
        Tree::read(&self.results())
    }

    fn sweep(&self, scene: Scene) -> std::process::Command {
        let mut command = self.place.command(&[&self.file, MEMORY[0], MEMORY[1]]);
        command.args(scene.arguments()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Sweeps without failures.
    fn finish(&self, scene: Scene) -> Result<(), String> {
        let sweep = Sweep::of(self.sweep(scene).output().unwrap());
        if sweep.code == Some(0) {
            Ok(())
        } else {
            Err(format!("the next sweep says {:?}: {}", sweep.code, sweep.err))
        }
    }

    fn log(&self) -> PathBuf {
        self.place.path("calls.log")
    }

    /// What a sweep and its children call, by scene.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Calls> {
        self.stages.iter().map(|stage| &stage.calls)
    }

    fn swept(&self, scene: Scene, failure: Option<&Failure>) -> Result<Sweep, String> {
        let mut command = self.sweep(scene);
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
    /// What must hold and does not.
    pub(crate) fn try_failure(&self, scene: usize, failure: &Failure) -> Result<Outcome, String> {
        let Stage { scene, before, after, calls } = &self.stages[scene];
        before.write(&self.results());
        let first = self.finals(before)?;
        let sweep = self.swept(*scene, Some(failure))?;
        let log = Log::take(&self.log());
        let tree = self.tree();
        let at_its_end = |problem| {
            format!(
                "{problem}\ncode {:?}, failed {:?}, out: {}\nerr: {}",
                sweep.code,
                log.failed().collect::<Vec<_>>(),
                sweep.out,
                sweep.err
            )
        };
        self.check_end(&sweep, &log, failure, &tree, after).map_err(at_its_end)?;
        check_locks(&sweep, &log, failure, calls).map_err(at_its_end)?;
        self.check_results(&tree, after).map_err(at_its_end)?;
        let kept = self.finals(&tree)?;
        if *scene != Scene::Fresh {
            check_kept(&first, &kept).map_err(at_its_end)?;
        }

        self.finish(*scene).map_err(at_its_end)?;
        let tree = self.tree();
        self.check_results(&tree, after).map_err(at_its_end)?;
        check_complete(&tree, after)
            .map_err(|problem| at_its_end(format!("after the next sweep, {problem}")))?;
        if *scene != Scene::Fresh {
            check_kept(&kept, &self.finals(&tree)?).map_err(at_its_end)?;
        }
        Ok(match sweep.code {
            _ if log.failed().next().is_none() => Outcome::NotMet,
            Some(0) => Outcome::Borne,
            _ => Outcome::Told,
        })
    }

    /// Final results, and when each was written.
    fn finals(&self, tree: &Tree) -> Result<BTreeMap<PathBuf, Option<std::time::SystemTime>>, String> {
        let results = tree.results()?.into_iter().filter(|(_, row)| is_final(row));
        Ok(results.map(|(folder, _)| (folder.clone(), written(&self.results(), &folder))).collect())
    }

    fn check_end(
        &self,
        sweep: &Sweep,
        log: &Log,
        failure: &Failure,
        tree: &Tree,
        after: &Tree,
    ) -> Result<(), String> {
        ensure(matches!(sweep.code, Some(0..=2)), || "it does not end as it should".into())?;
        ensure(!sweep.err.contains("panicked"), || "it panics".into())?;
        for (file, text) in tree.logs() {
            ensure(!text.contains("panicked"), || format!("{} says of a panic: {text}", file.display()))?;
        }
        let processes = self.place.processes();
        ensure(processes.is_empty(), || format!("{processes:?} outlive it"))?;
        if sweep.code == Some(0) {
            // What cannot be removed is told, and left to the next.
            let in_doubt = sweep.err.contains(" may be abandoned and was not removed: ");
            let told = if in_doubt { &tree.without_private() } else { tree };
            return check_complete(told, after).map_err(|problem| format!("nothing is told, but {problem}"));
        }
        ensure(!failure.is_interrupt(), || "it does not try again".into())?;
        ensure(log.failed().next().is_some(), || "nothing failed".into())?;
        // What fails is its own voice, or its child's and then the log as well.
        let is_mute = failure.kind == "write" && (failure.process == "sweep" || failure.lasts);
        if is_mute && log.failed().any(|what| what.starts_with("pipe:")) {
            return Ok(());
        }
        let is_named = log.failed().any(|what| is_named(&sweep.err, what));
        ensure(is_named, || "what failed is not named".into())
    }

    /// Nothing final is wrong or in parts.
    fn check_results(&self, tree: &Tree, after: &Tree) -> Result<(), String> {
        for (folder, row) in tree.results()?.into_iter().filter(|(_, row)| is_final(row)) {
            same(&folder, tree, after)
                .map_err(|problem| format!("{}, {}: {problem}", folder.display(), row["status"]))?;
        }
        Ok(())
    }
}

/// Nothing goes on without a lock where there are locks: others would take what it has for left behind.
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

/// Nothing is missing and nothing is left behind.
fn check_complete(tree: &Tree, after: &Tree) -> Result<(), String> {
    same(Path::new(""), tree, after)
}

fn same(folder: &Path, tree: &Tree, expected: &Tree) -> Result<(), String> {
    let (found, expected) = (tree.lasting(folder), expected.lasting(folder));
    for (file, contents) in &expected {
        let Some(other) = found.get(file) else { return Err(format!("{} is missing", file.display())) };
        ensure(contents == other, || format!("{} differs:\n{other}\nnot\n{contents}", file.display()))?;
    }
    let strange: Vec<_> = found.keys().filter(|file| !expected.contains_key(*file)).collect();
    ensure(strange.is_empty(), || format!("there are {strange:?}"))
}

/// Whether an error is about what failed.
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
    let place = names[names.len().saturating_sub(2)..].join("/");
    if words.iter().any(|word| error.contains(word)) || error.contains(&place) {
        return true;
    }
    let names = names.iter().map(|name| own_name(name));
    // Who has a folder has its log: it is the folder that is not to be had.
    let mut names: Vec<&str> = names.filter(|name| !["", "log.txt"].contains(name)).collect();
    let name = names.pop().unwrap_or_default();
    // A number alone says too little.
    let parent = if name.parse::<usize>().is_ok() { names.pop() } else { None };
    !name.is_empty() && error.contains(&parent.map_or(name.to_owned(), |parent| format!("{parent}/{name}")))
}

/// What something is called that has another name until it is complete.
fn own_name(name: &str) -> &str {
    match name.strip_prefix('.').and_then(|name| name.split_once(".runner-")) {
        // All that counts is the folder.
        Some(("probe", _)) => "",
        Some((own, _)) => own,
        None => name,
    }
}
