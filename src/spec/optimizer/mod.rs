//! What applies gradients: a file for each optimizer. A new one is its file, and its lines here.

mod adamw;

pub use adamw::{AdamW, Decay};

use super::declare::choice;
use crate::ops::{Control, Op, Segments};

choice! {
    pub enum Optimizer("train.optimizer"): UpdateRule {
        adamw: AdamW,
    }
    later "adam", "lion", "sgd"
}

/// What each optimizer says of itself.
trait UpdateRule {
    /// Names what is kept of each parameter: of equal names, equal states.
    fn state(&self) -> &'static str;

    /// Whether weight decay applies to parameters of this many dimensions.
    fn decays(&self, dimensions: usize) -> bool;

    /// See [`Optimizer::operation`].
    fn operation(&self, segments: Segments, clip_norm: Option<f32>, scaled: bool) -> Op;

    /// See [`Optimizer::control`].
    fn control(&self, step: usize) -> Control;
}

impl Optimizer {
    pub(super) fn state(&self) -> &'static str {
        self.each().state()
    }

    /// Whether weight decay applies to parameters of this many dimensions.
    pub fn decays(&self, dimensions: usize) -> bool {
        self.each().decays(dimensions)
    }

    /// What it does to a bucket, whose gradients are clipped to a norm, and `scaled` with the loss.
    pub fn operation(&self, segments: Segments, clip_norm: Option<f32>, scaled: bool) -> Op {
        self.each().operation(segments, clip_norm, scaled)
    }

    /// The numbers of step `step`, counted from 1; steps that were skipped do not count.
    pub fn control(&self, step: usize) -> Control {
        self.each().control(step)
    }
}
