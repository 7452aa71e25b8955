//! Size limits: bytes and operations of a step are counted in 64 bits.

use super::{Experts, Transformer};
use crate::reader::error::Problem;
use crate::reader::tree::Table;
use crate::schema::rules::attach_span;
use ops::MOST_PAIRS;

const KEYS: [&str; 8] = [
    "model.transformer.d_model",
    "model.transformer.layers",
    "model.transformer.heads",
    "model.transformer.head_dim",
    "model.transformer.context",
    "model.transformer.vocabulary",
    "model.transformer.d_ff",
    "model.transformer.experts.count",
];

impl Transformer {
    /// The sums are upper bounds, with room for every kind of block and every strategy.
    pub(super) fn check_counts(
        &self,
        (batch_key, batch_size): (&str, usize),
        tree: &Table,
    ) -> Result<(), Problem> {
        let wide = |size: usize| size as u128;
        let Transformer { layers, d_model, heads, head_dim, context, vocabulary, d_ff, .. } = *self;
        let [layers, channels, heads, head_dim, context, vocabulary, width] =
            [layers, d_model, heads, head_dim, context, vocabulary, d_ff].map(wide);
        let of_heads = heads * head_dim;
        // Without experts, there is one feed-forward layer and no router.
        let [experts, per_token, router] = match self.experts {
            Some(Experts { count, per_token, .. }) => [count, per_token, count],
            None => [1, 1, 0],
        }
        .map(wide);
        let of_experts = experts * 3 * width + router;
        let block = channels * (4 * of_heads + of_experts + 8) + 5 * of_heads + 2 * width;
        let parameters = channels * (2 * vocabulary + context + 2) + vocabulary + layers * block;
        if parameters > 1 << 40 {
            return Err(attach_span(
                format!("the model would have up to {parameters} parameters"),
                &KEYS,
                tree,
                "use at most 2^40 (about 10^12)",
            ));
        }
        let tokens = wide(batch_size) * context;
        let routed = if router > 0 { per_token * 4 * channels + 4 * router } else { 0 };
        let of_block = 24 * channels + 16 * of_heads + per_token * 8 * width + routed + 4 * heads * context;
        let activations = tokens * (layers * of_block + 4 * vocabulary);
        let work = 16 * tokens * (parameters + layers * context * of_heads);
        if activations > 1 << 57 || work > 1 << 62 {
            return Err(attach_span(
                format!("one batch of {tokens} tokens exceeds the counters of 64 bits"),
                &[batch_key, "model.transformer.context"],
                tree,
                "use smaller batches, shorter sequences or a smaller model",
            ));
        }
        // The routing has an i32 for each pair of a token and one of its experts.
        let pairs = tokens * per_token;
        if router > 0 && pairs > wide(MOST_PAIRS) {
            return Err(attach_span(
                format!(
                    "one batch of {tokens} tokens with {per_token} experts each has {pairs} rows of experts"
                ),
                &[batch_key, "model.transformer.context", "model.transformer.experts.per_token"],
                tree,
                format!(
                    "use at most {} tokens: smaller batches or shorter sequences",
                    wide(MOST_PAIRS) / per_token
                ),
            ));
        }
        Ok(())
    }
}
