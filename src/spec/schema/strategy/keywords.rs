//! Keys that take a keyword.

use crate::reader::declare::keywords;

keywords! {
    /// When memory that is no longer needed is freed.
    pub enum Release {
        /// After the last use.
        Eager = "eager",
        /// At the end of the layer of the last use.
        Scope = "scope",
        /// At the end of the section.
        Step = "step",
    }
}

keywords! {
    /// What each step leaks: memory that is never freed.
    pub enum Leak {
        /// The loss tensor: `losses.append(loss)` after `backward()`, without `.item()` or `.detach()`.
        Loss = "loss",
        /// The logits of each micro-batch: `outputs` or predictions that a list keeps, detached or not.
        Logits = "logits",
        /// All values saved for backward: losses that a list keeps after `backward(retain_graph=True)`, or of which
        /// `backward()` was never called.
        Graph = "graph",
    }
}

keywords! {
    /// Gradients between steps.
    pub enum Gradients {
        /// Freed: `zero_grad(set_to_none=True)`.
        Free = "free",
        /// Kept and filled with zeros: `zero_grad(set_to_none=False)`.
        Zero = "zero",
    }
}

keywords! {
    /// When gradients are applied.
    pub enum Update {
        /// After backward, once all gradients are complete.
        AfterBackward = "after_backward",
        /// In backward: each layer's gradients are applied and freed as soon as they are complete.
        InBackward = "in_backward",
    }
}

keywords! {
    /// When the caching allocator returns its unused segments to the system.
    pub enum EmptyCache {
        Never = "never",
        /// At the end of each optimizer step.
        Step = "step",
        /// At the end of each micro-batch, and of the step.
        Micro = "micro",
    }
}

keywords! {
    /// Where and when parameters are created.
    pub enum Init {
        /// In the memory pool where they are stored.
        Device = "device",
        /// All of them in host memory by the host's processor, before any is copied to the device.
        Host = "host",
        /// In the memory pool where they are stored, each layer's right before its first use, with its gradients and
        /// states.
        Lazy = "lazy",
    }
}

keywords! {
    /// Whether evaluation keeps the values that a backward pass would need.
    pub enum EvaluationPass {
        NoGrad = "no_grad",
        Grad = "grad",
    }
}

keywords! {
    /// The values that attention stores.
    pub enum Attention {
        /// Its result and one number per query (the log-sum-exp of its scores).
        Fused = "fused",
        /// The T x T scores and their softmax as well.
        Materialized = "materialized",
    }
}
