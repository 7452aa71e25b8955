//! Keys that take a word.

use crate::declare::words;

words! {
    /// When memory that nothing will read again is given back.
    pub enum Release {
        /// After its last use.
        Eager = "eager",
        /// When the layer that used it last ends.
        Scope = "scope",
        /// At the end of the section.
        Step = "step",
    }
}

words! {
    /// What every step leaves behind for ever.
    pub enum Leak {
        /// The loss, as a list of losses that are no plain numbers does.
        Loss = "loss",
        /// What losses are computed from.
        Logits = "logits",
        /// All that the forward pass keeps for backward, as `retain_graph` with a loss that is kept does.
        Graph = "graph",
    }
}

words! {
    /// What becomes of gradients between steps.
    pub enum Gradients {
        Free = "free",
        /// Kept, and filled with zeros.
        Zero = "zero",
    }
}

words! {
    /// When gradients are applied.
    pub enum Update {
        /// Once all are there.
        AfterBackward = "after_backward",
        /// Each layer's as soon as they are complete, and freed.
        InBackward = "in_backward",
    }
}

words! {
    /// When what an allocator keeps free of its own accord is given back to the system.
    pub enum EmptyCache {
        Never = "never",
        /// At the end of each optimizer step.
        Step = "step",
        /// At the end of each micro-batch of a step, and of the step.
        Micro = "micro",
    }
}

words! {
    /// Where parameters are made.
    pub enum Init {
        /// Where they live.
        Device = "device",
        /// All of them by the host's processor in its memory, before any is copied to the device.
        Host = "host",
        /// Where they live, each layer's right before its first use, and so are its gradients and states.
        Lazy = "lazy",
    }
}

words! {
    /// Whether evaluation keeps what a backward pass would need.
    pub enum EvaluationPass {
        NoGrad = "no_grad",
        Grad = "grad",
    }
}

words! {
    /// What attention stores.
    pub enum Attention {
        /// Its result, and a number for each query.
        Fused = "fused",
        /// The T x T scores and their softmax as well.
        Materialized = "materialized",
    }
}
