//! Layers by name: a scope of any depth (`blocks.0`, `blocks.0.mlp`), what several of them begin with (`blocks`), or a
//! pattern, part by part (`blocks.*.mlp`, `blocks.[0-3]`). What is said of a layer holds for all in it of which nothing is
//! said more closely.

use std::collections::HashMap;

use glob::Pattern;

use super::{Scope, ScopeId};

/// What names mean in a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// By scope: which of the names is about it, the longest in parts, and of these the one that is no pattern.
    pub by_scope: Vec<Option<usize>>,
    /// Names that no scope goes by.
    pub unknown: Vec<usize>,
    /// Scopes that several patterns are about, none of which is closer than the others, and these patterns.
    pub contested: Vec<(ScopeId, Vec<usize>)>,
}

/// Looks for layers by their names, of which none is there twice.
pub fn named<'n>(scopes: &[Scope], names: impl IntoIterator<Item = &'n str>) -> Named {
    let names: Vec<&str> = names.into_iter().collect();
    let exact: HashMap<&str, usize> = names.iter().zip(0..).map(|(name, index)| (*name, index)).collect();
    let patterns: Vec<(usize, Vec<Pattern>)> =
        names.iter().enumerate().filter_map(|(index, name)| Some((index, pattern(name)?))).collect();
    let mut used = vec![false; names.len()];
    let (mut by_scope, mut contested) = (Vec::with_capacity(scopes.len()), Vec::new());
    for (scope, id) in scopes.iter().zip((0..).map(ScopeId)) {
        let mut closest: Option<Vec<usize>> = None;
        for beginning in beginnings(&scope.path) {
            let own = exact.get(beginning).copied();
            let alike = patterns.iter().filter(|(_, parts)| is_like(parts, beginning));
            let about: Vec<usize> = own.into_iter().chain(alike.map(|(index, _)| *index)).collect();
            about.iter().for_each(|&index| used[index] = true);
            if !about.is_empty() && closest.is_none() {
                closest = Some(if own.is_some() { about[..1].to_vec() } else { about });
            }
        }
        by_scope.push(closest.as_ref().map(|about| about[0]));
        contested.extend(closest.filter(|about| about.len() > 1).map(|about| (id, about)));
    }
    let unknown = (0..names.len()).filter(|&index| !used[index]).collect();
    Named { by_scope, unknown, contested }
}

/// `blocks.0.mlp`, `blocks.0`, `blocks`
fn beginnings(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('.').map(|(before, _)| before))
}

/// What each part of a name has to be like, if it is a pattern.
fn pattern(name: &str) -> Option<Vec<Pattern>> {
    if !name.contains(['*', '?', '[']) {
        return None;
    }
    name.split('.').map(|part| Pattern::new(part).ok()).collect()
}

fn is_like(pattern: &[Pattern], path: &str) -> bool {
    pattern.len() == path.split('.').count()
        && pattern.iter().zip(path.split('.')).all(|(pattern, part)| pattern.matches(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as graph;

    /// The layers that each of these names is about, in the small model of two blocks.
    fn about(names: &[&str]) -> Vec<Vec<String>> {
        let graph = graph::build(&testing::small().model, 1);
        let named = named(&graph.scopes, names.iter().copied());
        let of = |name: usize| {
            let scopes = graph.scopes.iter().zip(&named.by_scope).filter(|(_, by)| **by == Some(name));
            scopes.map(|(scope, _)| scope.path.clone()).collect()
        };
        (0..names.len()).map(of).collect()
    }

    #[test]
    fn a_name_holds_for_what_is_in_a_layer() {
        assert_eq!(about(&["embedding"]), [["embedding"]]);
        assert_eq!(about(&["blocks.1"]), [["blocks.1", "blocks.1.attention", "blocks.1.mlp"]]);
        assert_eq!(about(&["blocks.0.mlp"]), [["blocks.0.mlp"]]);
    }

    #[test]
    fn a_pattern_stands_for_several_names() {
        assert_eq!(about(&["*"])[0].len(), 2 + 2 * 3);
        assert_eq!(about(&["blocks.*.mlp"]), [["blocks.0.mlp", "blocks.1.mlp"]]);
        assert_eq!(about(&["blocks.[1-9]"]), about(&["blocks.1"]));
        assert_eq!(about(&["blocks.*"]), about(&["blocks"]));
        assert_eq!(about(&["*.mlp"]), [Vec::<String>::new()], "part by part");
    }

    #[test]
    fn what_is_said_more_closely_counts() {
        let [block, mlp] = about(&["blocks.0", "blocks.*.mlp"]).try_into().unwrap();
        assert_eq!(block, ["blocks.0", "blocks.0.attention"]);
        assert_eq!(mlp, ["blocks.0.mlp", "blocks.1.mlp"]);
        let [all, both, own] = about(&["*", "blocks.*", "blocks.1"]).try_into().unwrap();
        assert_eq!((all.len(), both.len(), own.len()), (2, 3, 3));
    }

    #[test]
    fn what_means_nothing_is_told_and_what_means_two_things_is_too() {
        let graph = graph::build(&testing::small().model, 1);
        let named = |names: &[&str]| named(&graph.scopes, names.iter().copied());
        assert_eq!(named(&["head", "tail", "blocks.[0", "blocks.*", "blocks.2"]).unknown, [1, 2, 4]);
        let second = (4..7).map(|scope| (ScopeId(scope), vec![0, 1]));
        assert_eq!(named(&["blocks.*", "*.1"]).contested, second.collect::<Vec<_>>());
        assert_eq!(named(&["blocks.*", "*.1", "blocks.1"]).contested, []);
    }
}
