//! Storage formats of frozen parameters.

use super::{DType, Member, Members, QUANTIZED_BLOCK, Shape, TensorType, lay_out};

/// The storage format of a frozen parameter. It is cast or dequantized to the matmul dtype where it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// Like trainable parameters.
    #[default]
    Plain,
    /// In a floating-point dtype of its own.
    Numbers(DType),
    Codes(CodeFormat),
}

/// A quantization format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// One byte per number: its value in quantization steps, offset by 128. The scale of a row is its step, 1/127 of
    /// its largest magnitude.
    Int8,
    /// Four bits per number: an index into [`NF4`], relative to the largest magnitude of each block of [`NF4_BLOCK`]
    /// numbers, which is the block's scale.
    Nf4 {
        /// Whether the scales are quantized too (double quantization): their mean is subtracted, and the remainders are
        /// stored as codes of [`DynamicMap::Signed`](super::DynamicMap), with one scale per [`QUANTIZED_BLOCK`] of
        /// them. These second-level scales follow the mean.
        double: bool,
    },
}

/// Numbers per scale.
pub const NF4_BLOCK: usize = 64;

/// NormalFloat4 (Dettmers et al. 2023): quantiles of a normal distribution, as fractions of the block's largest
/// magnitude. About equally many normally distributed numbers round to each.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The scales of quantized codes: a separate value.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    pub dtype: DType,
    /// The number of scales of a tensor of this shape.
    len: fn(&Shape) -> usize,
}

impl Scales {
    /// The type of the scales of a tensor of this shape.
    pub fn ty(&self, shape: &Shape) -> TensorType {
        TensorType::new(self.dtype, &[(self.len)(shape)])
    }

    /// The layout of the scales of a bucket's members.
    pub fn layout(&self, members: &Members) -> (Members, TensorType) {
        let scales = |member: &Member| Member { offset: 0, shape: self.ty(&member.shape).shape, ..*member };
        lay_out(members.iter().map(scales), self.dtype, self.dtype)
    }
}

impl CodeFormat {
    /// The dtype of the codes.
    pub fn dtype(self) -> DType {
        match self {
            CodeFormat::Int8 => DType::U8,
            CodeFormat::Nf4 { .. } => DType::U4,
        }
    }

    /// The values stored besides the codes.
    pub fn scales(self) -> &'static [Scales] {
        fn blocks(shape: &Shape) -> usize {
            shape.elements().div_ceil(NF4_BLOCK)
        }
        const F32: DType = DType::F32;
        match self {
            CodeFormat::Int8 => const { &[Scales { dtype: F32, len: |shape| shape.rows() }] },
            CodeFormat::Nf4 { double: false } => const { &[Scales { dtype: F32, len: blocks }] },
            CodeFormat::Nf4 { double: true } => {
                const {
                    let second_level = |shape: &Shape| 1 + blocks(shape).div_ceil(QUANTIZED_BLOCK);
                    &[Scales { dtype: DType::U8, len: blocks }, Scales { dtype: F32, len: second_level }]
                }
            }
        }
    }
}

impl Storage {
    /// The dtype of the numbers or codes.
    pub fn dtype(self) -> DType {
        match self {
            Storage::Plain => DType::F32,
            Storage::Numbers(dtype) => dtype,
            Storage::Codes(format) => format.dtype(),
        }
    }

    /// The values stored besides the codes; empty without quantization.
    pub fn scales(self) -> &'static [Scales] {
        match self {
            Storage::Plain | Storage::Numbers(_) => &[],
            Storage::Codes(format) => format.scales(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor of odd size, and one with more first-level scales than share one second-level scale.
    #[test]
    fn scales_cover_every_block() {
        let types = |format: CodeFormat, dims: &[usize]| -> Vec<String> {
            format.scales().iter().map(|scales| scales.ty(&Shape::new(dims)).to_string()).collect()
        };
        assert_eq!(types(CodeFormat::Int8, &[3, 65]), ["f32[3]"]);
        assert_eq!(types(CodeFormat::Nf4 { double: false }, &[3, 65]), ["f32[4]"]);
        assert_eq!(types(CodeFormat::Nf4 { double: true }, &[3, 65]), ["u8[4]", "f32[2]"]);
        assert_eq!(types(CodeFormat::Nf4 { double: true }, &[257, 64]), ["u8[257]", "f32[3]"]);
    }
}
