//! Element types and shapes.

use std::fmt;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    /// The upper half of an f32: its range, 8 bits of significand.
    BF16,
    /// IEEE half precision: up to 65504, 11 bits of significand.
    F16,
    /// Token and class numbers.
    I32,
}

impl DType {
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
        }
    }

    /// Whether it holds numbers that have gradients.
    pub fn is_float(self) -> bool {
        self != DType::I32
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
        })
    }
}

/// Up to four dimensions, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [usize; 4],
}

impl Shape {
    /// Panics on more than four dimensions: shapes come from models, not from users.
    pub fn new(dims: &[usize]) -> Shape {
        let mut shape = Shape { rank: dims.len() as u8, dims: [1; 4] };
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The innermost dimension; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// All dimensions but the innermost, multiplied.
    pub fn rows(&self) -> usize {
        let dims = self.dims();
        dims[..dims.len().saturating_sub(1)].iter().product()
    }

    /// The same shape this many times over, one after the other along the outermost dimension.
    pub fn times(&self, count: usize) -> Shape {
        let mut shape = *self;
        shape.dims[0] *= count;
        shape
    }

    /// The same shape with another innermost dimension.
    pub fn with_last(&self, last: usize) -> Shape {
        let mut shape = *self;
        shape.dims[self.rank as usize - 1] = last;
        shape
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.dims().iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Element type and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Shape,
}

impl TensorType {
    pub fn new(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType { dtype, shape: Shape::new(dims) }
    }

    pub fn f32(dims: &[usize]) -> TensorType {
        TensorType::new(DType::F32, dims)
    }

    /// One f32.
    pub const fn scalar() -> TensorType {
        TensorType { dtype: DType::F32, shape: Shape { rank: 1, dims: [1; 4] } }
    }

    pub fn i32(dims: &[usize]) -> TensorType {
        TensorType::new(DType::I32, dims)
    }

    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Exact bytes, before any rounding by an allocator.
    pub fn bytes(&self) -> u64 {
        self.elements() as u64 * self.dtype.bytes()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
