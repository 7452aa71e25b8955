//! Sweeps in which a call to the system fails, in the parent or in its children: what went wrong is told, no result is torn or
//! wrong, what was final stays, and the next sweep finishes and leaves nothing behind.
//!
//! Needs `cc`, as the build of any Rust program does, and `LD_PRELOAD`.
#![allow(clippy::print_stdout)] // the figures of a long run

mod calls;
mod tree;
mod trial;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use self::calls::{Failure, Kind, PROCESSES, Shim};
use self::trial::{Outcome, Scene, Tried};

/// Set, every call fails, in more scenes; otherwise a few, spread.
const EVERY: &str = "RUNNER_TEST_EVERY_CALL";

/// Places that sweeps fail in beside each other: most of the time they wait for the disk.
const PLACES: usize = 6;

/// Of one kind in one process of one scene, where not every call is tried.
const FEW: usize = 3;

/// What fails, and in which of the scenes.
struct Case {
    scene: usize,
    failure: Failure,
}

#[test]
fn a_call_to_the_system_may_fail_at_any_moment() {
    let all = std::env::var_os(EVERY).is_some();
    let shim = Shim::build();
    let scenes: &[Scene] = if all { &Scene::ALL } else { &Scene::ALL[..2] };
    let places: Vec<Tried> = thread::scope(|scope| {
        let made: Vec<_> = (0..PLACES).map(|_| scope.spawn(|| Tried::new(&shim, scenes))).collect();
        made.into_iter().map(|place| place.join().unwrap()).collect()
    });
    let cases = Mutex::new(cases(&places[0], all).into_iter());
    let (figures, wrong) = (Mutex::new(Figures::default()), Mutex::new(Vec::new()));
    let work = |place: Tried| {
        let mut place = place;
        loop {
            let Some(Case { scene, failure }) = cases.lock().unwrap().next() else { break };
            match place.try_failure(scene, &failure) {
                Ok(outcome) => figures.lock().unwrap().add(&failure, outcome),
                Err(problem) => {
                    println!("{:?}, {failure}: {problem}\n", scenes[scene]);
                    wrong.lock().unwrap().push(failure.to_string());
                    // Nobody knows what is there now.
                    place = Tried::new(&shim, scenes);
                }
            }
        }
    };
    thread::scope(|scope| places.into_iter().for_each(|place| drop(scope.spawn(|| work(place)))));
    figures.into_inner().unwrap().print();
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} failures were not borne, as is told above: {wrong:#?}", wrong.len());
}

/// Of all calls that sweeps make in the scenes, all or a few.
fn cases(place: &Tried, all: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (scene, counted) in place.calls().enumerate() {
        for (process, kind) in
            PROCESSES.into_iter().flat_map(|process| Kind::ALL.iter().map(move |kind| (process, kind)))
        {
            let calls = counted.get(&(process, kind.name)).copied().unwrap_or_default();
            let failures = if all { every(process, kind, calls) } else { few(process, kind, calls, scene) };
            cases.extend(failures.into_iter().map(|failure| Case { scene, failure }));
        }
    }
    cases
}

/// Spread over all calls of a kind. With each error in turn, once and from there on; in another scene with others.
fn few(process: &'static str, kind: &'static Kind, calls: usize, scene: usize) -> Vec<Failure> {
    let tried = FEW.min(calls);
    let at = |index: usize| {
        let number = 1 + (2 * index + 1 + scene % 2) * (calls - 1) / (2 * tried);
        let lasts = (index + scene) % 2 == 1;
        let error = kind.errors[(index + scene) % if lasts { 1 } else { kind.errors.len() }];
        Failure { process, kind: kind.name, number, lasts, error }
    };
    (0..tried).map(at).collect()
}

/// All calls of a kind, with each error in turn, once, and from there on.
fn every(process: &'static str, kind: &'static Kind, calls: usize) -> Vec<Failure> {
    let failure = |number, lasts, error| Failure { process, kind: kind.name, number, lasts, error };
    let once = |number| failure(number, false, kind.errors[number % kind.errors.len()]);
    (1..=calls).flat_map(|number| [once(number), failure(number, true, kind.errors[0])]).collect()
}

/// What came of the failures, by process and kind.
#[derive(Default)]
struct Figures(BTreeMap<(&'static str, &'static str), BTreeMap<Outcome, usize>>);

impl Figures {
    fn add(&mut self, failure: &Failure, outcome: Outcome) {
        *self.0.entry((failure.process, failure.kind)).or_default().entry(outcome).or_default() += 1;
    }

    fn print(&self) {
        let mut all = 0;
        for ((process, kind), outcomes) in &self.0 {
            let tried: usize = outcomes.values().sum();
            println!("{process} {kind}: {tried} failures, {outcomes:?}");
            all += tried;
        }
        println!("{all} failures in all");
    }
}
