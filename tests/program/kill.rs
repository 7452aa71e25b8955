//! Sweeps that are killed at any moment: what is final never changes, the next sweep finishes, and nothing is left behind.
#![allow(clippy::print_stdout)] // the figures of a long run

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::place::{Place, wait_for};
use crate::sweeps::Sweep;

/// How many moments are tried: four of each kind of end and beginning, other ones with another seed.
const KILLS: &str = "RUNNER_TEST_KILLS";
const KILLS_OF_EVERY_TEST: usize = 4 * Killed::ALL.len() * Before::ALL.len();
const KILLS_IN_FULL: usize = 200;

/// Places that sweeps are killed in beside each other: most of the time they wait for the disk.
const PLACES: usize = 3;

/// Too little to measure the device's rates in, which takes ten times as long as such a run.
const MEMORY: [&str; 2] = ["--memory", "3 MiB"];

const RUNS: usize = 6;
const ROWS: usize = 8;

/// In a result.
const OK: &str = r#""status": "ok""#;

/// Final results: what they hold and when they were written.
type Results = BTreeMap<PathBuf, (Vec<u8>, SystemTime)>;

/// What was there before the sweep that is killed.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// All but two results.
    Some,
    /// All, two of which are to be tried again.
    Failures,
    /// All but one result.
    Most,
}

impl Before {
    const ALL: [Before; 4] = [Before::Nothing, Before::Some, Before::Failures, Before::Most];

    /// Undoes a part of a complete sweep, another one each time.
    fn prepare(self, place: &Place, round: usize) {
        let results: Vec<PathBuf> = final_results(place).into_keys().collect();
        let some = |count| (round..round + count).map(|index| &results[index % RUNS]);
        let forget = |result: &PathBuf| fs::remove_dir_all(result.parent().unwrap()).unwrap();
        match self {
            Before::Nothing => fs::remove_dir_all(place.path("results")).unwrap(),
            Before::Some => some(2).for_each(forget),
            Before::Most => some(1).for_each(forget),
            Before::Failures => some(2).for_each(|result| {
                let text = fs::read_to_string(result).unwrap();
                fs::write(result, text.replace(OK, r#""status": "failed""#)).unwrap();
            }),
        }
    }
}

/// Whose end comes before its time.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Parent,
    Child,
    /// While the parent sees to what has become of its child.
    ChildThenParent,
    ParentThenChild,
}

impl Killed {
    const ALL: [Killed; 4] =
        [Killed::Parent, Killed::Child, Killed::ChildThenParent, Killed::ParentThenChild];
}

/// A place, and what a complete sweep leaves there.
struct Tried {
    place: Place,
    file: String,
    files: BTreeSet<PathBuf>,
    /// About what a sweep takes, by what was there before: less after one that ended before its moment, more after others, so
    /// that few do however busy the machine becomes.
    takes: [Cell<Duration>; Before::ALL.len()],
    seed: f64,
}

impl Tried {
    fn new(seed: f64) -> Tried {
        let place = Place::new();
        let file = place.experiment("tiny", 20);
        let mut tried = Tried { place, file, files: BTreeSet::new(), takes: Default::default(), seed };
        tried.finish();
        tried.files = tried.place.files();
        tried.takes = Before::ALL.map(|before| {
            before.prepare(&tried.place, 0);
            let begun = Instant::now();
            tried.finish();
            Cell::new(begun.elapsed())
        });
        tried
    }

    fn sweep(&self) -> Command {
        self.place.command(&[&self.file, MEMORY[0], MEMORY[1]])
    }

    fn finish(&self) {
        Sweep::of(self.sweep().output().unwrap()).ended_with(0);
    }

    /// Starts a sweep and kills it that long after its start. Whether it had not ended by then.
    fn kill_after(&self, moment: Duration, killed: Killed) -> bool {
        let mut sweep = self.sweep().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(moment);
        let is_in_time = sweep.try_wait().unwrap().is_none();
        let child = self.place.child();
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
        wait_for("the child to end", || self.place.processes().is_empty());
        is_in_time
    }

    /// Returns whether the sweep was cut short, and whether it left something to the next.
    fn try_kill(&self, round: usize) -> (bool, bool) {
        let killed = Killed::ALL[round % Killed::ALL.len()];
        let kind = round / Killed::ALL.len() % Before::ALL.len();
        let before = Before::ALL[kind];
        // Spread over the whole sweep, in an order that mixes moments.
        let moment = self.takes[kind].get().mul_f64(((round as f64 + self.seed) * 0.618_034).fract());
        let case = format!("round {round}, {before:?} before, {killed:?} killed after {moment:?}");

        before.prepare(&self.place, round);
        let first = final_results(&self.place);
        let is_in_time = self.kill_after(moment, killed);
        self.takes[kind].update(|takes| takes.mul_f64(if is_in_time { 1.02 } else { 0.9 }));
        let kept = final_results(&self.place);
        assert!(are_kept(&first, &kept), "{case}: a result changed");
        let left = !self.place.left_behind().is_empty();

        self.finish();
        let all = final_results(&self.place);
        assert_eq!(all.len(), RUNS, "{case}");
        assert!(are_kept(&kept, &all), "{case}: a result changed");
        let files = self.place.files();
        let strange: Vec<_> = files.symmetric_difference(&self.files).collect();
        assert!(strange.is_empty(), "{case}: {strange:?}");
        let table = self.place.table("tiny");
        assert!(table.len() == ROWS && table.iter().all(|(_, status)| status == "ok"), "{case}: {table:?}");
        (kept.len() < RUNS, left)
    }
}

fn final_results(place: &Place) -> Results {
    let results =
        place.results("tiny").into_iter().map(|(file, time)| (fs::read(&file).unwrap(), file, time));
    let is_final = |text: &[u8]| String::from_utf8_lossy(text).contains(OK);
    results.filter(|(text, ..)| is_final(text)).map(|(text, file, time)| (file, (text, time))).collect()
}

fn are_kept(before: &Results, after: &Results) -> bool {
    before.iter().all(|(file, result)| after.get(file) == Some(result))
}

fn kill(process: &str) {
    // It may have ended by itself.
    let _ = Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status();
}

#[test]
fn a_sweep_may_be_killed_at_any_moment() {
    let usual = if testing::full() { KILLS_IN_FULL } else { KILLS_OF_EVERY_TEST };
    let kills: usize = std::env::var(KILLS).map_or(usual, |kills| kills.parse().expect("a number of kills"));
    // The last digits are enough to tell seeds apart, and few enough to be exact.
    let seed = (testing::seed() % 10_000) as f64;
    let (cut_short, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for first in 0..PLACES {
            let (cut_short, left) = (&cut_short, &left);
            scope.spawn(move || {
                let tried = Tried::new(seed);
                for round in (first..kills).step_by(PLACES) {
                    let (was_cut_short, has_left) = tried.try_kill(round);
                    cut_short.fetch_add(usize::from(was_cut_short), Ordering::Relaxed);
                    left.fetch_add(usize::from(has_left), Ordering::Relaxed);
                }
            });
        }
    });
    let (cut_short, left) = (cut_short.into_inner(), left.into_inner());
    println!("{kills} kills: {cut_short} sweeps cut short, {left} left something to the next");
    assert!(cut_short > kills / 2, "only {cut_short} of {kills} sweeps were cut short");
}
