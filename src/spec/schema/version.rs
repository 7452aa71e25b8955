//! Planned variants that this version does not support: the error states that, instead of suggesting the
//! nearest key. Each is listed beside the supported variants.

use super::data::Data;
use super::model::Model;
use crate::reader::declare::ChoiceTable;

/// Planned variants by the table that will contain them.
const VARIANTS: [(&str, &[&str]); 2] = [(Model::PATH, Model::LATER), (Data::PATH, Data::LATER)];

/// Whether this key of this table is planned.
pub(crate) fn is_later_key(table: &str, key: &str) -> bool {
    VARIANTS.iter().any(|(path, later)| *path == table && later.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_keys_are_not_listed_as_planned() {
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
