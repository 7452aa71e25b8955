//! Attention: each position sees others.

use super::block::Part;
use super::dropout::Site;
use super::embedding::Parts;
use super::linear::{self, Layer};
use super::{NORMAL, into_residual, norm};
use crate::Graph;
use ops::{Attending, Attention, Op, Rotary, Stacked};
use spec::{Positions, Transformer};

pub(super) fn build(
    graph: &mut Graph,
    model: &Transformer,
    number: usize,
    part: &Part,
    batch: &Parts,
) -> usize {
    let Transformer { heads, kv_heads, head_dim, .. } = *model;
    let (c, channels) = (model.d_model, heads * head_dim);
    let scope = part.scope;
    let layer = Layer {
        names: ["qkv.weight", "qkv.bias"],
        shape: [(heads + 2 * kv_heads) * head_dim, c],
        initial: NORMAL,
        bias: model.qkv_bias,
        stacked: Stacked::new(&[heads, kv_heads, kv_heads].map(|heads| heads * head_dim)),
    };
    let mut qkv = linear::build(graph, scope, &layer, part.input, "qkv");
    if model.qk_norm {
        qkv = norm::build_of_heads(graph, model, scope, qkv);
    }
    if model.positions == Positions::Rotary {
        let frequencies = model.rotary.frequencies();
        let rotary = Rotary { rotated: heads + kv_heads, head: head_dim, frequencies, inverse: false };
        [qkv] = graph.node(Op::Rotary(rotary), scope, vec![qkv], ["rotated"]);
    }
    let chance = Site::Attention(number).chance(model, batch.seeds);
    let attending = Attending {
        heads,
        kv_heads,
        causal: model.causal,
        window: model.window_of(number),
        cap: model.attention_softcap.map(|cap| cap as f32),
        scale: model.attention_scale.map(|scale| scale as f32),
        documents: batch.starts.is_some(),
        dropped: chance.map(|(dropped, _)| dropped),
    };
    let inputs = [Some(qkv), batch.starts, chance.map(|(_, seeds)| seeds)].into_iter().flatten().collect();
    let [out, _lse] = graph.node(Op::Attention(Attention { attending }), scope, inputs, ["out", "lse"]);
    let (names, initial) = (["out.weight", "out.bias"], into_residual(model));
    let stacked = Stacked::default();
    let layer = Layer { names, shape: [c, channels], initial, bias: model.bias, stacked };
    linear::build_last(graph, part, &layer, out)
}
