//! Sweeps that are killed at any moment: what is final never changes, the next sweep finishes, and nothing is left behind.
#![allow(clippy::print_stdout)] // the figures of a long run

mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use place::{Place, wait_for};

/// How many moments are tried.
const KILLS: &str = "RUNNER_TEST_KILLS";
const KILLS_OF_EVERY_TEST: usize = 8;

/// Final results: what they hold and when they were written.
type Results = BTreeMap<PathBuf, (Vec<u8>, SystemTime)>;

fn final_results(place: &Place) -> Results {
    let results =
        place.results("tiny").into_iter().map(|(file, time)| (fs::read(&file).unwrap(), file, time));
    let is_final = |text: &[u8]| String::from_utf8_lossy(text).contains(r#""status": "ok""#);
    results.filter(|(text, ..)| is_final(text)).map(|(text, file, time)| (file, (text, time))).collect()
}

fn kill(process: &str) {
    // It may have ended by itself.
    let _ = Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status();
}

/// Starts a sweep and kills its parent, its child, or one and then the other, that long after its start.
fn kill_after(place: &Place, file: &str, moment: Duration, way: usize) {
    let mut sweep = place.command(&[file]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(moment);
    let (parent, child) = (sweep.id().to_string(), place.child());
    let kill_child = || child.iter().for_each(|child| kill(child));
    match way % 4 {
        0 => kill(&parent),
        1 => kill_child(),
        2 => {
            kill_child();
            std::thread::sleep(Duration::from_millis(u64::from(moment.subsec_micros() % 20)));
            kill(&parent);
        }
        _ => {
            kill(&parent);
            kill_child();
        }
    }
    sweep.wait().unwrap();
    wait_for("the child to end", || place.child().is_none());
}

#[test]
fn a_sweep_may_be_killed_at_any_moment() {
    let kills: usize =
        std::env::var(KILLS).map_or(KILLS_OF_EVERY_TEST, |kills| kills.parse().expect("a number of kills"));
    let place = Place::new();
    let file = place.experiment("tiny", 20);
    let begun = Instant::now();
    place.sweep(&[&file]).ended_with(0);
    let whole = begun.elapsed();
    let (mut unfinished, mut left) = (0, 0);
    for round in 0..kills {
        fs::remove_dir_all(place.path("results")).unwrap();
        // Spread over the whole sweep, in an order that mixes moments and ways.
        let moment = whole.mul_f64((round as f64 * 0.618_034).fract());
        kill_after(&place, &file, moment, round);
        let kept = final_results(&place);
        unfinished += usize::from(kept.len() < 6);
        left += usize::from(!place.left_behind().is_empty());

        place.sweep(&[&file]).ended_with(0);
        let all = final_results(&place);
        assert_eq!(all.len(), 6, "killed after {moment:?}, way {round}");
        assert!(kept.iter().all(|(file, result)| all.get(file) == Some(result)), "a result changed");
        let stays = place.left_behind();
        assert!(stays.is_empty(), "killed after {moment:?}, way {round}: {stays:?}");
        let table = place.table("tiny");
        assert!(table.len() == 8 && table.iter().all(|(_, status)| status == "ok"), "{table:?}");
    }
    println!("{kills} kills: {unfinished} sweeps cut short, {left} left something to the next");
    assert!(unfinished > kills / 2, "only {unfinished} of {kills} sweeps were cut short");
}
