//! Selection of test cases: a covering sample, or with `RUNNER_TEST_FULL=1` all of them.
#![allow(clippy::print_stdout)] // Shown when a test fails, and with --nocapture.

use std::collections::BTreeSet;

use proptest::test_runner::{Config, RngSeed};

/// Set to 1: full products of cases, and ten times as many random cases.
const FULL: &str = "RUNNER_TEST_FULL";

/// The integer seed of random cases.
const SEED: &str = "RUNNER_TEST_SEED";

/// Whether all cases run.
pub fn full() -> bool {
    match std::env::var(FULL).as_deref() {
        Err(_) | Ok("" | "0") => false,
        Ok("1") => true,
        Ok(other) => panic!("{FULL} is {other:?}; write 1 to try every case, or unset it"),
    }
}

/// The seed of random cases. It is printed, so that a failing test shows it.
pub fn seed() -> u64 {
    let seed = std::env::var(SEED).map_or(0, |text| text.parse().expect("a seed is an integer"));
    println!("{SEED}={seed}");
    seed
}

/// `count` random cases in full, otherwise a tenth of them: at least 8, or `count` if it is smaller.
pub fn tenth(count: usize) -> usize {
    if full() { count } else { (count / 10).max(count.min(8)) }
}

/// A proptest configuration with this many cases and the seed.
pub fn random_cases(cases: usize) -> Config {
    Config {
        cases: u32::try_from(cases).expect("the number of cases fits in u32"),
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Combinations of one value index per axis: with `full` all of them, otherwise a covering array in which every
/// combination of `strength` values of different axes occurs. Most bugs need two or three values to meet.
pub fn combinations(axes: &[usize], strength: usize) -> Vec<Vec<usize>> {
    if full() { product(axes) } else { covering(axes, strength) }
}

/// Every combination; the last axis varies fastest.
pub fn product(axes: &[usize]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![Vec::new()], |combinations, &values| {
        let with =
            |combination: Vec<usize>| (0..values).map(move |value| [&combination[..], &[value]].concat());
        combinations.into_iter().flat_map(with).collect()
    })
}

/// (axis, value) pairs of some axes.
pub type Tuple = Vec<(usize, usize)>;

/// Every choice of `strength` axes with every combination of their values.
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

/// Greedy covering array. Each combination starts with an uncovered tuple; each further axis gets the value that
/// covers, or can still cover, most uncovered tuples. Deterministic.
pub fn covering(axes: &[usize], strength: usize) -> Vec<Vec<usize>> {
    let mut uncovered = tuples(axes, strength);
    let mut combinations = Vec::new();
    while let Some(first) = uncovered.first() {
        let mut chosen = vec![None; axes.len()];
        first.iter().for_each(|&(axis, value)| chosen[axis] = Some(value));
        for axis in 0..axes.len() {
            if chosen[axis].is_none() {
                chosen[axis] = Some(best_value(&chosen, axis, axes[axis], &uncovered));
            }
        }
        let combination: Vec<usize> =
            chosen.into_iter().map(|value| value.expect("all axes have one")).collect();
        uncovered.retain(|tuple| tuple.iter().any(|&(axis, value)| combination[axis] != value));
        combinations.push(combination);
    }
    combinations
}

/// The value of an axis that occurs in most uncovered tuples; nearly complete tuples weigh most.
fn best_value(chosen: &[Option<usize>], axis: usize, values: usize, uncovered: &BTreeSet<Tuple>) -> usize {
    let mut score = vec![0u64; values];
    for tuple in uncovered {
        let Some(&(_, value)) = tuple.iter().find(|valued| valued.0 == axis) else { continue };
        let others = tuple.iter().filter(|valued| valued.0 != axis);
        if others.clone().all(|&(other, value)| chosen[other].is_none_or(|chosen| chosen == value)) {
            let chosen_others = others.filter(|valued| chosen[valued.0].is_some()).count();
            score[value] += 1 << (8 * chosen_others);
        }
    }
    // The first maximum.
    (0..values).rev().max_by_key(|&value| score[value]).expect("an axis has values")
}
