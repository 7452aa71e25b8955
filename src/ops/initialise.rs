//! Where values come from: constants, random numbers and files.

use super::{DType, Operation, Sizes, TensorType, TypeError, expect_inputs, expect_type};

/// Every element the same number. No inputs; one f32 output of any shape, or of any type and with no bit set for 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    pub output: TensorType,
    pub value: f32,
}

/// Normal random numbers of mean 0. Element i is a pure function of (seed, site, i): no state, so the order
/// in which values are made changes nothing. No inputs; one f32 output of any shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    pub output: TensorType,
    pub deviation: f32,
    pub seed: u64,
    pub site: u32,
}

/// A parameter's numbers as the file has them that the run starts from, by the parameter's site. No inputs; one f32 output
/// of any shape. Devices know no files: who runs the program reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored {
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
            expect_type(self.name(), "it", &self.output, TensorType { dtype: DType::F32, ..self.output })?;
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
        expect_type(self.name(), "it", &self.output, TensorType { dtype: DType::F32, ..self.output })?;
        Ok(vec![self.output])
    }

    fn random_site(&self) -> Option<u32> {
        Some(self.site)
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.output = sizes.outputs[0];
    }
}

impl Operation for Stored {
    fn name(&self) -> &'static str {
        "stored"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 0)?;
        expect_type(self.name(), "it", &self.output, TensorType { dtype: DType::F32, ..self.output })?;
        Ok(vec![self.output])
    }

    fn stored_site(&self) -> Option<u32> {
        Some(self.site)
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.output = sizes.outputs[0];
    }
}
