//! The global gradient norm.

use super::{
    Members, Operation, SCALE, Sizes, TensorType, TypeError, WorkspaceLimits, expect_inputs, expect_type,
};

/// `norm = sqrt(sum of the squares of all elements)`, summed in f64; with `scaled`, divided by the loss scale.
///
/// Inputs: any number of buckets num[len], then the loss scale f32[1] if `scaled`. Output: norm f32[1].
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalNorm {
    /// The layout of each bucket.
    pub buckets: Vec<Members>,
    pub scaled: bool,
}

impl GlobalNorm {
    /// Elements per partial sum; each bucket member starts a new one.
    pub const ELEMENTS_PER_PARTIAL: usize = 1 << 16;
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

    /// One f64 per partial sum.
    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], _limits: &WorkspaceLimits) -> u64 {
        let members = self.buckets.iter().flat_map(|members| members.iter());
        let partials: usize =
            members.map(|member| member.elements().div_ceil(Self::ELEMENTS_PER_PARTIAL)).sum();
        (partials * size_of::<f64>()) as u64
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.buckets = sizes.buckets.to_vec();
    }
}
