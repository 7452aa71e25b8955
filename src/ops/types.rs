//! Element types and shapes.

use std::fmt;
use std::ops::Range;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    F32,
    /// The upper half of an f32: its range, 8 bits of significand.
    BF16,
    /// IEEE half precision: up to 65504, 11 bits of significand.
    F16,
    /// Token and class ids.
    I32,
    /// Unsigned integers.
    U16,
    /// Unsigned integers, or 8-bit quantization codes.
    U8,
    /// 4-bit quantization codes, two per byte; the first is in the lower half.
    U4,
}

impl DType {
    #[inline]
    pub fn bits(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 32,
            DType::BF16 | DType::F16 | DType::U16 => 16,
            DType::U8 => 8,
            DType::U4 => 4,
        }
    }

    /// Bytes of one element.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.bytes_of(1)
    }

    /// Bytes of `elements` elements.
    #[inline]
    pub fn bytes_of(self, elements: usize) -> u64 {
        (elements as u64 * self.bits()).div_ceil(8)
    }

    /// Whether it is a floating-point type, whose values can have gradients.
    #[inline]
    pub fn is_float(self) -> bool {
        match self {
            DType::F32 | DType::BF16 | DType::F16 => true,
            DType::I32 | DType::U16 | DType::U8 | DType::U4 => false,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U16 => "u16",
            DType::U8 => "u8",
            DType::U4 => "u4",
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
    #[inline]
    pub fn new(dims: &[usize]) -> Shape {
        let mut shape = Shape { rank: dims.len() as u8, dims: [1; 4] };
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape
    }

    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    #[inline]
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The innermost dimension; 1 for a scalar.
    #[inline]
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// All dimensions but the innermost, multiplied.
    #[inline]
    pub fn rows(&self) -> usize {
        let dims = self.dims();
        dims[..dims.len().saturating_sub(1)].iter().product()
    }

    /// The same shape with another outermost dimension.
    #[inline]
    pub fn with_first(&self, first: usize) -> Shape {
        let mut shape = *self;
        shape.dims[0] = first;
        shape
    }

    /// The shape [rows in the slice, innermost dimension].
    #[inline]
    pub fn of_rows(&self, slice: RowSlice) -> Shape {
        Shape::new(&[slice.range(self.rows()).len(), self.last()])
    }

    /// The same shape with another innermost dimension.
    #[inline]
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

/// One of `of` slices of a tensor's rows. All slices have the same number of rows, except the last, which may have
/// fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowSlice {
    pub index: usize,
    /// The number of slices; none is empty.
    pub of: usize,
}

impl RowSlice {
    pub const WHOLE: RowSlice = RowSlice { index: 0, of: 1 };

    /// The smallest number of slices whose length is at most that of `most` slices.
    pub fn count(rows: usize, most: usize) -> usize {
        rows.div_ceil(rows.div_ceil(most).max(1))
    }

    pub fn all(of: usize) -> impl Iterator<Item = RowSlice> {
        (0..of).map(move |index| RowSlice { index, of })
    }

    /// The range of this slice in a tensor of `rows` rows.
    #[inline]
    pub fn range(self, rows: usize) -> Range<usize> {
        let each = rows.div_ceil(self.of);
        (self.index * each).min(rows)..((self.index + 1) * each).min(rows)
    }
}

impl fmt::Display for RowSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice {} of {}", self.index + 1, self.of)
    }
}

/// Element type and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Shape,
}

impl TensorType {
    #[inline]
    pub fn new(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType { dtype, shape: Shape::new(dims) }
    }

    #[inline]
    pub fn f32(dims: &[usize]) -> TensorType {
        TensorType::new(DType::F32, dims)
    }

    /// One f32.
    pub const fn scalar() -> TensorType {
        TensorType { dtype: DType::F32, shape: Shape { rank: 1, dims: [1; 4] } }
    }

    #[inline]
    pub fn i32(dims: &[usize]) -> TensorType {
        TensorType::new(DType::I32, dims)
    }

    #[inline]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Exact bytes, before any rounding by an allocator.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes_of(self.elements())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        /// Slices are consecutive, cover all rows and are not empty; all but the last have the full length.
        #[test]
        fn slices_partition_all_rows(rows in 1..500usize, most in 1..60usize) {
            let count = RowSlice::count(rows, most);
            prop_assert!(count <= most);
            let mut next = 0;
            for slice in RowSlice::all(count) {
                let range = slice.range(rows);
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty());
                prop_assert!(range.len() == rows.div_ceil(most) || slice.index + 1 == count);
                next = range.end;
            }
            prop_assert_eq!(next, rows);
        }
    }
}
