//! `[train.optimizer.muon]`

use super::{AdamW, Decay, GROUPS, Group, SharedKeys, UpdateRule};
use crate::reader::declare::{Accepting, InlineTable, inline_table, key_table, keywords};
use crate::reader::error::Problem;
use crate::reader::parsers::{Boolean, DECAY_RATE, NOT_NEGATIVE, POSITIVE, UsizeRange, keyword};
use crate::reader::tree::Table;
use crate::schema::rules::attach_span;
use ops::{DType, Rule};

keywords! {
    /// Factor of the learning rate, by the shape of a matrix (PyTorch: `adjust_lr_fn`).
    pub enum Adjust {
        /// `sqrt(max(1, rows / columns))`.
        Original = "original",
        /// `0.2 * sqrt(max(rows, columns))`: suits the learning rates and weight decays of AdamW.
        MatchRmsAdamW = "match_rms_adamw",
    }
}

const ITERATIONS: UsizeRange = UsizeRange(1..=64);

const ADAMW: Accepting<InlineTable<AdamW>> =
    Accepting(inline_table("train.optimizer.muon.adamw", "`adamw`", "lr = 3e-4"), |adamw| {
        adamw.with_empty("groups")
    });

key_table! {
    /// Muon: orthogonalized momentum for hidden matrices, and AdamW for all other parameters: biases, norms, embeddings
    /// and the head. PyTorch: `torch.optim.Muon`.
    pub struct Muon {
        /// Learning rate of hidden matrices.
        pub lr: f64 = POSITIVE;
        /// AdamW for all other parameters, with its keys except `groups`.
        pub adamw: AdamW = ADAMW;
        /// Momentum.
        pub momentum: f64 = DECAY_RATE, default 0.95;
        /// Whether to use Nesterov momentum.
        pub nesterov: bool = Boolean, default true;
        /// Decoupled weight decay of hidden matrices.
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.1;
        /// Newton-Schulz iterations, each of three matmuls.
        pub ns_steps: usize = ITERATIONS, default 5;
        /// Lower bound of the norm that the momentum is divided by (`eps`).
        pub epsilon: f64 = POSITIVE, default 1e-7;
        /// Factor of the learning rate, by the shape of a matrix (`adjust_lr_fn`).
        pub adjust: Adjust = keyword(), default Adjust::Original;
        /// Parameter groups with their own learning rate or weight decay, also for the parameters of AdamW.
        pub groups: Vec<Group> = GROUPS, default Vec::new();
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

    fn shared(&self) -> SharedKeys<'_> {
        let Muon { lr, weight_decay, ref groups, .. } = *self;
        SharedKeys { lr, weight_decay, decay: Decay::Matrices, groups }
    }

    fn other_parameters(&self) -> Option<&dyn UpdateRule> {
        Some(&self.adamw)
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        if self.adamw.groups.is_empty() {
            return Ok(());
        }
        Err(attach_span(
            "the groups of muon cover all parameters, those of AdamW included: `adamw` takes no groups"
                .to_owned(),
            &["train.optimizer.muon.adamw"],
            tree,
            "move them to `groups` of muon",
        ))
    }
}
