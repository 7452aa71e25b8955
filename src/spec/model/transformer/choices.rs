//! What blocks are made of.

use super::Transformer;
use crate::declare::{Words, words};

words! {
    /// What normalises a row.
    pub enum Norm {
        Layer = "layer",
        /// By the root of its mean square alone.
        Rms = "rms",
        /// The same with 1 added to weights, which begin as zeros and decay to them.
        RmsZeroCentered = "rms_zero_centered",
    }
}

words! {
    /// Where a block's norms are, beside its residual stream.
    pub enum NormPlacement {
        /// `x + part(norm(x))`, and one before the head.
        Pre = "pre",
        /// `norm(x + part(x))`
        Post = "post",
        /// `x + norm(part(norm(x)))`, and one before the head.
        Sandwich = "sandwich",
    }
}

words! {
    /// How a model tells positions apart.
    pub enum Positions {
        /// By a table that is added to the token embedding.
        Learned = "learned",
        /// By rotations of queries and keys.
        Rotary = "rotary",
        /// By what causal attention sees alone.
        None = "none",
    }
}

impl Transformer {
    /// What tells its blocks from GPT-2's, a word or two each, but for biases, which are next to nothing.
    pub(super) fn unlike_gpt2(&self) -> Vec<String> {
        let gpt2 = Transformer::new(self.layers, self.d_model, self.heads, self.context);
        let mut words = Vec::new();
        let mut say = |differs: bool, word: &str| words.extend(differs.then(|| word.to_owned()));
        say(self.head_dim != gpt2.head_dim, &format!("D {}", self.head_dim));
        say(self.d_ff != gpt2.d_ff, &format!("F {}", self.d_ff));
        say(self.activation != gpt2.activation, self.activation.word());
        say(self.norm != gpt2.norm, self.norm.word());
        match self.norm_placement {
            NormPlacement::Pre => {}
            NormPlacement::Post => say(true, "post-norm"),
            NormPlacement::Sandwich => say(true, "sandwich-norm"),
        }
        match self.positions {
            Positions::Learned => {}
            Positions::Rotary => say(true, self.positions.word()),
            Positions::None => say(true, "no positions"),
        }
        say(!self.causal, "not causal");
        self.window.iter().for_each(|window| say(true, &format!("window {window}")));
        self.global_every.iter().for_each(|every| say(true, &format!("but each {every}.")));
        say(self.attention_softcap.is_some(), "soft-capped");
        say(self.qk_norm, "qk-norm");
        say(self.logit_softcap.is_some(), "capped logits");
        say(!self.tied, "untied");
        say(self.dropout.is_any(), "dropout");
        words
    }
}
