//! The tests' list of keys against `spec`, and the combinations built from it.

use std::collections::BTreeSet;

use spec::{KeywordEnum, ModelFamily, STRATEGY_KEYS, Strategy, variants};
use testing::choice::Choice;
use testing::keys::{KEYS, Key, Need, Same, meets_needs, position};
use testing::models::DENSE;
use testing::pairwise::{Valued, legal, legal_pairs, pairs, pairwise};
use testing::{RECOMPUTED_WITHOUT_SEARCH, choice, full, small, small_with, with};

#[test]
fn every_key_of_a_strategy_is_tried() {
    for name in STRATEGY_KEYS {
        assert!(KEYS.iter().any(|key| key.name == *name), "`{name}` is missing in src/testing/keys.rs");
    }
}

/// A model outside of the list would be trained by no combination of keys.
#[test]
fn every_model_is_tried() {
    let models: Vec<_> = KEYS.iter().filter(|key| key.name == "model").flat_map(|key| key.values).collect();
    let kinds = variants().into_iter().filter_map(|table| table.strip_prefix("model."));
    for kind in kinds.filter(|kind| *kind != small().model.name()) {
        let table = format!("{{ {kind} = ");
        assert!(
            models.iter().any(|model| model.starts_with(&table)),
            "`{kind}` is missing in src/testing/models.rs"
        );
    }
    for family in ModelFamily::ALL {
        let folder = format!("/{}/", family.keyword());
        assert!(
            models.iter().any(|model| model.contains(&folder)),
            "{family:?} is missing in src/testing/models.rs"
        );
    }
}

/// A model in the wrong part of the list would have no adapters, or fail on a GPU.
#[test]
fn dense_models_are_those_without_experts() {
    let model = position(KEYS, "model");
    for (value, written) in KEYS[model].values.iter().enumerate() {
        let config = small_with(&choice(&[(model, value)]));
        let has_experts = config.model.transformer().is_some_and(|model| model.experts.is_some());
        let is_dense = config.model.transformer().is_some() && !has_experts;
        assert_eq!(DENSE.contains(written), is_dense, "{written}");
    }
}

/// A loss that no model of the list has would be trained by no combination of keys.
#[test]
fn every_loss_is_trained() {
    let files =
        glob::glob("src/ops/**/*.rs").unwrap().map(|file| std::fs::read_to_string(file.unwrap()).unwrap());
    let losses = files.flat_map(|text| {
        let named = text.split("impl Loss for ").skip(1);
        named.map(|rest| rest.split_whitespace().next().unwrap().to_owned()).collect::<Vec<_>>()
    });
    let model = position(KEYS, "model");
    let models = (0..KEYS[model].values.len()).map(|value| small_with(&choice(&[(model, value)])).model);
    let trained: BTreeSet<String> = models
        .flat_map(|model| graph::build(&model, 1).nodes)
        .filter(|node| node.op.as_loss().is_some())
        .map(|node| format!("{:?}", node.op).split('(').next().unwrap().to_owned())
        .collect();
    assert_eq!(losses.collect::<BTreeSet<_>>(), trained);
}

/// Keywords that need data which the combinations lack, with the test that trains them.
const TRAINED_ELSEWHERE: [(&str, &str); 1] = [
    // `held_samples::pixels_have_the_results_of_numbers`: pixels in files.
    ("input_dtype", "u8"),
];

/// The keywords of a key are read from the error for an unknown one.
#[test]
fn every_keyword_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, small().to_toml("run", "plain")).unwrap();
    let mut words = 0;
    for Key { name, values, .. } in KEYS {
        let error = plan::expand(&file, &[format!("{name} = \"?\"")], &|_| None).unwrap_err();
        let message = error.to_string();
        let offered = message.split("must be ").nth(1).and_then(|rest| rest.split(", not ").next());
        let offered = offered.unwrap_or_else(|| panic!("no values are offered: {message}"));
        let tokens = |text: &'static str| text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let tried: BTreeSet<&str> = values.iter().flat_map(|value| tokens(value)).collect();
        // A size is an example, not a keyword.
        for word in offered.split('"').skip(1).step_by(2).filter(|word| !word.contains(' ')) {
            let is_tried = tried.contains(word) || TRAINED_ELSEWHERE.contains(&(name, word));
            assert!(is_tried, "`{name} = \"{word}\"` is missing in src/testing/keys.rs");
            words += 1;
        }
    }
    assert!(words > 10, "the errors offer keywords");
}

