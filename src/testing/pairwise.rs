//! Few combinations in which every value of a key meets every value of every other key: most mistakes in how keys go
//! together need two of them. Their number grows with the longest lists of values, hardly with the number of keys.

use std::collections::BTreeSet;

use super::keys::{Choice, Key, position};

/// A key's position and its value's.
pub type Valued = (usize, usize);

/// Values of some keys; those of others are open.
type Partial = Vec<Option<usize>>;

/// Starts each combination with a pair that none has yet, and gives each further key the value that meets most others
/// for the first time. The same list gives the same combinations.
pub fn pairwise(keys: &[Key]) -> Vec<Choice> {
    let mut open: BTreeSet<(Valued, Valued)> = legal_pairs(keys).into_iter().collect();
    let mut combinations = Vec::new();
    while let Some(&(a, b)) = open.first() {
        let mut chosen = legal(keys, &[a, b]).expect("only legal pairs are open");
        for key in 0..keys.len() {
            if chosen[key].is_none() {
                chosen = best(keys, &chosen, key, &open);
            }
        }
        let values: Vec<usize> = chosen.into_iter().map(|value| value.expect("all keys have one")).collect();
        open.retain(|&(a, b)| values[a.0] != a.1 || values[b.0] != b.1);
        combinations.push(Choice(values));
    }
    combinations
}

/// All pairs of values of different keys that go together.
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

/// These values with what they need of other keys, if they go together.
pub fn legal(keys: &[Key], values: &[Valued]) -> Option<Partial> {
    let mut chosen = vec![None; keys.len()];
    values.iter().for_each(|&(key, value)| chosen[key] = Some(value));
    with_needs(keys, chosen)
}

fn with_needs(keys: &[Key], chosen: Partial) -> Option<Partial> {
    let in_need = keys.iter().zip(&chosen).filter_map(|(key, value)| Some(key.needs_of((*value)?)));
    for need in in_need.flatten() {
        let other = position(keys, need.key);
        let serves = |value: usize| need.one_of.contains(&keys[other].values[value]);
        match chosen[other] {
            Some(value) if serves(value) => {}
            Some(_) => return None,
            // Each of the values that serve, as others may need less of them.
            None => {
                return (0..keys[other].values.len()).filter(|&value| serves(value)).find_map(|value| {
                    let mut more = chosen.clone();
                    more[other] = Some(value);
                    with_needs(keys, more)
                });
            }
        }
    }
    Some(chosen)
}

/// With one more key, whose value meets most that it has not met yet, now or else later. Its default goes with anything.
fn best(keys: &[Key], chosen: &Partial, key: usize, open: &BTreeSet<(Valued, Valued)>) -> Partial {
    let with = |value: usize| {
        let mut more = chosen.clone();
        more[key] = Some(value);
        Some((value, with_needs(keys, more)?))
    };
    let promise = |(value, more): &(usize, Partial)| {
        let has = |valued: Valued| more[valued.0] == Some(valued.1);
        let own = (key, *value);
        let now = open.iter().filter(|(a, b)| has(*a) && has(*b)).count();
        let later = open.iter().filter(|(a, b)| *a == own || *b == own).count();
        (now, later)
    };
    // The last of the best is taken: in reverse, the first.
    let candidates = (0..keys[key].values.len()).rev().filter_map(with);
    candidates.max_by_key(promise).expect("the default goes with what is chosen").1
}
