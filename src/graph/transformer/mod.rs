//! A decoder whose parts are chosen by keys; with those of GPT-2, its own (Radford et al. 2019).
//!
//! B micro-batch, T context, C d_model, H heads of queries, G of keys and values, D channels of a head, F d_ff, V vocabulary.

mod attention;
mod block;
mod dropout;
mod elsewhere;
mod embedding;
mod head;
mod linear;
mod mlp;
mod norm;

use super::{Graph, Initial};
use data::Documents;
use spec::Transformer;

const DEVIATION: f32 = 0.02;
const NORMAL: Initial = Initial::Normal(DEVIATION);

pub(super) use elsewhere::stored;

pub(super) fn build(model: &Transformer, documents: Documents, micro_batch: usize) -> Graph {
    let mut graph = Graph::new();
    let embedding::Embedded { mut x, table, batch } =
        embedding::build(&mut graph, model, documents, micro_batch);
    for layer in 0..model.layers {
        x = block::build(&mut graph, model, layer, x, &batch);
    }
    head::build(&mut graph, model, x, table, &batch);
    graph
}

/// What projections into the residual stream start as: smaller by the square root of their number, as GPT-2's do.
fn into_residual(model: &Transformer) -> Initial {
    Initial::Normal(DEVIATION / (2.0 * model.layers as f32).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::Activation;
    use spec::{MlpActivation, Norm, Positions};

    #[test]
    fn gpt2_has_its_parameters() {
        let model = Transformer { vocabulary: 50257, ..Transformer::new(12, 768, 12, 1024) };
        assert_eq!(build(&model, Documents::Joined, 1).parameters(), 124_439_808);
    }

    /// As published: three matrices in a feed-forward layer, and a head of its own.
    #[test]
    fn llama_has_its_parameters() {
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
        assert_eq!(build(&model, Documents::Joined, 1).parameters(), 6_738_415_616);
        // Llama 3 8B has four heads of queries to each of keys.
        let model = Transformer { vocabulary: 128_256, kv_heads: 8, d_ff: 14_336, context: 8192, ..model };
        assert_eq!(build(&model, Documents::Joined, 1).parameters(), 8_030_261_248);
        // Mistral 7B has these, and less of a vocabulary.
        assert_eq!(
            build(&Transformer { vocabulary: 32_000, ..model }, Documents::Joined, 1).parameters(),
            7_241_732_096
        );
    }
}
