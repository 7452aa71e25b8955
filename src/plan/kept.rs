//! Resolves the names and patterns of `keep` to the full names of the model's values. Unknown names are errors.

use std::collections::HashSet;

use super::layers::suggest_names;
use graph::Graphs;
use spec::{Problem, RunConfig, Table, attach_span};

/// The key, as named in errors.
const KEEP: &str = "strategy.keep";

/// Replaces names by full names. Fails if a name matches no value.
pub(super) fn resolve(mut config: RunConfig, tree: &Table) -> Result<RunConfig, Vec<Problem>> {
    let names = &config.strategy.keep;
    if names.is_empty() {
        return Ok(config);
    }
    let mut values = Graphs::of(&config).full.computed();
    if let Some(unknown) = names.iter().find(|name| !values.iter().any(|value| graph::goes_by(value, name))) {
        let ends = distinct_ends(&values, unknown.split('.').count());
        let message = format!("keep: unknown value `{unknown}`: this model does not compute it");
        return Err(vec![attach_span(message, &[KEEP], tree, suggest_names(&ends, unknown))]);
    }
    // Several values of one layer may share a name.
    let mut seen = HashSet::new();
    values.retain(|value| names.iter().any(|name| graph::goes_by(value, name)) && seen.insert(value.clone()));
    config.strategy.keep = values;
    Ok(config)
}

/// The last `parts` components of the names, without duplicates: equal values of all blocks become one.
fn distinct_ends(names: &[String], parts: usize) -> Vec<&str> {
    let mut ends: Vec<&str> = Vec::new();
    for name in names {
        let start = name.rmatch_indices('.').nth(parts - 1).map_or(0, |(dot, _)| dot + 1);
        if !ends.contains(&&name[start..]) {
            ends.push(&name[start..]);
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{Attention, Lora, Strategy};

    fn keep(names: &[&str]) -> Result<Vec<String>, String> {
        keep_with(|_| (), names)
    }

    fn keep_with(change: impl Fn(&mut Strategy), names: &[&str]) -> Result<Vec<String>, String> {
        let mut config = testing::small();
        change(&mut config.strategy);
        config.strategy.keep = names.iter().map(|name| (*name).to_owned()).collect();
        let resolved = resolve(config, &Table::default()).map_err(|problems| problems[0].reason());
        resolved.map(|config| config.strategy.keep)
    }

    #[test]
    fn keep_is_resolved_to_full_names() {
        assert_eq!(keep(&[]).unwrap(), [""; 0]);
        let two = ["blocks.0.attention.out", "head.logits"];
        assert_eq!(keep(&["logits", "blocks.0.attention.out", "head.*ts"]).unwrap(), two);
        assert_eq!(keep(&["*.out"]).unwrap(), ["blocks.0.attention.out", "blocks.1.attention.out"]);
    }

    /// A strategy changes which values are computed. Only computed values can be kept.
    #[test]
    fn only_values_that_the_strategy_computes_can_be_kept() {
        let materialized = |strategy: &mut Strategy| strategy.attention = Attention::Materialized;
        let scores = keep_with(materialized, &["*.attention.scores"]).unwrap();
        assert_eq!(scores, ["blocks.0.attention.scores", "blocks.1.attention.scores"]);
        assert!(keep_with(materialized, &["lse"]).is_err());
        assert_eq!(keep(&["lse"]).unwrap(), ["blocks.0.attention.lse", "blocks.1.attention.lse"]);
        assert!(keep(&["scores"]).is_err());

        let adapted = |strategy: &mut Strategy| {
            strategy.lora = Some(Lora::new(4, 8.0, vec!["mlp.up".to_owned()]));
        };
        assert_eq!(
            keep_with(adapted, &["up.scaled"]).unwrap(),
            ["blocks.0.mlp.up.scaled", "blocks.1.mlp.up.scaled"]
        );
        assert!(keep(&["up.scaled"]).is_err());
    }

    #[test]
    fn keep_error_suggests_similar_names() {
        assert_eq!(
            keep(&["logits", "logit"]).unwrap_err(),
            "keep: unknown value `logit`: this model does not compute it; use `logits`, `out`, `loss`, `lse`, `x`, \
             `normed` or one of 5 others"
        );
        let blocks = keep(&["blocks.9.mlp.hidden"]).unwrap_err();
        assert!(blocks.contains("use `blocks.0.mlp.hidden`, `blocks.1.mlp.hidden`"), "{blocks}");
    }
}
