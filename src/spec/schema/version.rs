//! Planned keys and variants that this version does not support: the error states that, instead of suggesting the
//! nearest key. Each is listed beside the supported keys or variants.

use super::data::Data;
use super::model::Model;
use super::strategy::LATER_KEYS;
use crate::reader::declare::ChoiceTable;

/// Planned variants by the table that will contain them.
const VARIANTS: [(&str, &[&str]); 2] = [(Model::PATH, Model::LATER), (Data::PATH, Data::LATER)];

pub(crate) fn is_later_strategy_key(key: &str) -> bool {
    LATER_KEYS.contains(&key)
}

/// Whether this key of this table is planned; the path of a strategy's own keys is empty.
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
    fn supported_keys_are_not_listed_as_planned() {
        for key in crate::schema::strategy::STRATEGY_KEYS {
            assert!(!is_later_strategy_key(key), "`{key}` is supported: remove it from LATER_KEYS");
        }
        fn check<T: ChoiceTable>() {
            for variant in T::VARIANTS {
                assert!(
                    !T::LATER.contains(&variant.key),
                    "`{}` is supported: remove it from `later`",
                    variant.path
                );
            }
        }
        check::<Model>();
        check::<Data>();
    }
}
