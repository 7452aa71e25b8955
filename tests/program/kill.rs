//! Sweeps that are killed at any moment: final results never change, and the next sweep finishes and leaves no extra
//! files.
#![allow(clippy::print_stdout)] // the figures of a long run

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::sweeps::Sweep;
use crate::test_folder::{TestFolder, wait_for};

/// The number of kills: by default four per combination of `Killed` and `InitialResults`. The seed varies their times.
const KILLS: &str = "RUNNER_TEST_KILLS";
const KILLS_OF_EVERY_TEST: usize = 4 * Killed::ALL.len() * InitialResults::ALL.len();
const KILLS_IN_FULL: usize = 200;

/// Folders with concurrent trials: most of the time they wait for the disk.
const FOLDERS: usize = 3;

/// Too little memory to measure device rates, which takes ten times as long as such a run.
const MEMORY: [&str; 2] = ["--memory", "3 MiB"];

const RUNS: usize = 6;
const ROWS: usize = 8;

/// The status of a successful result, as its file has it.
const OK: &str = r#""status": "ok""#;

/// Contents and modification times of final results, by path.
type Results = BTreeMap<PathBuf, (Vec<u8>, SystemTime)>;

/// The results that exist before the sweep that is killed.
#[derive(Clone, Copy, Debug)]
enum InitialResults {
    Nothing,
    /// All except two results.
    Some,
    /// All results, two of them failures that will be retried.
    Failures,
    /// All except one result.
    Most,
}

impl InitialResults {
    const ALL: [InitialResults; 4] =
        [InitialResults::Nothing, InitialResults::Some, InitialResults::Failures, InitialResults::Most];

    /// Removes a part of a complete sweep, a different part in each round.
    fn prepare(self, dir: &TestFolder, round: usize) {
        let results: Vec<PathBuf> = final_results(dir).into_keys().collect();
        let some = |count| (round..round + count).map(|index| &results[index % RUNS]);
        let forget = |result: &PathBuf| fs::remove_dir_all(result.parent().unwrap()).unwrap();
        match self {
            InitialResults::Nothing => fs::remove_dir_all(dir.path("results")).unwrap(),
            InitialResults::Some => some(2).for_each(forget),
            InitialResults::Most => some(1).for_each(forget),
            InitialResults::Failures => some(2).for_each(|result| {
                let text = fs::read_to_string(result).unwrap();
                fs::write(result, text.replace(OK, r#""status": "failed""#)).unwrap();
            }),
        }
    }
}

/// The processes that are killed, in order.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Parent,
    Child,
    /// The parent is killed while it handles the end of its child.
    ChildThenParent,
    ParentThenChild,
}

impl Killed {
    const ALL: [Killed; 4] =
        [Killed::Parent, Killed::Child, Killed::ChildThenParent, Killed::ParentThenChild];
}

/// A test folder and the files that a complete sweep leaves in it.
struct KillTrial {
    dir: TestFolder,
    file: String,
    files: BTreeSet<PathBuf>,
    /// The approximate duration of a sweep, by initial results. Lowered after a sweep that ended before its kill and
    /// raised after others, so that few sweeps end early however busy the machine is.
    durations: [Cell<Duration>; InitialResults::ALL.len()],
    seed: f64,
}

impl KillTrial {
    fn new(seed: f64) -> KillTrial {
        let dir = TestFolder::new();
        let file = dir.experiment("tiny", 20);
        // One of the runs has two processes.
        let text = fs::read_to_string(dir.path(&file)).unwrap();
        dir.write(&file, text.replace("accumulate = 2\n", "accumulate = 2\nparallel.data = 2\n"));
        let mut trial = KillTrial { dir, file, files: BTreeSet::new(), durations: Default::default(), seed };
        trial.finish();
        trial.files = trial.dir.files();
        trial.durations = InitialResults::ALL.map(|before| {
            before.prepare(&trial.dir, 0);
            let begun = Instant::now();
            trial.finish();
            Cell::new(begun.elapsed())
        });
        trial
    }

    fn sweep(&self) -> Command {
        self.dir.command(&[&self.file, MEMORY[0], MEMORY[1]])
    }

    fn finish(&self) {
        Sweep::of(self.sweep().output().unwrap()).ended_with(0);
    }

