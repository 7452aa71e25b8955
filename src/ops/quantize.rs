//! Quantization of weights and its inverse.

use super::{
    CodeFormat, DType, NF4_BLOCK, Operation, TensorType, TypeError, WorkspaceLimits, expect_inputs,
    expect_type,
};

/// Quantizes a weight. Input: weight f32[M,K]. Outputs: its codes [M,K] and scales, as defined by the format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantize {
    pub format: CodeFormat,
}

/// Dequantizes a weight. Inputs: codes [M,K] and scales, as defined by the format. Output: the weight num[M,K].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dequantize {
    pub format: CodeFormat,
    pub to: DType,
}

impl Operation for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        let shape = inputs[0].shape;
        expect_type(self.name(), "weight", &inputs[0], TensorType { dtype: DType::F32, shape })?;
        let codes = TensorType { dtype: self.format.dtype(), shape };
        let scales = self.format.scales().iter().map(|scales| scales.ty(&shape));
        Ok(std::iter::once(codes).chain(scales).collect())
    }

    /// The f32 scales before double quantization.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], _limits: &WorkspaceLimits) -> u64 {
        match self.format {
            CodeFormat::Int8 | CodeFormat::Nf4 { double: false } => 0,
            CodeFormat::Nf4 { double: true } => {
                TensorType::f32(&[inputs[0].elements().div_ceil(NF4_BLOCK)]).bytes()
            }
        }
    }
}

impl Operation for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let scales = self.format.scales();
        expect_inputs(self.name(), inputs, 1 + scales.len())?;
        let shape = inputs[0].shape;
        expect_type(self.name(), "codes", &inputs[0], TensorType { dtype: self.format.dtype(), shape })?;
        for (found, scales) in inputs[1..].iter().zip(scales) {
            expect_type(self.name(), "scales", found, scales.ty(&shape))?;
        }
        Ok(vec![TensorType { dtype: self.to, shape }])
    }

    fn is_dequantization(&self) -> bool {
        true
    }
}
