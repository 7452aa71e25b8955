//! Values by name: the full one (`blocks.0.mlp.hidden`), as much of its end as is wanted (`mlp.hidden`, `logits`), or a pattern
//! of either, part by part (`blocks.*.x`).

use glob::Pattern;

use super::{Graph, ValueKind};

impl Graph {
    /// The full names of what the forward pass computes, in its order.
    pub fn computed(&self) -> Vec<String> {
        let computed = self.values.iter().filter(|value| value.kind == ValueKind::Activation);
        computed.map(|value| self.full_name(value)).collect()
    }
}

/// Whether a value of this full name goes by another name.
pub fn goes_by(value: &str, name: &str) -> bool {
    let [value, name] = [value, name].map(|path| path.split('.').collect::<Vec<_>>());
    let is_like = |part: &str, pattern: &str| {
        part == pattern || Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(part))
    };
    let ends = value.iter().rev().zip(name.iter().rev());
    name.len() <= value.len() && ends.into_iter().all(|(part, pattern)| is_like(part, pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as graph;

    fn known_by(name: &str) -> Vec<String> {
        let mut values = graph::build(&testing::small().model, 1).computed();
        values.retain(|value| goes_by(value, name));
        values
    }

    #[test]
    fn a_value_goes_by_the_end_of_its_name() {
        assert_eq!(known_by("logits"), ["head.logits"]);
        assert_eq!(known_by("head.logits"), ["head.logits"]);
        assert_eq!(known_by("mlp.hidden"), ["blocks.0.mlp.hidden", "blocks.1.mlp.hidden"]);
        assert_eq!(known_by("x").len(), 5);
        assert!(known_by("ogits").is_empty(), "part by part");
        assert!(known_by("model.head.logits").is_empty(), "there is no more to it");
        assert!(known_by("table").is_empty(), "a parameter is there in any case");
        assert!(known_by("").is_empty());
    }

    #[test]
    fn a_pattern_stands_for_parts_of_names() {
        assert_eq!(known_by("blocks.1.*.x"), ["blocks.1.attention.x", "blocks.1.mlp.x"]);
        assert_eq!(known_by("log*"), ["head.logits"]);
        assert!(known_by("[").is_empty());
    }
}