#[test]
fn last_recompute_values_need_search() {
    let key = KEYS.iter().find(|key| key.name == "recompute").unwrap();
    for (value, text) in key.values.iter().enumerate() {
        let searches = text.contains("budget") || text.contains("auto");
        assert_eq!(searches, value >= RECOMPUTED_WITHOUT_SEARCH, "{text}");
    }
}

#[test]
fn first_values_are_defaults() {
    assert_eq!(small_with(&Choice::plain()).strategy, Strategy::default());
}

/// Fails if `spec` has a rule between keys that the list lacks, or the list has one that `spec` lacks.
#[test]
fn key_needs_match_spec() {
    let plain = small_with(&Choice::plain());
    let refusal = |choice: &Choice| with(&plain, choice).err().map(|error| error.to_string());
    let (together, apart): (Vec<_>, Vec<_>) =
        pairs(KEYS).into_iter().partition(|&(a, b)| legal(KEYS, &[a, b]).is_some());
    // A few combinations cover all compatible pairs.
    let accepted = match full() {
        true => together.into_iter().map(|(a, b)| choice(&[a, b])).collect(),
        false => pairwise(KEYS),
    };
    for choice in accepted {
        assert_eq!(refusal(&choice), None, "{:?}", choice.settings());
    }
    assert!(!apart.is_empty(), "some values do not go together");
    for (a, b) in apart {
        let choice = choice(&[a, b]);
        assert!(refusal(&choice).is_some(), "nothing is wrong with {:?}", choice.settings());
    }
}

/// The pairs of values that some combination contains.
fn covered(keys: &[Key], combinations: &[Choice]) -> BTreeSet<(Valued, Valued)> {
    let has = |choice: &Choice, (key, value): Valued| choice.0[key] == value;
    let met = |&(a, b): &(Valued, Valued)| combinations.iter().any(|choice| has(choice, a) && has(choice, b));
    pairs(keys).into_iter().filter(met).collect()
}

/// Checks that a list of combinations is legal, complete and short.
fn check(keys: &[Key]) {
    let combinations = pairwise(keys);
    for choice in &combinations {
        for (key, Key { name, .. }) in keys.iter().enumerate() {
            assert!(meets_needs(keys, &choice.0, key), "`{name}` lacks what it needs: {choice:?}");
        }
    }
    let covered = covered(keys, &combinations);
    for (a, b) in legal_pairs(keys) {
        let word = |(key, value): Valued| format!("{} = {}", keys[key].name, keys[key].values[value]);
        assert!(covered.contains(&(a, b)), "{} and {} never meet", word(a), word(b));
    }
    let mut lengths: Vec<usize> = keys.iter().map(|key| key.values.len()).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let (found, least) = (combinations.len(), lengths[0] * lengths[1]);
    assert!(found <= 3 * least, "{found} combinations, where no fewer than {least} would do");
}

#[test]
fn every_compatible_pair_is_covered() {
    check(KEYS);
}

/// Many keys, each of which needs certain values of the one before.
#[test]
fn combinations_stay_few_with_many_keys() {
    const NAMES: &str = "abcdefghijklmnopqr";
    const ONE_OF: &[&str] = &["0", "1", "2"];
    let key = |at: usize| -> Key {
        let need = |at: usize| Need { of: &["1", "2", "3"], key: &NAMES[at - 1..at], one_of: ONE_OF };
        let needs = (1..=at).rev().take(1).map(need).collect::<Vec<_>>();
        let values = &["0", "1", "2", "3"];
        Key { name: &NAMES[at..at + 1], values, needs: needs.leak(), same: Same::Bitwise }
    };
    let keys: Vec<Key> = (0..NAMES.len()).map(key).collect();
    assert!(legal(&keys, &[(3, 3), (4, 1)]).is_none() && legal(&keys, &[(3, 3), (4, 0)]).is_some());
    check(&keys);
}
