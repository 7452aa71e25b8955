//! Pairwise combinations: every value of a key occurs with every compatible value of every other key. Most bugs in the
//! interaction of keys need two values. The number of combinations grows with the longest lists of values, hardly with
//! the number of keys.

use std::collections::BTreeSet;

use super::choice::Choice;
use super::keys::{Key, position};

/// The positions of a key and of its value.
pub type Valued = (usize, usize);

/// A partial choice of values: `None` for undecided keys.
type Partial = Vec<Option<usize>>;

/// Greedy: each combination starts with an uncovered pair; each further key gets the value that covers most uncovered
/// pairs. Deterministic.
pub fn pairwise(keys: &[Key]) -> Vec<Choice> {
    let mut uncovered: BTreeSet<(Valued, Valued)> = legal_pairs(keys).into_iter().collect();
    let mut combinations = Vec::new();
    while let Some(&(a, b)) = uncovered.first() {
        let mut chosen = legal(keys, &[a, b]).expect("only legal pairs are uncovered");
        for key in 0..keys.len() {
            if chosen[key].is_none() {
                chosen = best_choice(keys, &chosen, key, &uncovered);
            }
        }
        let values: Vec<usize> = chosen.into_iter().map(|value| value.expect("all keys have one")).collect();
        uncovered.retain(|&(a, b)| values[a.0] != a.1 || values[b.0] != b.1);
        combinations.push(Choice(values));
    }
    combinations
}

/// All compatible pairs of values of different keys.
pub fn legal_pairs(keys: &[Key]) -> Vec<(Valued, Valued)> {
    pairs(keys).into_iter().filter(|&(a, b)| legal(keys, &[a, b]).is_some()).collect()
}

pub fn pairs(keys: &[Key]) -> Vec<(Valued, Valued)> {
    let values = |key: usize| (0..keys[key].values.len()).map(move |value| (key, value));
    let all: Vec<Valued> = (0..keys.len()).flat_map(values).collect();
    let mut pairs = Vec::new();
    for &a in &all {
        pairs.extend(all.iter().filter(|b| a.0 < b.0).map(|&b| (a, b)));
    }
    pairs
}

/// These values with those that they require of other keys; `None` if they are incompatible.
pub fn legal(keys: &[Key], values: &[Valued]) -> Option<Partial> {
    let mut chosen = vec![None; keys.len()];
    values.iter().for_each(|&(key, value)| chosen[key] = Some(value));
    with_required(keys, chosen)
}

fn with_required(keys: &[Key], chosen: Partial) -> Option<Partial> {
    let needs = keys.iter().zip(&chosen).filter_map(|(key, value)| Some(key.needs_of((*value)?)));
    for need in needs.flatten() {
        let other = position(keys, need.key);
        let satisfies = |value: usize| need.one_of.contains(&keys[other].values[value]);
        match chosen[other] {
            Some(value) if satisfies(value) => {}
            Some(_) => return None,
            // Tries every satisfying value, because each has its own requirements.
            None => {
                return (0..keys[other].values.len()).filter(|&value| satisfies(value)).find_map(|value| {
                    let mut more = chosen.clone();
                    more[other] = Some(value);
                    with_required(keys, more)
                });
            }
        }
    }
    Some(chosen)
}

/// Decides one more key: the value that covers most uncovered pairs now, then most later. The default is always
/// compatible.
fn best_choice(
    keys: &[Key],
    chosen: &Partial,
    key: usize,
    uncovered: &BTreeSet<(Valued, Valued)>,
) -> Partial {
    let with = |value: usize| {
        let mut more = chosen.clone();
        more[key] = Some(value);
        Some((value, with_required(keys, more)?))
    };
    let score = |(value, more): &(usize, Partial)| {
        let has = |valued: Valued| more[valued.0] == Some(valued.1);
        let own = (key, *value);
        let now = uncovered.iter().filter(|(a, b)| has(*a) && has(*b)).count();
        let later = uncovered.iter().filter(|(a, b)| *a == own || *b == own).count();
        (now, later)
    };
    // `max_by_key` returns the last maximum; the reversed order gives the first.
    let candidates = (0..keys[key].values.len()).rev().filter_map(with);
    candidates.max_by_key(score).expect("the default is compatible with every choice").1
}
