//! Covering arrays of cases.

use std::collections::BTreeSet;

use testing::cases::{covering, product, tuples};

#[test]
fn covering_arrays_are_complete_and_small() {
    for (axes, strength, most) in [
        (&[7, 3, 6, 2, 2, 2, 4, 6][..], 3, 400),
        (&[7, 3, 6, 2, 2, 2, 4, 6], 2, 60),
        (&[2, 2, 2, 2, 2], 3, 14),
        (&[5, 1, 3], 2, 15),
        (&[4], 3, 4),
    ] {
        let combinations = covering(axes, strength);
        for tuple in tuples(axes, strength) {
            let meets =
                |combination: &Vec<usize>| tuple.iter().all(|&(axis, value)| combination[axis] == value);
            assert!(combinations.iter().any(meets), "{tuple:?} never meet in {axes:?}");
        }
        assert!(combinations.len() <= most, "{} combinations of {axes:?}", combinations.len());
    }
}

#[test]
fn products_have_every_combination_once() {
    let all = product(&[2, 3, 4]);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 24);
    assert_eq!((all.len(), &all[1]), (24, &vec![0, 0, 1]));
}
