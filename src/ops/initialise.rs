//! Initial values: constants, random numbers and checkpoint tensors.

use super::{Operation, Sizes, TensorType, TypeError, expect_float, expect_inputs};

/// Sets every element to `value`. No inputs; one output num of any shape; for value 0 any dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    pub output: TensorType,
    pub value: f32,
}

/// The standard deviation of random numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deviation {
    Fixed(f32),
    /// `1 / sqrt(3 * fan_in)`, where fan_in is the number of elements of an output feature: the standard deviation of a
    /// uniform distribution on +-1/sqrt(fan_in), as in PyTorch's linear layers and convolutions.
    FanIn,
}

impl Deviation {
    /// The standard deviation for a tensor of this type.
    pub fn of(self, ty: &TensorType) -> f32 {
        match self {
            Deviation::Fixed(deviation) => deviation,
            Deviation::FanIn => {
                let fan_in = ty.elements() / ty.shape.dims()[0];
                (3.0 * fan_in as f64).sqrt().recip() as f32
            }
        }
    }
}

/// Normal random numbers with mean 0. Element i is a pure function of (seed, site, i), so that the order of
/// initialisation does not matter. Drawn in f32 and rounded to nearest. No inputs; one output num of any shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    pub output: TensorType,
    pub deviation: Deviation,
    pub seed: u64,
    pub site: u32,
}

/// Loads a parameter, identified by its site, from the checkpoint that the run starts from. No inputs; one f32 output
/// of any shape. The engine loads it itself; devices never see this operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadParameter {
    pub output: TensorType,
    pub site: u32,
}

impl Operation for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 0)?;
        if !self.is_zeros() {
            expect_float(self.name(), "the output", &self.output)?;
        }
        Ok(vec![self.output])
    }

    fn is_zeros(&self) -> bool {
        self.value == 0.0
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.output = sizes.outputs[0];
    }
}

impl Operation for Normal {
    fn name(&self) -> &'static str {
        "normal"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 0)?;
        expect_float(self.name(), "the output", &self.output)?;
        Ok(vec![self.output])
    }

    fn random_site(&self) -> Option<u32> {
        Some(self.site)
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.output = sizes.outputs[0];
    }
}

impl Operation for LoadParameter {
    fn name(&self) -> &'static str {
        "stored"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 0)?;
        expect_float(self.name(), "the output", &self.output)?;
        Ok(vec![self.output])
    }

    fn stored_site(&self) -> Option<u32> {
        Some(self.site)
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.output = sizes.outputs[0];
    }
}
