//! Which values a strategy keeps, once it is known which the model has: names that are none are mistakes, and each value comes
//! to be called by its full name.

use super::layers::there_are;
use graph::Graphs;
use spec::{Problem, RunConfig, Table, attach_span};

/// As errors name it.
const KEEP: &str = "strategy.keep";

/// With full names in the place of names. Fails where a name is no value's.
pub(super) fn resolve(mut config: RunConfig, tree: &Table) -> Result<RunConfig, Vec<Problem>> {
    let names = &config.strategy.keep;
    if names.is_empty() {
        return Ok(config);
    }
    let mut values = Graphs::of(&config).full.computed();
    if let Some(unknown) = names.iter().find(|name| !values.iter().any(|value| graph::goes_by(value, name))) {
        let ends = distinct_ends(&values, unknown.split('.').count());
        let message = format!("keep names `{unknown}`, which is nothing that this model computes");
        return Err(vec![attach_span(message, &[KEEP], tree, there_are(&ends, unknown))]);
    }
    values.retain(|value| names.iter().any(|name| graph::goes_by(value, name)));
    config.strategy.keep = values;
    Ok(config)
}

/// The last so many parts of names, each once: what blocks have alike is one.
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
    use spec::{Attention, Base, Lora, Strategy};

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
    fn values_are_called_by_their_full_names() {
        assert_eq!(keep(&[]).unwrap(), [""; 0]);
        let two = ["blocks.0.attention.out", "head.logits"];
        assert_eq!(keep(&["logits", "blocks.0.attention.out", "head.*ts"]).unwrap(), two);
        assert_eq!(keep(&["*.out"]).unwrap(), ["blocks.0.attention.out", "blocks.1.attention.out"]);
    }

    /// What the strategy itself makes of the model, and has to be computed, is there to be named; what it does without is not.
    #[test]
    fn values_are_those_that_the_strategy_computes() {
        let materialized = |strategy: &mut Strategy| strategy.attention = Attention::Materialized;
        let scores = keep_with(materialized, &["*.attention.scores"]).unwrap();
        assert_eq!(scores, ["blocks.0.attention.scores", "blocks.1.attention.scores"]);
        assert!(keep_with(materialized, &["lse"]).is_err());
        assert_eq!(keep(&["lse"]).unwrap(), ["blocks.0.attention.lse", "blocks.1.attention.lse"]);
        assert!(keep(&["scores"]).is_err());

        let adapted = |strategy: &mut Strategy| {
            let (targets, base) = (vec!["mlp.up".to_owned()], Base::Params);
            strategy.lora = Some(Lora { rank: 4, alpha: 8.0, targets, base, double_quantization: false });
        };
        assert_eq!(
            keep_with(adapted, &["up.scaled"]).unwrap(),
            ["blocks.0.mlp.up.scaled", "blocks.1.mlp.up.scaled"]
        );
        assert!(keep(&["up.scaled"]).is_err());
    }

    #[test]
    fn what_is_no_value_is_told_with_what_is() {
        assert_eq!(
            keep(&["logits", "logit"]).unwrap_err(),
            "keep names `logit`, which is nothing that this model computes; there are `logits`, `out`, `loss`, `lse`, `x`, \
             `normed` and 5 others"
        );
        let blocks = keep(&["blocks.9.mlp.hidden"]).unwrap_err();
        assert!(blocks.contains("there are `blocks.0.mlp.hidden`, `blocks.1.mlp.hidden`"), "{blocks}");
    }
}
