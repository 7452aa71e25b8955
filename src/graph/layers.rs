//! Selection of layers by name: a scope of any depth (`blocks.0`, `blocks.0.mlp`), a common prefix (`blocks`), or a
//! glob pattern per path component (`blocks.*.mlp`, `blocks.[0-3]`). A setting of a layer holds for all scopes in it
//! that have no more specific setting.

use std::collections::HashMap;

use glob::Pattern;

use super::{Scope, ScopeId};

/// The scopes that layer names select.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerMatches {
    /// For each scope, the index of the most specific name that selects it: the one with most path components, and
    /// among these an exact name before a pattern.
    pub by_scope: Vec<Option<usize>>,
    /// Names that select no scope.
    pub unknown: Vec<usize>,
    /// Scopes selected by several equally specific patterns, with these patterns.
    pub contested: Vec<(ScopeId, Vec<usize>)>,
}

/// Matches layer names with scopes. Names must be unique.
pub fn named<'n>(scopes: &[Scope], names: impl IntoIterator<Item = &'n str>) -> LayerMatches {
    let names: Vec<&str> = names.into_iter().collect();
    let exact: HashMap<&str, usize> = names.iter().zip(0..).map(|(name, index)| (*name, index)).collect();
    let patterns: Vec<(usize, Vec<Pattern>)> =
        names.iter().enumerate().filter_map(|(index, name)| Some((index, pattern(name)?))).collect();
    let mut used = vec![false; names.len()];
    let (mut by_scope, mut contested) = (Vec::with_capacity(scopes.len()), Vec::new());
    for (scope, id) in scopes.iter().zip((0..).map(ScopeId)) {
        let mut most_specific: Option<Vec<usize>> = None;
        for prefix in prefixes(&scope.path) {
            let exact_name = exact.get(prefix).copied();
            let matching = patterns.iter().filter(|(_, parts)| matches_path(parts, prefix));
            let names: Vec<usize> = exact_name.into_iter().chain(matching.map(|(index, _)| *index)).collect();
            names.iter().for_each(|&index| used[index] = true);
            if !names.is_empty() && most_specific.is_none() {
                most_specific = Some(if exact_name.is_some() { names[..1].to_vec() } else { names });
            }
        }
        by_scope.push(most_specific.as_ref().map(|names| names[0]));
        contested.extend(most_specific.filter(|names| names.len() > 1).map(|names| (id, names)));
    }
    let unknown = (0..names.len()).filter(|&index| !used[index]).collect();
    LayerMatches { by_scope, unknown, contested }
}

/// `blocks.0.mlp`, `blocks.0`, `blocks`
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('.').map(|(before, _)| before))
}

/// The pattern of each path component, if the name is a pattern.
fn pattern(name: &str) -> Option<Vec<Pattern>> {
    if !name.contains(['*', '?', '[']) {
        return None;
    }
    name.split('.').map(|part| Pattern::new(part).ok()).collect()
}

fn matches_path(pattern: &[Pattern], path: &str) -> bool {
    pattern.len() == path.split('.').count()
        && pattern.iter().zip(path.split('.')).all(|(pattern, part)| pattern.matches(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as graph;

    /// The scopes that each of these names selects, in the small model with two blocks.
    fn selected(names: &[&str]) -> Vec<Vec<String>> {
        let graph = graph::build(&testing::small().model, 1);
        let named = named(&graph.scopes, names.iter().copied());
        let paths = |name: usize| {
            let scopes = graph.scopes.iter().zip(&named.by_scope).filter(|(_, by)| **by == Some(name));
            scopes.map(|(scope, _)| scope.path.clone()).collect()
        };
        (0..names.len()).map(paths).collect()
    }

    #[test]
    fn layer_name_selects_nested_scopes() {
        assert_eq!(selected(&["embedding"]), [["embedding"]]);
        assert_eq!(selected(&["blocks.1"]), [["blocks.1", "blocks.1.attention", "blocks.1.mlp"]]);
        assert_eq!(selected(&["blocks.0.mlp"]), [["blocks.0.mlp"]]);
    }

    #[test]
    fn pattern_selects_all_matching_scopes() {
        assert_eq!(selected(&["*"])[0].len(), 2 + 2 * 3);
        assert_eq!(selected(&["blocks.*.mlp"]), [["blocks.0.mlp", "blocks.1.mlp"]]);
        assert_eq!(selected(&["blocks.[1-9]"]), selected(&["blocks.1"]));
        assert_eq!(selected(&["blocks.*"]), selected(&["blocks"]));
        assert_eq!(selected(&["*.mlp"]), [Vec::<String>::new()], "patterns match per component");
    }

    #[test]
    fn most_specific_name_wins() {
        let [block, mlp] = selected(&["blocks.0", "blocks.*.mlp"]).try_into().unwrap();
        assert_eq!(block, ["blocks.0", "blocks.0.attention"]);
        assert_eq!(mlp, ["blocks.0.mlp", "blocks.1.mlp"]);
        let [all, both, own] = selected(&["*", "blocks.*", "blocks.1"]).try_into().unwrap();
        assert_eq!((all.len(), both.len(), own.len()), (2, 3, 3));
    }

    #[test]
    fn unknown_and_ambiguous_names_are_reported() {
        let graph = graph::build(&testing::small().model, 1);
        let named = |names: &[&str]| named(&graph.scopes, names.iter().copied());
        assert_eq!(named(&["head", "tail", "blocks.[0", "blocks.*", "blocks.2"]).unknown, [1, 2, 4]);
        let second = (4..7).map(|scope| (ScopeId(scope), vec![0, 1]));
        assert_eq!(named(&["blocks.*", "*.1"]).contested, second.collect::<Vec<_>>());
        assert_eq!(named(&["blocks.*", "*.1", "blocks.1"]).contested, []);
    }
}
