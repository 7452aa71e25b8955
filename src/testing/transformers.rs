//! Random transformers.

use proptest::prelude::{Strategy as Any, any};
use proptest::sample::select;

use crate::on_cuda;
use spec::{
    Dropout, Experts, KeywordEnum, Lora, MlpActivation, Norm, NormPlacement, Positions, QkNormOver, Rotary,
    RotaryScaling, SubLayers, Transformer,
};

/// Any transformer with two to four layers. Sizes are small, so that different dimensions are often equal: a context as
/// long as the embedding is wide, one head, a feed-forward layer of one channel.
pub(super) fn any_transformer() -> impl Any<Value = Transformer> {
    let sizes = (2..=4usize, 1..=4usize, 1..=12usize, 1..=40usize, 256..=300usize);
    let attention = (1..=12usize, any::<[bool; 5]>(), 1..=20usize, 1..=3usize);
    let mlp = (1..=40usize, select(MlpActivation::ALL));
    let norms =
        (select(Norm::ALL), select(NormPlacement::ALL), select(SubLayers::ALL), select(QkNormOver::ALL));
    let rate = || select(&[0.0, 0.0, 0.1, 0.5]);
    let dropout = (rate(), rate(), rate());
    let dropout =
        dropout.prop_map(|(embedding, attention, residual)| Dropout { embedding, attention, residual });
    let rest = (norms, select(Positions::ALL), any::<[bool; 7]>(), dropout);
    // On a GPU, experts are not supported.
    let experts =
        (0..4usize, 2..=5usize, 1..=5usize, any::<bool>()).prop_map(|(has, count, most, normalize)| {
            let experts = Experts { count, per_token: count.min(most), normalize };
            (has == 0 && !on_cuda()).then_some(experts)
        });
    (sizes, attention, mlp, rest, experts).prop_map(|(sizes, attention, mlp, rest, experts)| {
        let ((norm, norm_placement, sub_layers, qk_norm_over), positions, flags, dropout) = rest;
        let [is_wide, bias, tied, scaled, qkv_bias, scales, caps] = flags;
        let (layers, heads, per_head, context, vocabulary) = sizes;
        let gpt2 = Transformer::new(layers, heads * per_head, heads, context);
        let (d_ff, activation) = mlp;
        let d_ff = if is_wide { gpt2.d_ff } else { d_ff };
        let scaling = RotaryScaling { factor: 4.0, low: 1.0, high: 4.0, original: 16 };
        let (head_dim, [shares, sees_ahead, has_own_width, is_capped, qk_norm], window, every) = attention;
        let window = Some(window).filter(|_| !sees_ahead);
        let rotary = Rotary {
            base: 100.0,
            scaling: scaled.then_some(scaling),
            window_base: window.filter(|_| qk_norm).map(|_| 20.0),
            channels: is_wide.then_some(2),
            skip_every: has_own_width.then_some(2),
            ..Rotary::default()
        };
        let rotary = if positions == Positions::Rotary { rotary } else { Rotary::default() };
        let model = Transformer {
            vocabulary,
            embedding_scale: scales.then_some(3.0),
            kv_heads: if shares && heads.is_multiple_of(2) { heads / 2 } else { heads },
            head_dim: if has_own_width { head_dim } else { gpt2.head_dim },
            causal: !sees_ahead,
            window,
            global_every: window.map(|_| every),
            global_first: window.filter(|_| caps).map(|_| 1),
            attention_scale: is_capped.then_some(0.5),
            window_attention_scale: window.filter(|_| caps).map(|_| 0.3),
            attention_softcap: is_capped.then_some(2.0),
            qk_norm,
            qk_norm_over: if qk_norm { qk_norm_over } else { QkNormOver::Head },
            d_ff,
            activation,
            norm,
            norm_epsilon: 1e-4,
            residual_scale: is_wide.then_some(0.5),
            norm_placement: if sub_layers == SubLayers::Sequential {
                norm_placement
            } else {
                NormPlacement::Pre
            },
            sub_layers,
            positions,
            rotary,
            bias,
            qkv_bias,
            tied,
            head_bias: scales && !tied,
            logit_scale: is_capped.then_some(2.0),
            logit_softcap: caps.then_some(5.0),
            dropout,
            ..gpt2
        };
        with_experts(with_divisors(with_even_rotary_heads(model), scales), experts)
    })
}

/// The sizes of `sizes` with the structure of `other`. Head sizes come from `other` if it is rotary, because the
/// frequencies depend on them.
pub(super) fn alike(sizes: &Transformer, other: &Transformer) -> Transformer {
    let Transformer { context, vocabulary, d_ff, .. } = *sizes;
    let head_sizes = if other.positions == Positions::Rotary { other } else { sizes };
    let Transformer { d_model, heads, kv_heads, head_dim, .. } = *head_sizes;
    Transformer { d_model, heads, kv_heads, head_dim, context, vocabulary, d_ff, ..other.clone() }
}

/// Makes rotary head sizes even, because channels rotate in pairs.
fn with_even_rotary_heads(model: Transformer) -> Transformer {
    let is_odd = model.positions == Positions::Rotary && !model.head_dim.is_multiple_of(2);
    if is_odd { Transformer { head_dim: model.head_dim + 1, ..model } } else { model }
}

/// Divides the frequencies of a rotary model, if `divides`.
fn with_divisors(mut model: Transformer, divides: bool) -> Transformer {
    if model.positions == Positions::Rotary && divides {
        model.rotary.divisors = (0..model.rotated_channels() / 2).map(|pair| 1.0 + pair as f64).collect();
    }
    model
}

/// Replaces the feed-forward layers by experts, which have a gate and no biases.
fn with_experts(model: Transformer, experts: Option<Experts>) -> Transformer {
    if experts.is_none() {
        return model;
    }
    let (MlpActivation::Plain(function) | MlpActivation::Gate(function)) = model.activation;
    Transformer { experts, bias: false, activation: MlpActivation::Gate(function), ..model }
}

/// Renames adapter targets to the layer names of this model.
pub(super) fn adapt(lora: &mut Lora, model: &Transformer) {
    if model.experts.is_some() {
        lora.targets.iter_mut().filter(|target| target.starts_with("mlp")).for_each(|target| {
            *target = "attention.out".to_owned();
        });
    }
    let [plain, gated] = ["mlp.up", "mlp.gate_up"];
    for target in lora.targets.iter_mut().filter(|target| model.activation.is_gate() && *target == plain) {
        *target = gated.to_owned();
    }
}
