//! `[train.optimizer.muon]`

use super::{AdamW, Decay, Group, Groups, Shared, UpdateRule};
use crate::declare::{Inline, inline, section, words};
use crate::error::Problem;
use crate::kinds::{Count, DECAY_RATE, Flag, NOT_NEGATIVE, POSITIVE, word};
use crate::rules::blame;
use crate::tree::Table;
use ops::{DType, Rule};

words! {
    /// What the update of a matrix is multiplied by.
    pub enum Adjust {
        /// The root of rows over columns, where that is more than 1.
        Original = "original",
        /// 0.2 times the root of the longer side: what AdamW's learning rates and weight decays suit.
        MatchRmsAdamW = "match_rms_adamw",
    }
}

const ITERATIONS: Count = Count(1..=64);

const ADAMW: Inline<AdamW> = inline("train.optimizer.muon.adamw", "`adamw`", "lr = 3e-4");

section! {
    /// Orthogonalized momentum for matrices between layers, as PyTorch has it, and AdamW for all else: biases, norms, embeddings and
    /// what gives the logits.
    pub struct Muon {
        pub lr: f64 = POSITIVE;
        pub adamw: AdamW = ADAMW;
        pub momentum: f64 = DECAY_RATE, default 0.95;
        pub nesterov: bool = Flag, default true;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.1;
        /// Of Newton and Schulz, each three products.
        pub ns_steps: usize = ITERATIONS, default 5;
        /// The least that the norm of a momentum counts.
        pub epsilon: f64 = POSITIVE, default 1e-7;
        pub adjust: Adjust = word(), default Adjust::Original;
        /// Of all parameters, whatever updates them.
        pub groups: Vec<Group> = Groups, default Vec::new();
    }
}

impl UpdateRule for Muon {
    fn rule(&self, weight_decay: f32) -> Rule {
        let Muon { momentum, nesterov, ns_steps: steps, adjust, .. } = *self;
        Rule::Muon(ops::Muon {
            momentum,
            nesterov,
            weight_decay,
            steps,
            epsilon: self.epsilon as f32,
            adjust: match adjust {
                Adjust::Original => ops::Adjust::Original,
                Adjust::MatchRmsAdamW => ops::Adjust::MatchRmsAdamW,
            },
            dtype: DType::F32,
            tf32: false,
        })
    }

    fn shared(&self) -> Shared<'_> {
        let Muon { lr, weight_decay, ref groups, .. } = *self;
        Shared { lr, weight_decay, decay: Decay::Matrices, groups }
    }

    fn beside(&self) -> Option<&dyn UpdateRule> {
        Some(&self.adamw)
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        if self.adamw.groups.is_empty() {
            return Ok(());
        }
        Err(blame(
            "muon's groups are of all parameters, those that AdamW updates among them: `adamw` has none of its own"
                .to_owned(),
            &["train.optimizer.muon.adamw"],
            tree,
            "write them as `groups` of muon",
        ))
    }
}
