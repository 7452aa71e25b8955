//! A configurable decoder; the default is GPT-2 (Radford et al. 2019).
//!
//! B micro-batch, T tokens of a sample (the context, or fewer if lengths vary), C d_model, H query heads, G key and
//! value heads, D channels per head, F d_ff, V vocabulary.

mod attention;
mod block;
mod checkpoint_names;
mod dropout;
mod embedding;
mod head;
mod linear;
mod mlp;
mod norm;
mod sub_layer;

use super::{Graph, Initial};
use data::Sample;
use spec::Transformer;

pub(super) use checkpoint_names::checkpoint_tensors;
pub(crate) use mlp::ROUTER;

/// The forward pass over `micro_batch` = B samples of T tokens, at most the model's context.
pub(super) fn build(model: &Transformer, sample: &Sample, micro_batch: usize) -> Graph {
    let mut graph = Graph::new();
    let embedding::Embedded { mut x, table, batch } =
        embedding::build(&mut graph, model, sample, micro_batch);
    for layer in 0..model.layers {
        x = block::build(&mut graph, model, layer, x, &batch);
    }
    head::build(&mut graph, model, x, table, &batch);
    graph
}

/// Initialisation of weights.
fn normal(model: &Transformer) -> Initial {
    Initial::Normal(model.initial_deviation as f32)
}

/// Initialisation of projections into the residual stream: scaled by 1/sqrt(number of projections), as in GPT-2.
fn into_residual(model: &Transformer) -> Initial {
    Initial::Normal(model.initial_deviation as f32 / (2.0 * model.layers as f32).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::Activation;
    use spec::{MlpActivation, Model, Norm, Positions};

    fn parameters(model: &Transformer) -> u64 {
        crate::build(&Model::Transformer(model.clone()), 1).parameters()
    }

    #[test]
    fn gpt2_has_the_published_parameter_count() {
        let model = Transformer { vocabulary: 50257, ..Transformer::new(12, 768, 12, 1024) };
        assert_eq!(parameters(&model), 124_439_808);
    }

    /// The published parameter counts; Llama has a gated feed-forward layer and an untied output layer.
    #[test]
    fn llama_models_have_the_published_parameter_counts() {
        let model = Transformer {
            vocabulary: 32_000,
            d_ff: 11_008,
            activation: MlpActivation::Gate(Activation::Silu),
            norm: Norm::Rms,
            positions: Positions::Rotary,
            bias: false,
            qkv_bias: false,
            tied: false,
            ..Transformer::new(32, 4096, 32, 2048)
        };
        assert_eq!(parameters(&model), 6_738_415_616);
        // Llama 3 8B has four query heads per key head.
        let model = Transformer { vocabulary: 128_256, kv_heads: 8, d_ff: 14_336, context: 8192, ..model };
        assert_eq!(parameters(&model), 8_030_261_248);
        // Mistral 7B is the same with a smaller vocabulary.
        assert_eq!(parameters(&Transformer { vocabulary: 32_000, ..model }), 7_241_732_096);
    }
}
