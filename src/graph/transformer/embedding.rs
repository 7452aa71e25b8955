//! What a decoder's residual stream begins with.

use super::NORMAL;
use super::dropout::{self, Site};
use crate::Graph;
use data::{Documents, seeds};
use ops::{DType, Embedding, Op};
use spec::{Positions, Transformer};

/// What there is before the first block.
pub(super) struct Embedded {
    /// The residual stream, num[B,T,C].
    pub(super) x: usize,
    /// Of tokens, num[V,C].
    pub(super) table: usize,
    pub(super) batch: Parts,
}

/// The parts of a batch that come after the embedding.
pub(super) struct Parts {
    /// i32[B,T].
    pub(super) targets: usize,
    /// What the targets of each sample count for, f32[B], where not all do.
    pub(super) weights: Option<usize>,
    /// Where the document of each token begins, i32[B,T], where samples have several.
    pub(super) starts: Option<usize>,
    /// What chance starts from in each sample, i32[B,2], where anything is left to it.
    pub(super) seeds: Option<usize>,
}

pub(super) fn build(
    graph: &mut Graph,
    model: &Transformer,
    documents: Documents,
    micro_batch: usize,
) -> Embedded {
    let (t, c, v) = (model.context, model.d_model, model.vocabulary);
    let scope = graph.layer("embedding".to_owned(), false);
    let [tokens, targets] = model.parts().map(|part| graph.input(scope, &part, micro_batch));
    let others: Vec<usize> =
        documents.parts(t).iter().map(|part| graph.input(scope, part, micro_batch)).collect();
    let (weights, starts) = (others.first().copied(), others.get(1).copied());
    let seeds = model.dropout.is_any().then(|| graph.input(scope, &seeds::part(), micro_batch));
    let table = graph.parameter("table", scope, &[v, c], NORMAL);
    let mut inputs = vec![tokens, table];
    let positions = model.positions == Positions::Learned;
    if positions {
        inputs.push(graph.parameter("positions", scope, &[t, c], NORMAL));
    }
    let counts_anew = starts.filter(|_| positions);
    inputs.extend(counts_anew);
    let op = Op::Embedding(Embedding {
        scale: model.embedding_scale.unwrap_or(1.0) as f32,
        positions,
        documents: counts_anew.is_some(),
        output: DType::F32,
    });
    let x = match Site::Embedding.chance(model, seeds) {
        None => graph.node(op, scope, inputs, ["x"])[0],
        Some((dropped, seeds)) => {
            let [embedded] = graph.node(op, scope, inputs, ["embedded"]);
            dropout::of_stream(graph, scope, dropped, embedded, seeds)
        }
    };
    Embedded { x, table, batch: Parts { targets, weights, starts, seeds } }
}
