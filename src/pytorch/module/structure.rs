//! What a module derives from its graph: parameters, buffers, and when values are used last.

use graph::{Graph, Node, ValueKind};
use ops::{AttentionConfig, Frequencies, Op, Rotary, Shape};

/// The configuration of an attention operation, fused or written out.
pub(crate) fn attending(op: &Op) -> Option<&AttentionConfig> {
    match op {
        Op::Attention(attention) => Some(&attention.attending),
        Op::MaterializedAttention(attention) => Some(&attention.attending),
        _ => None,
    }
}

/// By value: the rows of the matrices that a stacked parameter is split into, if PyTorch's modules keep them apart.
/// Queries, keys and values are one matrix, as in GPT-2, if attention reads them unchanged in all blocks; gate and up never
/// are.
pub(super) fn separate_parts(graph: &Graph) -> Vec<Vec<usize>> {
    let rotates = graph.nodes.iter().any(|node| matches!(node.op, Op::Rotary(_)));
    let mut separate = vec![Vec::new(); graph.values.len()];
    for node in &graph.nodes {
        let Op::Linear(linear) = &node.op else { continue };
        let reader = graph.nodes.iter().find(|reader| reader.inputs.first() == Some(&node.outputs[0]));
        let is_fused = reader.is_none_or(|reader| match (attending(&reader.op), &reader.op) {
            (Some(attending), _) => attending.heads == attending.kv_heads && !rotates,
            (None, Op::QkNorm(_) | Op::Rotary(_) | Op::Gated(_)) => false,
            (None, _) => true,
        });
        if is_fused {
            continue;
        }
        let weight = &graph.values[node.inputs[1]];
        let member = ops::Member { stacked: weight.stacked, ..ops::Member::new(weight.ty.shape, false, 0) };
        let rows: Vec<usize> = member.matrices().map(|rows| rows.len()).collect();
        separate[node.inputs[1]].clone_from(&rows);
        if linear.bias {
            separate[node.inputs[2]] = rows;
        }
    }
    separate
}

/// The shape of one of a parameter's tensors.
pub(super) fn part_shape(whole: Shape, rows: &[usize], part: usize) -> Shape {
    rows.get(part).map_or(whole, |&rows| whole.with_first(rows))
}

/// Parameters in the order of the modules: by first use; of separate matrices, each with its bias.
pub(super) fn parameter_order(graph: &Graph, separate: &[Vec<usize>]) -> Vec<(usize, usize)> {
    let mut order: Vec<(usize, usize)> = Vec::new();
    let mut known = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let is_new = |value: &usize| {
            matches!(graph.values[*value].kind, ValueKind::Parameter { .. }) && !known[*value]
        };
        let values: Vec<usize> = node.inputs.iter().copied().filter(is_new).collect();
        let parts = values.iter().map(|&value| separate[value].len().max(1)).max().unwrap_or(0);
        order.extend((0..parts).flat_map(|part| values.iter().map(move |&value| (value, part))));
        values.iter().for_each(|&value| known[value] = true);
    }
    order
}

/// Whether a layer attends to less than the causal context.
pub(super) fn is_windowed(attending: &AttentionConfig, sequence: usize) -> bool {
    attending.window.is_some_and(|window| window < sequence)
}

/// [T, T] of the mask of layers with or without a window, if one of them needs it.
pub(super) fn mask_shape(graph: &Graph, windowed: bool) -> Option<[usize; 2]> {
    graph.nodes.iter().find_map(|node| {
        let attending = attending(&node.op)?;
        let is_written_out = matches!(node.op, Op::MaterializedAttention(_));
        let sequence = graph.values[node.inputs[0]].ty.shape.dims()[1];
        let needs = match is_windowed(attending, sequence) {
            true => windowed,
            false => !windowed && (is_written_out && attending.causal || attending.documents),
        };
        needs.then_some([sequence; 2])
    })
}

/// The frequencies of rotations, in the order of the blocks, and [T, D] of their cosines and sines.
pub(super) fn rotations(graph: &Graph) -> Vec<(&Frequencies, [usize; 2])> {
    let mut found: Vec<(&Frequencies, [usize; 2])> = Vec::new();
    for node in &graph.nodes {
        let Op::Rotary(Rotary { frequencies, head, .. }) = &node.op else { continue };
        if found.iter().all(|(known, _)| *known != frequencies) {
            found.push((frequencies, [graph.values[node.inputs[0]].ty.shape.dims()[1], *head]));
        }
    }
    found
}

/// By node: the activations that it reads last.
pub(super) fn last_uses(graph: &Graph, separate: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut last = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for &input in &node.inputs {
            last[input] = Some(index);
        }
    }
    // `attend(norm(x))` computes separate queries, keys and values, and holds its argument until it returns.
    for (index, node) in graph.nodes.iter().enumerate() {
        if matches!(node.op, Op::Linear(_)) && !separate[node.inputs[1]].is_empty() {
            let is_same = |other: &Node| other.scope == node.scope;
            let attention = (index..graph.nodes.len())
                .take_while(|&other| is_same(&graph.nodes[other]))
                .find(|&other| attending(&graph.nodes[other].op).is_some());
            if let Some(attention) = attention {
                let last = &mut last[node.inputs[0]];
                *last = (*last).max(Some(attention));
            }
        }
    }
    let mut uses = vec![Vec::new(); graph.nodes.len()];
    for (value, node) in last.into_iter().enumerate() {
        if let Some(node) = node.filter(|_| !matches!(graph.values[value].kind, ValueKind::Parameter { .. }))
        {
            uses[node].push(value);
        }
    }
    uses
}
