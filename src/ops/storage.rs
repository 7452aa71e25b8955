//! How parameters that are not trained are stored.

use super::{DType, Member, Members, QUANTIZED_BLOCK, Shape, TensorType, lay_out};

/// What a frozen parameter is stored as. Where it is used, it is brought to what the work is done in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As parameters that are trained are.
    #[default]
    Plain,
    /// As numbers of a type of their own.
    Numbers(DType),
    Codes(CodeFormat),
}

/// What codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// A byte for each number: how many steps it is above 0 or below, which is code 128. A row's scale is its step, the 127th
    /// part of its largest magnitude.
    Int8,
    /// Half a byte for each number: one of [`NF4`], as shares of the largest magnitude of each [`NF4_BLOCK`] numbers, which is
    /// their scale.
    Nf4 {
        /// Whether scales are quantized themselves: their mean is taken off, and what is left of [`QUANTIZED_BLOCK`] of them
        /// is a code of [`DynamicMap::Signed`](super::DynamicMap) each with a scale of their own. These scales come behind
        /// the mean.
        double: bool,
    },
}

/// Numbers that share a scale.
pub const NF4_BLOCK: usize = 64;

/// NormalFloat4 (Dettmers et al. 2023): of a normal distribution's numbers about as many are nearest to each of these shares
/// of their largest magnitude.
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

/// What codes are multiplied by to be numbers again: a value beside them.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    pub dtype: DType,
    /// How many a tensor of a shape has.
    len: fn(&Shape) -> usize,
}

impl Scales {
    /// Those of a tensor of this shape.
    pub fn ty(&self, shape: &Shape) -> TensorType {
        TensorType::new(self.dtype, &[(self.len)(shape)])
    }

    /// How those of a bucket's members lie in memory.
    pub fn layout(&self, members: &Members) -> (Members, TensorType) {
        let of = |member: &Member| Member { offset: 0, shape: self.ty(&member.shape).shape, ..*member };
        lay_out(members.iter().map(of), self.dtype, self.dtype)
    }
}

impl CodeFormat {
    /// Of the codes.
    pub fn dtype(self) -> DType {
        match self {
            CodeFormat::Int8 => DType::U8,
            CodeFormat::Nf4 { .. } => DType::U4,
        }
    }

    /// What there is beside the codes.
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
                    let of_scales = |shape: &Shape| 1 + blocks(shape).div_ceil(QUANTIZED_BLOCK);
                    &[Scales { dtype: DType::U8, len: blocks }, Scales { dtype: F32, len: of_scales }]
                }
            }
        }
    }
}

impl Storage {
    /// Of what has a parameter's shape.
    pub fn dtype(self) -> DType {
        match self {
            Storage::Plain => DType::F32,
            Storage::Numbers(dtype) => dtype,
            Storage::Codes(format) => format.dtype(),
        }
    }

    /// What there is beside that.
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

    /// Of a tensor of odd sizes, and of one with more scales than share one of their own.
    #[test]
    fn scales_are_counted() {
        let types = |format: CodeFormat, dims: &[usize]| -> Vec<String> {
            format.scales().iter().map(|scales| scales.ty(&Shape::new(dims)).to_string()).collect()
        };
        assert_eq!(types(CodeFormat::Int8, &[3, 65]), ["f32[3]"]);
        assert_eq!(types(CodeFormat::Nf4 { double: false }, &[3, 65]), ["f32[4]"]);
        assert_eq!(types(CodeFormat::Nf4 { double: true }, &[3, 65]), ["u8[4]", "f32[2]"]);
        assert_eq!(types(CodeFormat::Nf4 { double: true }, &[257, 64]), ["u8[257]", "f32[3]"]);
    }
}
