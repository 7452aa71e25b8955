//! What the experiment file has words for but this version cannot do: naming it lets a message say so, where a
//! spelling mistake would be told the nearest key. What is to come (variants, keys, words) is named where that stands
//! which is here.

use super::data::Data;
use super::declare::Choice;
use super::model::Model;
use super::optimizer::Optimizer;
use super::strategy::LATER_KEYS;

/// Variants and keys, by the table that would hold them.
const VARIANTS: [(&str, &[&str]); 3] =
    [(Model::PATH, Model::LATER), (Data::PATH, Data::LATER), (Optimizer::PATH, Optimizer::LATER)];

pub(crate) fn is_later_strategy_key(key: &str) -> bool {
    LATER_KEYS.contains(&key)
}

/// Whether a later version knows this key of this table; a strategy's own table is the empty path.
pub(crate) fn is_later_key(table: &str, key: &str) -> bool {
    if table.is_empty() {
        return is_later_strategy_key(key);
    }
    VARIANTS.iter().any(|(path, later)| *path == table && later.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_both_here_and_later() {
        for key in super::super::strategy::STRATEGY_KEYS {
            assert!(!is_later_strategy_key(key), "`{key}` is here: take it out of LATER_KEYS");
        }
        fn check<T: Choice>() {
            for variant in T::VARIANTS {
                assert!(
                    !T::LATER.contains(&variant.key),
                    "`{}` is here: take it out of `later`",
                    variant.path
                );
            }
        }
        check::<Model>();
        check::<Data>();
        check::<Optimizer>();
    }
}
