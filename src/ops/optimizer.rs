//! What happens to whole buckets of gradients and parameters at the end of a step.

use std::sync::Arc;

use super::{Operation, SCALE, Sizes, TensorType, TypeError, expect_inputs, expect_type};

/// One tensor inside a flat bucket. Between segments lies padding that nothing reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// In elements from the start of the bucket.
    pub offset: usize,
    pub len: usize,
    /// Whether weight decay applies.
    pub decay: bool,
}

/// The tensors of a bucket, in order.
pub type Segments = Arc<[Segment]>;

/// Elements of the control value: the numbers of a step that change from step to step live in device memory,
/// so that a captured step can be replayed.
pub const CONTROL_LEN: usize = 4;

/// What the control value holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    pub learning_rate: f32,
    /// `1 - beta1^t`
    pub bias_correction1: f32,
    /// `1 - beta2^t`
    pub bias_correction2: f32,
}

impl Control {
    pub fn to_array(self) -> [f32; CONTROL_LEN] {
        [self.learning_rate, self.bias_correction1, self.bias_correction2, 0.0]
    }

    pub fn from_array(values: [f32; CONTROL_LEN]) -> Control {
        Control { learning_rate: values[0], bias_correction1: values[1], bias_correction2: values[2] }
    }
}

/// `norm = sqrt(sum of the squares of all elements)`, summed in f64, over the loss scale if they are `scaled`.
///
/// Inputs: any number of buckets f32[len], then the loss scale f32[1] if `scaled`. Output: norm f32[1].
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalNorm {
    /// One entry for each bucket.
    pub buckets: Vec<Segments>,
    pub scaled: bool,
}

impl GlobalNorm {
    /// Elements that one partial sum covers; each segment begins a new one.
    pub const ELEMENTS_PER_PARTIAL: usize = 1 << 16;
}

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019) on one bucket, in one pass, with clipping by
/// global norm fused in: the gradient counts `min(1, clip / (norm + 1e-6))`. If gradients are `scaled`, it counts
/// one over the loss scale of that, and nothing is changed where the norm is not finite.
///
/// Inputs: parameters, gradients, first moments, second moments, each f32[len]; control f32[`CONTROL_LEN`];
/// then norm f32[1] with `clip_norm` or if `scaled`, and the loss scale f32[1] if `scaled`. Outputs: parameters,
/// first and second moments, in place.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    pub segments: Segments,
    /// What the moments keep of their old value, in f64: `1 - beta2`, taken in f32, would be off by 1e-5.
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f32,
    pub weight_decay: f32,
    pub clip_norm: Option<f32>,
    pub scaled: bool,
}

impl Operation for GlobalNorm {
    fn name(&self) -> &'static str {
        "global-norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, self.buckets.len() + usize::from(self.scaled))?;
        if self.scaled {
            expect_type(self.name(), "the loss scale", &inputs[self.buckets.len()], SCALE)?;
        }
        Ok(vec![TensorType::scalar()])
    }

    /// One f64 for each partial sum.
    fn workspace(
        &self,
        _inputs: &[TensorType],
        _outputs: &[TensorType],
        _limits: &super::WorkspaceLimits,
    ) -> u64 {
        let segments = self.buckets.iter().flat_map(|segments| segments.iter());
        let partials: usize = segments.map(|segment| segment.len.div_ceil(Self::ELEMENTS_PER_PARTIAL)).sum();
        (partials * size_of::<f64>()) as u64
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.buckets = sizes.buckets.to_vec();
    }
}

impl Operation for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let needs_norm = self.clip_norm.is_some() || self.scaled;
        expect_inputs(self.name(), inputs, 5 + usize::from(needs_norm) + usize::from(self.scaled))?;
        let bucket = inputs[0];
        for (operand, found) in ["gradients", "first moments", "second moments"].iter().zip(&inputs[1..4]) {
            expect_type(self.name(), operand, found, bucket)?;
        }
        expect_type(self.name(), "control", &inputs[4], TensorType::f32(&[CONTROL_LEN]))?;
        if needs_norm {
            expect_type(self.name(), "norm", &inputs[5], TensorType::scalar())?;
        }
        if self.scaled {
            expect_type(self.name(), "the loss scale", &inputs[6], SCALE)?;
        }
        Ok(vec![bucket, bucket, bucket])
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.segments = sizes.buckets[0].clone();
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 2), (2, 3)]
    }
}
