//! Sweeps in which a system call fails, in the parent or in its children: the sweep reports the error, no result is
//! incomplete or wrong, final results stay, and the next sweep finishes and leaves no extra files.
//!
//! Needs `cc`, as the build of any Rust program does, and `LD_PRELOAD`.
#![allow(clippy::print_stdout)] // the figures of a long run

mod calls;
mod tree;
mod trial;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

pub(crate) use self::calls::build_shared_object;
use self::calls::{CallKind, Failure, PROCESSES, Shim};
use self::trial::{Outcome, Scenario, Trial};

/// If set, every call fails once, in all scenarios; otherwise only a sample.
const EVERY_CALL: &str = "RUNNER_TEST_EVERY_CALL";

/// Folders with concurrent trials: most of the time they wait for the disk.
const FOLDERS: usize = 6;

/// Sampled calls per scenario, process and kind.
const SAMPLED_CALLS: usize = 3;

/// A failure and the index of its scenario.
struct Case {
    scenario: usize,
    failure: Failure,
}

#[test]
fn sweep_survives_any_failing_system_call() {
    let all = std::env::var_os(EVERY_CALL).is_some();
    let shim = Shim::build();
    let scenarios: &[Scenario] = if all { &Scenario::ALL } else { &Scenario::ALL[..2] };
    let trials: Vec<Trial> = thread::scope(|scope| {
        let made: Vec<_> = (0..FOLDERS).map(|_| scope.spawn(|| Trial::new(&shim, scenarios))).collect();
        made.into_iter().map(|trial| trial.join().unwrap()).collect()
    });
    let cases = Mutex::new(cases(&trials[0], all).into_iter());
    let (figures, wrong) = (Mutex::new(Figures::default()), Mutex::new(Vec::new()));
    let work = |trial: Trial| {
        let mut trial = trial;
        loop {
            let Some(Case { scenario, failure }) = cases.lock().unwrap().next() else { break };
            match trial.try_failure(scenario, &failure) {
                Ok(outcome) => figures.lock().unwrap().add(&failure, outcome),
                Err(problem) => {
                    println!("{:?}, {failure}: {problem}\n", scenarios[scenario]);
                    wrong.lock().unwrap().push(failure.to_string());
                    // The state of the folder is unknown now.
                    trial = Trial::new(&shim, scenarios);
                }
            }
        }
    };
    thread::scope(|scope| trials.into_iter().for_each(|trial| drop(scope.spawn(|| work(trial)))));
    figures.into_inner().unwrap().print();
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} failures were not handled, see the output above: {wrong:#?}", wrong.len());
}

/// The failures to try: of every call in the scenarios, or of a sample.
fn cases(trial: &Trial, all: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (scenario, counted) in trial.calls().enumerate() {
        for (process, kind) in
            PROCESSES.into_iter().flat_map(|process| CallKind::ALL.iter().map(move |kind| (process, kind)))
        {
            let calls = counted.get(&(process, kind.name)).copied().unwrap_or_default();
            let failures =
                if all { every_call(process, kind, calls) } else { sample(process, kind, calls, scenario) };
            cases.extend(failures.into_iter().map(|failure| Case { scenario, failure }));
        }
    }
    cases
}

/// Failures spread over all calls of a kind, with its errors in turn, alternately of one call and of all calls from
/// there on; the next scenario uses others.
fn sample(process: &'static str, kind: &'static CallKind, calls: usize, scenario: usize) -> Vec<Failure> {
    let tried = SAMPLED_CALLS.min(calls);
    let at = |index: usize| {
        let number = 1 + (2 * index + 1 + scenario % 2) * (calls - 1) / (2 * tried);
        let lasts = (index + scenario) % 2 == 1;
        let error = kind.errors[(index + scenario) % if lasts { 1 } else { kind.errors.len() }];
        Failure { process, kind: kind.name, number, lasts, error }
    };
    (0..tried).map(at).collect()
}

/// Failures of every call of a kind, with its errors in turn: of that call, and of all calls from there on.
fn every_call(process: &'static str, kind: &'static CallKind, calls: usize) -> Vec<Failure> {
    let failure = |number, lasts, error| Failure { process, kind: kind.name, number, lasts, error };
    let once = |number| failure(number, false, kind.errors[number % kind.errors.len()]);
    (1..=calls).flat_map(|number| [once(number), failure(number, true, kind.errors[0])]).collect()
}

/// Counts of outcomes by process and kind.
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
