//! The names of keys.

use std::fmt;

use super::data::Data;
use super::model::Model;
use super::optimizer::Optimizer;
use super::schedule::Schedule;
use super::strategy::STRATEGY_KEYS;
use crate::reader::declare::ChoiceTable;

/// A key of a run: `train.batch_size`, or `accumulate` for one of the strategy's own keys (which may also be
/// written `strategy.accumulate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    segments: Vec<String>,
}

/// Largest number of segments. The last segment of a deeper key is the rest of its name, which is unknown anyway: a
/// quoted key could otherwise nest tables too deep for recursion.
const DEEPEST: usize = 16;

/// Keys whose table has layer names as keys, dots included: a layer and a part of it are two keys.
pub(crate) const BY_LAYER: [&str; 1] = ["place"];

/// The table of a strategy's own keys within a run.
pub(crate) const STRATEGY: &str = "strategy";

impl Key {
    pub(crate) fn new(dotted: &str) -> Key {
        let mut segments: Vec<String> = dotted.splitn(DEEPEST, '.').map(str::to_string).collect();
        if is_strategy_key(&segments[0]) {
            segments.insert(0, STRATEGY.to_string());
        }
        if segments[0] == STRATEGY && segments.len() > 3 && BY_LAYER.contains(&segments[1].as_str()) {
            let layer = segments.split_off(2).join(".");
            segments.push(layer);
        }
        Key { segments }
    }

    pub(crate) fn segments(&self) -> &[String] {
        &self.segments
    }

    /// Whether the other key is a table that contains this key.
    pub(crate) fn is_below(&self, other: &Key) -> bool {
        self.segments.len() > other.segments.len() && self.segments.starts_with(&other.segments)
    }

    /// Whether both cannot be set independently: one contains the other, or they belong to different variants of one
    /// choice.
    pub(crate) fn conflicts(&self, other: &Key) -> bool {
        let common = self.segments.iter().zip(&other.segments).take_while(|(a, b)| a == b).count();
        let within = common == self.segments.len() || common == other.segments.len();
        within || is_choice(&self.segments[..common])
    }
}

fn is_strategy_key(name: &str) -> bool {
    STRATEGY_KEYS.contains(&name)
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.segments.len() > 1 && self.segments[0] == STRATEGY;
        f.write_str(&self.segments[usize::from(own)..].join("."))
    }
}

/// Whether the table at this path contains exactly one of several variants.
pub(crate) fn is_choice(path: &[String]) -> bool {
    const CHOICES: [&str; 4] = [Model::PATH, Data::PATH, Optimizer::PATH, Schedule::PATH];
    CHOICES.iter().any(|choice| choice.split('.').eq(path)) || is_choice_of_a_strategy(path)
}

/// The same for `recompute` of a strategy: in a run, in `[defaults]` or in `[strategies.NAME]`.
fn is_choice_of_a_strategy(path: &[String]) -> bool {
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(names[..], [STRATEGY | "defaults", "recompute"] | ["strategies", _, "recompute"])
}

/// Whether a key belongs to the experiment, not to single runs.
pub(crate) fn is_experiment_key(key: &Key) -> bool {
    const TOP: [&str; 9] =
        ["name", "baseline", "extends", "requires", "target", "plan", "defaults", "strategies", "sweep"];
    let segments = key.segments();
    TOP.contains(&segments[0].as_str())
        || (segments[0] == "measure" && segments.get(1).is_some_and(|k| k == "repeats"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategy_keys_have_short_names() {
        assert_eq!(Key::new("strategy.accumulate"), Key::new("accumulate"));
        assert_eq!(Key::new("accumulate").segments(), ["strategy", "accumulate"]);
        assert_eq!(Key::new("strategy.accumulate").to_string(), "accumulate");
        assert_eq!(Key::new("train.seed").to_string(), "train.seed");
        assert_eq!(Key::new("place.blocks.0.mlp").segments(), ["strategy", "place", "blocks.0.mlp"]);
        assert!(!Key::new("place.blocks.0.mlp").conflicts(&Key::new("place.blocks.0")));
        assert!(Key::new("place.blocks.0").conflicts(&Key::new("place")));
    }

    #[test]
    fn deep_keys_keep_their_full_name() {
        let deep = ["train"; 100_000].join(".");
        let key = Key::new(&deep);
        assert_eq!((key.segments().len(), key.to_string()), (DEEPEST, deep));
    }

    #[test]
    fn keys_conflict_if_nested_or_of_different_variants() {
        let conflict = |a: &str, b: &str| Key::new(a).conflicts(&Key::new(b));
        assert!(conflict("train.seed", "train.seed"));
        assert!(conflict("evaluation", "evaluation.every"));
        assert!(conflict("train.optimizer.adamw.lr", "train.optimizer.lion.lr"));
        assert!(conflict("recompute.every", "recompute.segments"));
        assert!(!conflict("train.optimizer.adamw.lr", "train.optimizer.adamw.beta1"));
        assert!(!conflict("train.seed", "train.batch_size"));
    }
}
