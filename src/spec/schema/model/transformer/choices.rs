//! The choices between kinds of blocks.

use super::{Experts, Transformer};
use crate::reader::declare::{KeywordEnum, keywords};

keywords! {
    /// The normalization of a row.
    pub enum Norm {
        /// Layer norm.
        Layer = "layer",
        /// RMS norm.
        Rms = "rms",
        /// RMS norm with 1 added to its weights, which start at zero and decay to it (Gemma).
        RmsZeroCentered = "rms_zero_centered",
    }
}

keywords! {
    /// Where a block's norms are, relative to its residual stream.
    pub enum NormPlacement {
        /// `x + part(norm(x))`, and a norm before the head.
        Pre = "pre",
        /// `norm(x + part(x))`
        Post = "post",
        /// `x + norm(part(norm(x)))`, and a norm before the head.
        Sandwich = "sandwich",
        /// `x + norm(part(x))`, and a norm before the head (OLMo 2).
        Output = "output",
    }
}

keywords! {
    /// The inputs of a block's attention and feed-forward layer.
    pub enum SubLayers {
        /// The feed-forward layer reads what attention added to: `y + mlp(norm(y))`, `y = x + attention(norm(x))`.
        Sequential = "sequential",
        /// Both read the block's input: `x + attention(norm(x)) + mlp(norm(x))`, with a norm each.
        Parallel = "parallel",
        /// Both read the block's input through one norm.
        ParallelSharedNorm = "parallel_shared_norm",
    }
}

keywords! {
    /// The channels that a norm of queries and keys covers.
    pub enum QkNormOver {
        /// Those of each head.
        Head = "head",
        /// Those of all heads together.
        AllHeads = "all_heads",
    }
}

keywords! {
    /// Position encoding.
    pub enum Positions {
        /// A learned table, added to the token embedding.
        Learned = "learned",
        /// Rotations of queries and keys (RoPE).
        Rotary = "rotary",
        /// None: positions differ only by what causal attention sees.
        None = "none",
    }
}

impl Transformer {
    /// The differences to GPT-2 in one or two words each, except biases, which take next to no memory.
    pub(super) fn differences_to_gpt2(&self) -> Vec<String> {
        let gpt2 = Transformer::new(self.layers, self.d_model, self.heads, self.context);
        let mut words = Vec::new();
        let mut add = |differs: bool, word: &str| words.extend(differs.then(|| word.to_owned()));
        add(self.head_dim != gpt2.head_dim, &format!("D {}", self.head_dim));
        add(self.d_ff != gpt2.d_ff, &format!("F {}", self.d_ff));
        add(self.activation != gpt2.activation, self.activation.keyword());
        if let Some(Experts { count, per_token, normalize }) = self.experts {
            add(true, &format!("{per_token} of {count} experts"));
            add(!normalize, "unnormalized");
        }
        add(self.norm != gpt2.norm, self.norm.keyword());
        match self.norm_placement {
            NormPlacement::Pre => {}
            NormPlacement::Post => add(true, "post-norm"),
            NormPlacement::Sandwich => add(true, "sandwich-norm"),
            NormPlacement::Output => add(true, "output-norm"),
        }
        add(self.sub_layers != SubLayers::Sequential, "parallel");
        match self.positions {
            Positions::Learned => {}
            Positions::Rotary => {
                add(true, self.positions.keyword());
                self.rotary.channels.iter().for_each(|channels| add(true, &format!("of {channels}")));
            }
            Positions::None => add(true, "no positions"),
        }
        add(!self.causal, "not causal");
        self.window.iter().for_each(|window| add(true, &format!("window {window}")));
        self.global_every.iter().for_each(|every| add(true, &format!("but each {every}.")));
        self.global_first.iter().for_each(|first| add(true, &format!("from {first}")));
        add(self.attention_softcap.is_some(), "soft-capped");
        add(self.qk_norm, "qk-norm");
        add(self.logit_softcap.is_some(), "capped logits");
        add(!self.tied, "untied");
        add(self.dropout.is_any(), "dropout");
        words
    }
}
