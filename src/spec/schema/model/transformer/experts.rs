//! `experts`: a mixture of experts in place of the feed-forward layer.

use crate::reader::declare::{InlineTable, inline_table, key_table};
use crate::reader::parsers::{Boolean, UsizeRange};

pub(super) const EXPERTS: InlineTable<Experts> =
    inline_table("experts", "`experts`", "count = 8, per_token = 2");

/// A router needs at least two experts.
pub(in crate::schema) const COUNT: UsizeRange = UsizeRange(2..=1 << 14);

pub(in crate::schema) const PER_TOKEN: UsizeRange = UsizeRange(1..=1 << 14);

key_table! {
    /// Experts, of which a router selects some for each token.
    pub struct Experts {
        /// Number of experts of a block (`num_experts`).
        pub count: usize = COUNT;
        /// Experts that process each token (`num_experts_per_tok`).
        pub per_token: usize = PER_TOKEN;
        /// Whether the weights of a token's experts are divided by their sum (`norm_topk_prob`).
        pub normalize: bool = Boolean, default true;
    }
}
