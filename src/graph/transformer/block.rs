//! A block: attention, then a feed-forward layer, each with norms and a residual connection.

use super::dropout::{self, DropoutSite};
use super::embedding::BatchInputs;
use super::norm::{self, NormPosition};
use super::sub_layer::SubLayer;
use super::{attention, mlp};
use crate::{Graph, ScopeId};
use ops::{Add, Op, Scale};
use spec::{NormPlacement, SubLayers, Transformer};

/// Builds block `number`; returns the residual stream x num[B,T,C] after it.
pub(super) fn build(
    graph: &mut Graph,
    model: &Transformer,
    number: usize,
    x: usize,
    batch: &BatchInputs,
) -> usize {
    let block = graph.layer(format!("blocks.{number}"), true);
    let scope = graph.child_scope(block, "attention");
    let branch = ResidualBranch { model, scope, batch, site: DropoutSite::AfterAttention(number) };
    let normed = branch.input(graph, x);
    let y = branch.build(graph, [normed, x], |graph, sub_layer| {
        attention::build(graph, model, number, &sub_layer, batch)
    });
    let scope = graph.child_scope(block, "mlp");
    let branch = ResidualBranch { model, scope, batch, site: DropoutSite::AfterMlp(number) };
    let input = match model.sub_layers {
        SubLayers::Sequential => branch.input(graph, y),
        SubLayers::Parallel => branch.input(graph, x),
        SubLayers::ParallelSharedNorm => normed,
    };
    branch.build(graph, [input, y], |graph, sub_layer| mlp::build(graph, model, &sub_layer))
}

/// The residual branch around a sub-layer: norms, dropout and the addition to the stream.
struct ResidualBranch<'a> {
    model: &'a Transformer,
    scope: ScopeId,
    batch: &'a BatchInputs,
    site: DropoutSite,
}

impl ResidualBranch<'_> {
    /// The sub-layer's input: the residual stream x, normalised if the norm is before the sub-layer.
    fn input(&self, graph: &mut Graph, x: usize) -> usize {
        match self.model.norm_placement {
            NormPlacement::Post | NormPlacement::Output => x,
            NormPlacement::Pre | NormPlacement::Sandwich => {
                norm::build(graph, self.model, self.scope, NormPosition::Before, x)
            }
        }
    }

    /// The residual stream x with the sub-layer of an input added.
    fn build(
        &self,
        graph: &mut Graph,
        [input, x]: [usize; 2],
        sub_layer: impl FnOnce(&mut Graph, SubLayer) -> usize,
    ) -> usize {
        let ResidualBranch { model, scope, .. } = *self;
        let placement = model.norm_placement;
        let ends_with_norm = matches!(placement, NormPlacement::Sandwich | NormPlacement::Output);
        let dropout = self.site.dropout(model, self.batch.seeds);
        // Without dropout, output norm and factor, the sub-layer adds to the stream, in its last matmul if it has one.
        let adds = dropout.is_none() && !ends_with_norm && model.residual_scale.is_none();
        let mut y = sub_layer(graph, SubLayer { scope, input, residual: adds.then_some(x) });
        if ends_with_norm {
            y = norm::build(graph, model, scope, NormPosition::After, y);
        }
        if let Some(scale) = model.residual_scale {
            [y] = graph.node(Op::Scale(Scale { factor: scale as f32 }), scope, vec![y], ["scaled"]);
        }
        let x = match dropout {
            _ if adds => y,
            Some((dropped, seeds)) => dropout::with_residual(graph, scope, dropped, [y, seeds, x]),
            None => graph.node(Op::Add(Add { stream: true, ..Add::PLAIN }), scope, vec![x, y], ["x"])[0],
        };
        match placement {
            NormPlacement::Post => norm::build(graph, model, scope, NormPosition::Stream, x),
            NormPlacement::Pre | NormPlacement::Sandwich | NormPlacement::Output => x,
        }
    }
}
