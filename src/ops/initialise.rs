//! Where values come from: constants, random numbers and files.

use super::{Operation, Sizes, TensorType, TypeError, expect_float, expect_inputs};

/// Every element the same number. No inputs; one output num of any shape, or for 0 of any type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    pub output: TensorType,
    pub value: f32,
}

/// How far random numbers are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deviation {
    Fixed(f32),
    /// That of numbers which are uniform within one over the root of the innermost dimension, either way: what makes of as
    /// many numbers one, is as large for many as for few.
    FanIn,
}

impl Deviation {
    /// For a tensor of this type.
    pub fn of(self, ty: &TensorType) -> f32 {
        match self {
            Deviation::Fixed(deviation) => deviation,
            Deviation::FanIn => (3.0 * ty.shape.last() as f64).sqrt().recip() as f32,
        }
    }
}

/// Normal random numbers of mean 0. Element i is a pure function of (seed, site, i): no state, so the order
/// in which values are made changes nothing. It is made in f32 and rounded to the nearest. No inputs; one output num of any
/// shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    pub output: TensorType,
    pub deviation: Deviation,
    pub seed: u64,
    pub site: u32,
}

/// A parameter's numbers as the file has them that the run starts from, by the parameter's site. No inputs; one f32 output
/// of any shape. Devices know no files: who runs the program reads it.
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
            expect_float(self.name(), "it", &self.output)?;
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
        expect_float(self.name(), "it", &self.output)?;
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
        expect_float(self.name(), "it", &self.output)?;
        Ok(vec![self.output])
    }

    fn stored_site(&self) -> Option<u32> {
        Some(self.site)
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.output = sizes.outputs[0];
    }
}