    /// Starts a sweep and kills it after `moment`. Returns whether it was still running then.
    fn kill_after(&self, moment: Duration, killed: Killed) -> bool {
        let mut sweep = self.sweep().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(moment);
        let was_running = sweep.try_wait().unwrap().is_none();
        let children = self.dir.children();
        let child = children.get(moment.subsec_micros() as usize % children.len().max(1));
        let kill_child = || child.iter().for_each(|child| kill(child));
        match killed {
            Killed::Parent => sweep.kill().unwrap(),
            Killed::Child => kill_child(),
            Killed::ChildThenParent => {
                kill_child();
                thread::sleep(Duration::from_micros(u64::from(moment.subsec_nanos() % 20_000)));
                sweep.kill().unwrap();
            }
            Killed::ParentThenChild => {
                sweep.kill().unwrap();
                kill_child();
            }
        }
        sweep.wait().unwrap();
        wait_for("the child to end", || self.dir.processes().is_empty());
        was_running
    }

    /// Returns whether the sweep was cut short, and whether it left private files behind.
    fn try_kill(&self, round: usize) -> (bool, bool) {
        let killed = Killed::ALL[round % Killed::ALL.len()];
        let kind = round / Killed::ALL.len() % InitialResults::ALL.len();
        let before = InitialResults::ALL[kind];
        // Golden-ratio sequence: spreads the times evenly over the sweep, in mixed order.
        let moment = self.durations[kind].get().mul_f64(((round as f64 + self.seed) * 0.618_034).fract());
        let case = format!("round {round}, {before:?} before, {killed:?} killed after {moment:?}");

        before.prepare(&self.dir, round);
        let first = final_results(&self.dir);
        let was_running = self.kill_after(moment, killed);
        self.durations[kind].update(|durations| durations.mul_f64(if was_running { 1.05 } else { 0.7 }));
        let kept = final_results(&self.dir);
        assert!(are_kept(&first, &kept), "{case}: a result changed");
        let left = !self.dir.left_behind().is_empty();

        self.finish();
        let all = final_results(&self.dir);
        assert_eq!(all.len(), RUNS, "{case}");
        assert!(are_kept(&kept, &all), "{case}: a result changed");
        let files = self.dir.files();
        let strange: Vec<_> = files.symmetric_difference(&self.files).collect();
        assert!(strange.is_empty(), "{case}: {strange:?}");
        let table = self.dir.table("tiny");
        assert!(table.len() == ROWS && table.iter().all(|(_, status)| status == "ok"), "{case}: {table:?}");
        (kept.len() < RUNS, left)
    }
}

fn final_results(dir: &TestFolder) -> Results {
    let results = dir.results("tiny").into_iter().map(|(file, time)| (fs::read(&file).unwrap(), file, time));
    let is_final = |text: &[u8]| String::from_utf8_lossy(text).contains(OK);
    results.filter(|(text, ..)| is_final(text)).map(|(text, file, time)| (file, (text, time))).collect()
}

fn are_kept(before: &Results, after: &Results) -> bool {
    before.iter().all(|(file, result)| after.get(file) == Some(result))
}

fn kill(process: &str) {
    // The process may have ended by itself.
    let _ = Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status();
}

#[test]
fn sweep_survives_kill_at_any_moment() {
    let usual = if testing::full() { KILLS_IN_FULL } else { KILLS_OF_EVERY_TEST };
    let kills: usize = std::env::var(KILLS).map_or(usual, |kills| kills.parse().expect("a number of kills"));
    // The last digits distinguish seeds and are exact as f64.
    let seed = (testing::seed() % 10_000) as f64;
    let (cut_short, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for first in 0..FOLDERS {
            let (cut_short, left) = (&cut_short, &left);
            scope.spawn(move || {
                let trial = KillTrial::new(seed);
                for round in (first..kills).step_by(FOLDERS) {
                    let (was_cut_short, has_left) = trial.try_kill(round);
                    cut_short.fetch_add(usize::from(was_cut_short), Ordering::Relaxed);
                    left.fetch_add(usize::from(has_left), Ordering::Relaxed);
                }
            });
        }
    });
    let (cut_short, left) = (cut_short.into_inner(), left.into_inner());
    println!("{kills} kills: {cut_short} sweeps cut short, {left} left something to the next");
    // Kills after the end of a sweep test nothing. How many there are depends on the load of the machine.
    assert!(cut_short > kills / 4, "only {cut_short} of {kills} sweeps were cut short");
}
