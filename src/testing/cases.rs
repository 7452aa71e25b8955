//! How many cases tests try: a covering sample of them, or with `RUNNER_TEST_FULL=1` all of them.
#![allow(clippy::print_stdout)] // Shown when a test fails, and with --nocapture.

use std::collections::BTreeSet;

use proptest::test_runner::{Config, RngSeed};

/// Set to 1: full products of cases, and ten times as many random ones.
const FULL: &str = "RUNNER_TEST_FULL";

/// A whole number that random cases are drawn with.
const SEED: &str = "RUNNER_TEST_SEED";

/// Whether every case is tried.
pub fn full() -> bool {
    match std::env::var(FULL).as_deref() {
        Err(_) | Ok("" | "0") => false,
        Ok("1") => true,
        Ok(other) => panic!("{FULL} is {other:?}; write 1 to try every case, or unset it"),
    }
}

/// The seed of random cases, which is printed: a test that fails shows it.
pub fn seed() -> u64 {
    let seed = std::env::var(SEED).map_or(0, |text| text.parse().expect("a seed is a whole number"));
    println!("{SEED}={seed}");
    seed
}

/// `count` random cases in full, otherwise a tenth of them: at least 8, or `count` if it is smaller.
pub fn tenth(count: usize) -> usize {
    if full() { count } else { (count / 10).max(count.min(8)) }
}

/// Random tests of this many cases, drawn with the seed.
pub fn random_cases(cases: usize) -> Config {
    Config {
        cases: u32::try_from(cases).expect("a number of cases"),
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Combinations of one value of each axis, by positions: all of them in full, otherwise a covering array, in which every
/// `strength` values of different axes meet. Most mistakes need two or three values to meet.
pub fn combinations(axes: &[usize], strength: usize) -> Vec<Vec<usize>> {
    if full() { product(axes) } else { covering(axes, strength) }
}

/// Every combination, the last axis first to change.
pub fn product(axes: &[usize]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![Vec::new()], |combinations, &values| {
        let with =
            |combination: Vec<usize>| (0..values).map(move |value| [&combination[..], &[value]].concat());
        combinations.into_iter().flat_map(with).collect()
    })
}

/// Values of some axes, by axis.
pub type Tuple = Vec<(usize, usize)>;

/// Every choice of that many axes, with each choice of their values.
pub fn tuples(axes: &[usize], strength: usize) -> BTreeSet<Tuple> {
    let mut tuples = vec![Tuple::new()];
    for _ in 0..strength.min(axes.len()) {
        let longer = |tuple: Tuple| {
            let next = tuple.last().map_or(0, |&(axis, _)| axis + 1);
            let more = (next..axes.len()).flat_map(|axis| (0..axes[axis]).map(move |value| (axis, value)));
            more.map(move |valued| [&tuple[..], &[valued]].concat()).collect::<Vec<_>>()
        };
        tuples = tuples.into_iter().flat_map(longer).collect();
    }
    tuples.into_iter().collect()
}

/// Begins each combination with a tuple that has not met, and gives each further axis the value with which most others meet or
/// can still meet. The same axes give the same combinations.
pub fn covering(axes: &[usize], strength: usize) -> Vec<Vec<usize>> {
    let mut open = tuples(axes, strength);
    let mut combinations = Vec::new();
    while let Some(first) = open.first() {
        let mut chosen = vec![None; axes.len()];
        first.iter().for_each(|&(axis, value)| chosen[axis] = Some(value));
        for axis in 0..axes.len() {
            if chosen[axis].is_none() {
                chosen[axis] = Some(best(&chosen, axis, axes[axis], &open));
            }
        }
        let combination: Vec<usize> =
            chosen.into_iter().map(|value| value.expect("all axes have one")).collect();
        open.retain(|tuple| tuple.iter().any(|&(axis, value)| combination[axis] != value));
        combinations.push(combination);
    }
    combinations
}

/// The value of an axis that most open tuples have, of which those count most that are nearly complete.
fn best(chosen: &[Option<usize>], axis: usize, values: usize, open: &BTreeSet<Tuple>) -> usize {
    let mut promise = vec![0u64; values];
    for tuple in open {
        let Some(&(_, value)) = tuple.iter().find(|valued| valued.0 == axis) else { continue };
        let others = tuple.iter().filter(|valued| valued.0 != axis);
        if others.clone().all(|&(other, value)| chosen[other].is_none_or(|chosen| chosen == value)) {
            let met = others.filter(|valued| chosen[valued.0].is_some()).count();
            promise[value] += 1 << (8 * met);
        }
    }
    // The first of the best.
    (0..values).rev().max_by_key(|&value| promise[value]).expect("an axis has values")
}
