//! `parallel`: several devices train one model.

use super::offload::AHEAD;
use crate::reader::declare::{InlineTable, inline_table, key_table, keywords};
use crate::reader::parsers::{Boolean, UsizeRange, keyword};

pub(super) const PARALLEL: InlineTable<Parallel> = inline_table("parallel", "`parallel`", "data = 2");

const RANKS: UsizeRange = UsizeRange(1..=1 << 12);

key_table! {
    /// Several devices that train one model, each in a process of its own (a rank).
    #[derive(Copy, Eq)]
    pub struct Parallel: Default {
        /// Number of ranks (data parallelism; PyTorch: `DistributedDataParallel`). Each has the whole model and its share
        /// of the samples of every batch; gradients are summed over all. On the CPU, ranks share its threads;
        /// on cards, each has one.
        pub data: usize = RANKS, default 1;
        /// What is divided among ranks beside the samples. "optimizer": states and master weights (ZeRO stage 1; PyTorch:
        /// `ZeroRedundancyOptimizer`); each rank updates its share of the parameters and gets those of the others.
        /// "gradients": also gradients (ZeRO stage 2).
        /// "parameters": also the parameters (ZeRO stage 3; PyTorch: `fully_shard`), which are gathered layer by layer for
        /// each pass.
        pub shard: Shard = keyword(), default Shard::None;
        /// When gradients that are divided are summed. "micro": in each micro-batch, after which only the share is kept.
        /// "step": in the last micro-batch only (PyTorch: `set_requires_gradient_sync(False)`): less is sent, but whole gradients
        /// are in memory until then. "step" needs `shard = "parameters"`; gradients that are not divided are summed once a
        /// step.
        pub reduce: Reduce = keyword(), default Reduce::Micro;
        /// Whether gathered parameters stay from the forward pass to the backward pass (PyTorch:
        /// `reshard_after_forward=False`): less is sent, but a micro-batch holds all parameters. Needs
        /// `shard = "parameters"`.
        pub keep_gathered: bool = Boolean, default false;
        /// Number of layers by which parameters are gathered before their use (PyTorch: `set_modules_to_forward_prefetch`);
        /// `ahead` more layers are in memory. A value other than 1 needs `shard = "parameters"`.
        pub ahead: usize = AHEAD, default 1;
    }
}

keywords! {
    /// What ranks divide among them. Each value includes those before it.
    pub enum Shard {
        None = "none",
        Optimizer = "optimizer",
        Gradients = "gradients",
        Parameters = "parameters",
    }
}

keywords! {
    /// When ranks sum gradients that they divide.
    pub enum Reduce {
        Micro = "micro",
        Step = "step",
    }
}
