//! What the experiment file has words for but this version cannot do. Naming them here lets a message say so,
//! where a spelling mistake would be told the nearest key.

/// Keys of strategies.
const STRATEGY_KEYS: [&str; 12] = [
    "attention",
    "empty_cache",
    "init",
    "loader",
    "loss_chunks",
    "master_weights",
    "offload",
    "optimizer_state",
    "parallel",
    "params",
    "place",
    "update",
];

/// Other keys, by the table that would hold them.
const KEYS: [(&str, &str); 10] = [
    ("data", "cifar"),
    ("data", "csv"),
    ("data", "idx"),
    ("data", "synthetic"),
    ("data", "tokens"),
    ("model", "mlp"),
    ("model", "sequential"),
    ("train.optimizer", "adam"),
    ("train.optimizer", "lion"),
    ("train.optimizer", "sgd"),
];

/// Values, by their key.
const VALUES: [(&str, &str); 4] =
    [("allocator", "caching"), ("recompute", "attention"), ("recompute", "mlp"), ("recompute", "norm")];

/// Keys that will take a list or a table besides the words they take now.
const COMPOSITE: [&str; 1] = ["recompute"];

pub(crate) fn is_later_strategy_key(key: &str) -> bool {
    STRATEGY_KEYS.contains(&key)
}

/// Whether a later version knows this key of this table; a strategy's own table is the empty path.
pub(crate) fn is_later_key(table: &str, key: &str) -> bool {
    if table.is_empty() { is_later_strategy_key(key) } else { KEYS.contains(&(table, key)) }
}

/// Whether a later version knows this word as a value of this key.
pub(crate) fn is_later_word(key: &str, word: &str) -> bool {
    VALUES.contains(&(key, word))
}

/// Whether a later version takes a list or a table for this key.
pub(crate) fn is_later_composite(key: &str) -> bool {
    COMPOSITE.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_both_here_and_later() {
        for key in super::super::sections::STRATEGY_KEYS {
            assert!(!is_later_strategy_key(key), "{key}");
        }
    }
}
