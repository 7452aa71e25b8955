//! A block: attention, then a feed-forward layer, each with norms and a residual connection.

use super::dropout::{self, DropoutSite};
use super::embedding::BatchInputs;
use super::norm::{self, NormPosition};
use super::sub_layer::SubLayer;
use super::{attention, mlp};
use crate::{Graph, ScopeId};
use ops::{Add, Op, Scale};
use spec::{NormPlacement, Transformer};

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
    let x =
        branch.build(graph, x, |graph, sub_layer| attention::build(graph, model, number, &sub_layer, batch));
    let scope = graph.child_scope(block, "mlp");
    let branch = ResidualBranch { model, scope, batch, site: DropoutSite::AfterMlp(number) };
    branch.build(graph, x, |graph, sub_layer| mlp::build(graph, model, &sub_layer))
}

/// The residual branch around a sub-layer: norms, dropout and the addition to the stream.
struct ResidualBranch<'a> {
    model: &'a Transformer,
    scope: ScopeId,
    batch: &'a BatchInputs,
    site: DropoutSite,
}

impl ResidualBranch<'_> {
    fn build(
        &self,
        graph: &mut Graph,
        x: usize,
        sub_layer: impl FnOnce(&mut Graph, SubLayer) -> usize,
    ) -> usize {
        let ResidualBranch { model, scope, .. } = *self;
        let placement = model.norm_placement;
        let input = match placement {
            NormPlacement::Post => x,
            NormPlacement::Pre | NormPlacement::Sandwich => {
                norm::build(graph, model, scope, NormPosition::Before, x)
            }
        };
        let dropout = self.site.dropout(model, self.batch.seeds);
        // Without dropout, output norm and factor, the last matmul of the sub-layer adds to the stream.
        let matmul_adds =
            dropout.is_none() && placement != NormPlacement::Sandwich && model.residual_scale.is_none();
        let mut y = sub_layer(graph, SubLayer { scope, input, residual: matmul_adds.then_some(x) });
        if placement == NormPlacement::Sandwich {
            y = norm::build(graph, model, scope, NormPosition::After, y);
        }
        if let Some(scale) = model.residual_scale {
            [y] = graph.node(Op::Scale(Scale { factor: scale as f32 }), scope, vec![y], ["scaled"]);
        }
        let x = match dropout {
            _ if matmul_adds => y,
            Some((dropped, seeds)) => dropout::with_residual(graph, scope, dropped, [y, seeds, x]),
            None => graph.node(Op::Add(Add { stream: true, ..Add::PLAIN }), scope, vec![x, y], ["x"])[0],
        };
        match placement {
            NormPlacement::Post => norm::build(graph, model, scope, NormPosition::Stream, x),
            NormPlacement::Pre | NormPlacement::Sandwich => x,
        }
    }
}
