//! The attention sub-layer.

use super::dropout::DropoutSite;
use super::embedding::BatchInputs;
use super::linear::{self, LinearLayer};
use super::sub_layer::SubLayer;
use super::{into_residual, norm, normal};
use crate::Graph;
use ops::{Attention, AttentionConfig, Op, Rotary, StackedRows};
use spec::Transformer;

pub(super) fn build(
    graph: &mut Graph,
    model: &Transformer,
    number: usize,
    sub_layer: &SubLayer,
    batch: &BatchInputs,
) -> usize {
    let Transformer { heads, kv_heads, head_dim, .. } = *model;
    let (c, channels) = (model.d_model, heads * head_dim);
    let scope = sub_layer.scope;
    let layer = LinearLayer {
        names: ["qkv.weight", "qkv.bias"],
        shape: [(heads + 2 * kv_heads) * head_dim, c],
        initial: normal(model),
        bias: model.qkv_bias,
        stacked: StackedRows::new(&[heads, kv_heads, kv_heads].map(|heads| heads * head_dim)),
    };
    let mut qkv = linear::build(graph, scope, &layer, sub_layer.input, "qkv");
    if model.qk_norm {
        qkv = norm::build_qk_norm(graph, model, scope, qkv);
    }
    if let Some(frequencies) = model.rotation_of(number) {
        let (rotated, channels) = (heads + kv_heads, model.rotated_channels());
        let rotary = Rotary { rotated, head: head_dim, channels, frequencies, inverse: false };
        [qkv] = graph.node(Op::Rotary(rotary), scope, vec![qkv], ["rotated"]);
    }
    let dropout = DropoutSite::Attention(number).dropout(model, batch.seeds);
    let attending = AttentionConfig {
        heads,
        kv_heads,
        causal: model.causal,
        window: model.window_of(number),
        cap: model.attention_softcap.map(|cap| cap as f32),
        scale: model.attention_scale_of(number).map(|scale| scale as f32),
        documents: batch.starts.is_some(),
        dropped: dropout.map(|(dropped, _)| dropped),
    };
    let inputs = [Some(qkv), batch.starts, dropout.map(|(_, seeds)| seeds)].into_iter().flatten().collect();
    let [out, _lse] = graph.node(Op::Attention(Attention { attending }), scope, inputs, ["out", "lse"]);
    let (names, initial) = (["out.weight", "out.bias"], into_residual(model));
    let stacked = StackedRows::default();
    let layer = LinearLayer { names, shape: [c, channels], initial, bias: model.bias, stacked };
    linear::build_last(graph, sub_layer, &layer, out)
}
