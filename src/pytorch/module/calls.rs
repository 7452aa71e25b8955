//! The calls of a model: layers and blocks, and which of them are checkpointed.

use std::ops::Range;

use graph::Graph;
use spec::{BlockPart, Recompute};

/// The call of a module: the caller's variable holds the input until it returns.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) nodes: Range<usize>,
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) checkpointed: bool,
    /// The number of the block, if it is one.
    pub(super) block: Option<usize>,
    /// A segment of `checkpoint_sequential`, which is a call in training only.
    pub(super) segment: bool,
    /// The calls in it, if it is not a plain sequence of operations.
    pub(super) calls: Vec<Call>,
}

/// The calls of a model: layers, with their blocks and parts of blocks checkpointed as the strategy has it.
pub(super) fn calls(recompute: Recompute, graph: &Graph) -> Vec<Call> {
    let layer = |index: usize| graph.scopes[graph.nodes[index].scope.index()].layer;
    let layers = split_by(0..graph.nodes.len(), layer);
    let is_block = |nodes: &Range<usize>| graph.scopes[layer(nodes.start).index()].block;
    let first = layers.iter().position(is_block).unwrap_or(layers.len());
    let end = layers.iter().rposition(is_block).map_or(first, |last| last + 1);
    let plain = |nodes: &Range<usize>| Call::new(graph, nodes.clone(), false, Vec::new());
    let blocks = checkpointed_blocks(recompute, graph, &layers[first..end]);
    layers[..first].iter().map(plain).chain(blocks).chain(layers[end..].iter().map(plain)).collect()
}

fn checkpointed_blocks(recompute: Recompute, graph: &Graph, blocks: &[Range<usize>]) -> Vec<Call> {
    let block = |(index, nodes): (usize, &Range<usize>)| {
        let checkpointed = match recompute {
            Recompute::Block | Recompute::Save(_) => true,
            Recompute::Every(every) => index.is_multiple_of(every),
            _ => false,
        };
        let parts = parts_of_block(recompute, graph, nodes.clone());
        Call { block: Some(index), ..Call::new(graph, nodes.clone(), checkpointed, parts) }
    };
    let mut calls: Vec<Call> = blocks.iter().enumerate().map(block).collect();
    if let Recompute::Segments(segments) = recompute {
        // `checkpoint_sequential`: the last segment takes the rest and is not checkpointed.
        let length = blocks.len() / segments;
        let rest = calls.split_off(length * (segments - 1));
        let segment = |blocks: &[Call]| {
            let nodes = blocks[0].nodes.start..blocks[blocks.len() - 1].nodes.end;
            Call { segment: true, ..Call::new(graph, nodes, true, blocks.to_vec()) }
        };
        calls = calls.chunks(length).map(segment).collect();
        let nodes = rest[0].nodes.start..rest[rest.len() - 1].nodes.end;
        calls.push(Call { segment: true, ..Call::new(graph, nodes, false, rest) });
    }
    calls
}

/// Attention and feed-forward layer of a block.
fn parts_of_block(recompute: Recompute, graph: &Graph, nodes: Range<usize>) -> Vec<Call> {
    let path = |index: usize| graph.scopes[graph.nodes[index].scope.index()].path.as_str();
    let part = |nodes: Range<usize>| {
        let part =
            if path(nodes.start).ends_with("attention") { BlockPart::Attention } else { BlockPart::Mlp };
        let checkpointed = matches!(recompute, Recompute::Parts(parts) if parts.contains(part));
        Call::new(graph, nodes, checkpointed, Vec::new())
    };
    split_by(nodes, path).into_iter().map(part).collect()
}

/// Splits a range where a key changes.
fn split_by<K: PartialEq>(range: Range<usize>, key: impl Fn(usize) -> K) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for index in range {
        match ranges.last_mut().filter(|last| key(last.start) == key(index)) {
            Some(last) => last.end = index + 1,
            None => ranges.push(index..index + 1),
        }
    }
    ranges
}

impl Call {
    fn new(graph: &Graph, nodes: Range<usize>, checkpointed: bool, calls: Vec<Call>) -> Call {
        let input = graph.nodes[nodes.start].inputs[0];
        let output = graph.nodes[nodes.end - 1].outputs[0];
        Call { nodes, input, output, checkpointed, block: None, segment: false, calls }
    }
}
