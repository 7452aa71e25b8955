//! The embedding layer and the inputs of a batch.

use super::dropout::{self, DropoutSite};
use super::normal;
use crate::Graph;
use data::{Part, PartRole, Sample};
use ops::{DType, Embedding, Op};
use spec::{Positions, Transformer};

/// The values before the first block.
pub(super) struct Embedded {
    /// The residual stream, num[B,T,C].
    pub(super) x: usize,
    /// The token table, num[V,C].
    pub(super) table: usize,
    pub(super) batch: BatchInputs,
}

/// The batch inputs that later layers use.
pub(super) struct BatchInputs {
    /// i32[B,T].
    pub(super) targets: usize,
    /// The weight of each sample's targets, f32[B], if samples are weighted.
    pub(super) weights: Option<usize>,
    /// The start of each token's document, i32[B,T], if samples contain several documents.
    pub(super) starts: Option<usize>,
    /// The random seed of each sample, i32[B,2], if the model has dropout.
    pub(super) seeds: Option<usize>,
}

pub(super) fn build(graph: &mut Graph, model: &Transformer, sample: &Sample, micro_batch: usize) -> Embedded {
    let (c, v) = (model.d_model, model.vocabulary);
    let scope = graph.layer("embedding".to_owned(), false);
    let mut part = |role| sample.part(role).map(|part| graph.input(scope, part, micro_batch));
    let [tokens, targets] = [PartRole::Input, PartRole::Target]
        .map(|role| part(role).expect("a transformer requests tokens and targets"));
    let [weights, starts] = [PartRole::Weight, PartRole::Position].map(part);
    let seeds = model.dropout.is_any().then(|| graph.input(scope, &Part::seeds(), micro_batch));
    let table = graph.parameter("table", scope, &[v, c], normal(model));
    let mut inputs = vec![tokens, table];
    let positions = model.positions == Positions::Learned;
    if positions {
        inputs.push(graph.parameter("positions", scope, &[model.context, c], normal(model)));
    }
    let position_starts = starts.filter(|_| positions);
    inputs.extend(position_starts);
    let op = Op::Embedding(Embedding {
        scale: model.embedding_scale.unwrap_or(1.0) as f32,
        positions,
        documents: position_starts.is_some(),
        output: DType::F32,
    });
    let x = match DropoutSite::Embedding.dropout(model, seeds) {
        None => graph.node(op, scope, inputs, ["x"])[0],
        Some((dropped, seeds)) => {
            let [embedded] = graph.node(op, scope, inputs, ["embedded"]);
            dropout::without_residual(graph, scope, dropped, embedded, seeds)
        }
    };
    Embedded { x, table, batch: BatchInputs { targets, weights, starts, seeds } }
}
