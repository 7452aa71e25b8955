//! Selection of values by name: the full name (`blocks.0.mlp.hidden`), a suffix of it (`mlp.hidden`, `logits`), or a
//! glob pattern per path component (`blocks.*.x`).

use glob::Pattern;

use super::{Graph, ValueKind};

impl Graph {
    /// The full names of the activations, in execution order.
    pub fn computed(&self) -> Vec<String> {
        let computed = self.values.iter().filter(|value| value.kind == ValueKind::Activation);
        computed.map(|value| self.full_name(value)).collect()
    }
}

/// Whether a name or pattern selects the value with this full name.
pub fn goes_by(value: &str, name: &str) -> bool {
    let [value, name] = [value, name].map(|path| path.split('.').collect::<Vec<_>>());
    let matches_component = |part: &str, pattern: &str| {
        part == pattern || Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(part))
    };
    let ends = value.iter().rev().zip(name.iter().rev());
    name.len() <= value.len() && ends.into_iter().all(|(part, pattern)| matches_component(part, pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as graph;

    fn selected(name: &str) -> Vec<String> {
        let mut values = graph::build(&testing::small().model, 1).computed();
        values.retain(|value| goes_by(value, name));
        values
    }

    #[test]
    fn name_suffix_selects_values() {
        assert_eq!(selected("logits"), ["head.logits"]);
        assert_eq!(selected("head.logits"), ["head.logits"]);
        assert_eq!(selected("mlp.hidden"), ["blocks.0.mlp.hidden", "blocks.1.mlp.hidden"]);
        assert_eq!(selected("x").len(), 5);
        assert!(selected("ogits").is_empty(), "suffixes start at a component");
        assert!(selected("model.head.logits").is_empty(), "longer than the full name");
        assert!(selected("table").is_empty(), "only activations can be selected");
        assert!(selected("").is_empty());
    }

    #[test]
    fn pattern_selects_values_per_component() {
        assert_eq!(selected("blocks.1.*.x"), ["blocks.1.attention.x", "blocks.1.mlp.x"]);
        assert_eq!(selected("log*"), ["head.logits"]);
        assert!(selected("[").is_empty());
    }
}
