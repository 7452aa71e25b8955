//! Matmul with packed operands, after Goto and van de Geijn (2008).
//!
//! The workspace holds packed blocks of both operands: the right operand in panels as wide as a register tile, the left
//! operand in groups of a tile's rows. Each thread computes one rectangle of the result. Each element is summed in
//! order over the inner dimension, in blocks whose length depends on that dimension alone. So its bits depend neither
//! on the number of threads nor on the other rows and columns of the matmul.
//!
//! Packing converts 16-bit operands to f32, except bf16 if the processor multiplies it natively. A 16-bit result is
//! accumulated in f32 in the workspace, for a block of rows at a time, and rounded once at the end.

#[cfg(target_arch = "x86_64")]
mod amx;
mod grid;
mod kernel;
mod micro_kernel;
mod pack;
mod packed_element;

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::is_available as has_amx;
#[cfg(target_arch = "x86_64")]
pub(crate) use micro_kernel::{Avx2, Avx512};
pub(crate) use micro_kernel::{LeftRows, MicroKernel, Portable, Sink, panels};
pub(crate) use pack::pack_right;

#[cfg(target_arch = "x86_64")]
use self::amx::Amx;
use self::grid::Grid;
use self::kernel::Kernel;
#[cfg(target_arch = "x86_64")]
use self::micro_kernel::Avx512Bf16;
use self::pack::LeftBlock;
use self::packed_element::PackedElement;
use super::elementwise::add_to;
use super::float::{BUFFER, Float, read};
use super::operands::Addend;
use super::simd::Level;
use super::workers::{SharedSlice, Workers};
use ops::DType;

/// Packing space of one thread in bytes; it fits the L2 cache.
pub(crate) const WORKSPACE_PER_THREAD: u64 = 1 << 20;

/// Rows of the left operand per packed block: a multiple of every tile's rows, and large enough that a transposed
/// operand is read in long contiguous runs.
const ROW_BLOCK: usize = 96;
/// Rows of a 16-bit result that are accumulated at a time if the inner dimension has several blocks: a multiple of
/// every tile's rows. The right operand is packed again for each such block of rows.
const STAGED_ROWS: usize = 480;
/// f32 elements per cache line, to which panels are aligned.
const LINE: usize = 16;
/// Columns of the widest register tile of any instruction set.
const WIDEST_TILE: usize = 32;

/// Bytes for the largest block of the left operand and one panel of the right operand; with less, matmuls of some
/// shapes are impossible. It is the same for every instruction set, because a target file does not declare one.
pub(crate) const MIN_WORKSPACE_PER_THREAD: u64 =
    ((ROW_BLOCK + WIDEST_TILE) * Portable::MAX_INNER * size_of::<f32>()) as u64;

/// A strided matrix: element (i, j) is `data[i * row_stride + j * column_stride]`. One of the strides is 1.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T = f32> {
    pub(crate) data: &'a [T],
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A row-major matrix.
    pub(crate) fn new(data: &'a [T], columns: usize) -> Matrix<'a, T> {
        Matrix { data, row_stride: columns, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Matrix<'a, T> {
        Matrix { data: self.data, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// Some columns of a row of a row-major matrix.
    fn row_range(&self, row: usize, columns: Range<usize>) -> &'a [T] {
        assert_eq!(self.column_stride, 1, "the matrix is row-major");
        &self.data[row * self.row_stride..][columns]
    }
}

impl<'a, T: Float> Matrix<'a, T> {
    /// The matrix itself, if it is stored in f32.
    fn as_f32(&self) -> Option<Matrix<'a>> {
        let Matrix { row_stride, column_stride, .. } = *self;
        T::as_f32(self.data).map(|data| Matrix { data, row_stride, column_stride })
    }
}

/// `c[rows,columns] = left[rows,inner] right[inner,columns] + addend[rows,columns] + bias[columns]`. Operands have type
/// T, the result C, the bias B; if C is f32, so is B.
pub(crate) struct Matmul<'a, T, C, B> {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) left: Matrix<'a, T>,
    pub(crate) right: Matrix<'a, T>,
    pub(crate) addend: Addend<'a, C>,
    pub(crate) bias: Option<&'a [B]>,
    pub(crate) sums: Option<RowSums<'a>>,
}

/// The sum of each row of a column-major left operand, computed while the operand is packed.
pub(crate) struct RowSums<'a> {
    pub(crate) sums: SharedSlice<'a, f32>,
    /// Whether the sums are added to the present contents.
    pub(crate) accumulate: bool,
}

/// An epilogue, applied to complete sums before they are rounded, while they are in the cache. It receives a part of a
/// row and its range in c.
pub(crate) type Epilogue<'a> = &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync);

impl<T: Float, C: Float, B: Float> Matmul<'_, T, C, B> {
    pub(crate) fn run(
        &self,
        c: &mut [C],
        epilogue: Option<Epilogue>,
        workspace: &mut [f32],
        workers: &Workers,
    ) {
        match workers.level() {
            Level::Portable => self.run_with::<Portable>(c, epilogue, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.run_with::<Avx2>(c, epilogue, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Amx if T::DTYPE == DType::BF16 => self.run_with::<Amx>(c, epilogue, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 if T::DTYPE == DType::BF16 => {
                self.run_with::<Avx512Bf16>(c, epilogue, workspace, workers);
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => {
                self.run_with::<Avx512>(c, epilogue, workspace, workers)
            }
        }
    }

    fn run_with<K: Kernel>(
        &self,
        c: &mut [C],
        epilogue: Option<Epilogue>,
        workspace: &mut [f32],
        workers: &Workers,
    ) {
        self.check(c.len());
        let grid = Grid::new::<K>(self.rows, self.columns, workers.threads());
        let scratch_len = workspace.len() / workers.threads() / LINE * LINE;
        let (c, scratch) = (SharedSlice::new(c), SharedSlice::new(workspace));
        workers.for_each(grid.len(), |index| {
            let (rows, columns) = grid.rectangle(index);
            // SAFETY: each rectangle has its own scratch memory, and rectangles do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                let scratch = scratch.range_mut(index * scratch_len..(index + 1) * scratch_len);
                K::with_configured_units(|| {
                    self.compute_rectangle::<K>(rows, columns, &c, epilogue, workers.level(), scratch)
                });
            }
        });
    }

    /// Checks the bounds that the unchecked accesses rely on.
    fn check(&self, c_len: usize) {
        let holds = |matrix: &Matrix<T>, rows: usize, columns: usize| {
            rows == 0
                || columns == 0
                || (rows - 1) * matrix.row_stride + (columns - 1) * matrix.column_stride < matrix.data.len()
        };
        assert!(holds(&self.left, self.rows, self.inner), "the left operand holds rows x inner");
        assert!(holds(&self.right, self.inner, self.columns), "the right operand holds inner x columns");
        assert_eq!(c_len, self.rows * self.columns, "the result holds rows x columns");
        assert!(C::DTYPE != DType::F32 || B::DTYPE == DType::F32, "an f32 result has an f32 bias");
        if let Addend::Input(addend) = self.addend {
            assert_eq!(addend.len(), c_len, "the addend has the shape of the result");
        }
        assert!(self.bias.is_none_or(|bias| bias.len() == self.columns), "one bias for each column");
        assert!(self.sums.as_ref().is_none_or(|sums| sums.sums.len() == self.rows), "one sum for each row");
    }

    /// # Safety
    ///
    /// No other thread accesses this rectangle of `c`, and `check` has checked the operands.
    #[allow(unsafe_code)]
    unsafe fn compute_rectangle<K: Kernel>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        c: &SharedSlice<C>,
        epilogue: Option<Epilogue>,
        level: Level,
        scratch: &mut [f32],
    ) {
        const { assert!(K::COLUMNS <= WIDEST_TILE && ROW_BLOCK.is_multiple_of(K::ROWS)) };
        let longest = if self.inner <= K::MAX_INNER { K::MAX_INNER } else { K::INNER_BLOCK };
        let inner_block = even_block(self.inner, longest, K::INNER_UNIT);
        let is_split = inner_block < self.inner;
        let row_major = self.left.column_stride == 1 && self.sums.is_none();
        let is_staged = C::DTYPE != DType::F32;
        let pass = if is_staged && is_split { STAGED_ROWS } else { rows.len().max(1) };
        // Scratch memory of blocks of `row_block` rows: packed rows, rows of staged sums, one panel.
        let plan = |row_block: usize| {
            let packed = if row_major && K::reads_in_place(&self.left, self.inner) {
                0
            } else {
                K::left_len(row_block, inner_block).next_multiple_of(LINE)
            };
            let staged_rows = match (is_staged, is_split) {
                (false, _) => 0,
                (true, false) => row_block,
                (true, true) => STAGED_ROWS,
            };
            (packed, staged_rows, K::panel_len(inner_block) + staged_rows * K::COLUMNS)
        };
        let fits = |row_block: usize| {
            let (packed, _, panel) = plan(row_block);
            packed + panel <= scratch.len()
        };
        // For a row-major left operand, blocks have one tile's rows, so that the epilogue reads them from the L1 cache.
        let row_block = if row_major || !fits(ROW_BLOCK) { K::ROWS } else { ROW_BLOCK };
        let (packed, staged_rows, panel) = plan(row_block);
        let (left_scratch, scratch) = scratch.split_at_mut(packed);
        let widest = scratch.len() / panel.max(1) * K::COLUMNS;
        assert!(widest > 0, "the workspace holds a block of each operand");
        let column_block = even_block(columns.len(), widest, K::COLUMNS);
        let (stage, right_scratch) = scratch.split_at_mut(staged_rows * column_block);
        for columns in blocks(columns, column_block) {
            for pass in blocks(rows.clone(), pass) {
                for inner in blocks(0..self.inner, inner_block) {
                    K::pack_right(level, &self.right, inner.clone(), columns.clone(), right_scratch);
                    for rows in blocks(pass.clone(), row_block) {
                        let staged = if is_staged && is_split { rows.start - pass.start } else { 0 };
                        let block = Block { rows, columns: columns.clone(), inner: inner.clone() };
                        let left = if row_major {
                            K::pack_row_major(level, &self.left, &block, left_scratch)
                        } else {
                            // SAFETY: only this thread computes this rectangle.
                            unsafe { self.pack_left::<K>(&block, level, left_scratch) }
                        };
                        let stage = StagedSums {
                            sums: &mut stage[staged * column_block..],
                            row_stride: column_block,
                        };
                        // SAFETY: the packed operands hold this block; the caller guarantees the rest.
                        unsafe {
                            if is_staged {
                                self.staged_block::<K>(
                                    &block,
                                    left,
                                    right_scratch,
                                    stage,
                                    c,
                                    epilogue,
                                    level,
                                );
                            } else {
                                self.direct_block::<K>(&block, left, right_scratch, c, epilogue);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Packs a block of the left operand. The thread that computes the first columns also sums its rows, so that each
    /// row is summed once.
    ///
    /// # Safety
    ///
    /// No other thread computes these rows and columns.
    #[allow(unsafe_code)]
    unsafe fn pack_left<K: Kernel>(&self, block: &Block, level: Level, scratch: &mut [f32]) -> LeftBlock {
        let Some(row_sums) = self.sums.as_ref().filter(|_| block.columns.start == 0) else {
            return K::pack_column_major(level, &self.left, block, scratch, None);
        };
        let mut sums = [0.0; ROW_BLOCK];
        let sums = &mut sums[..block.rows.len()];
        let left = K::pack_column_major(level, &self.left, block, scratch, Some(sums));
        // SAFETY: only this thread computes the first columns of these rows.
        let total = unsafe { row_sums.sums.range_mut(block.rows.clone()) };
        if block.inner.start == 0 && !row_sums.accumulate {
            total.fill(0.0);
        }
        add_to(level, total, sums);
        left
    }

    /// Adds a block of the inner dimension to an f32 result, in place.
    ///
    /// # Safety
    ///
    /// As for `compute_rectangle`; `left` and `right` hold the packed block, and C is f32.
    #[allow(unsafe_code)]
    unsafe fn direct_block<K: Kernel>(
        &self,
        block: &Block,
        left: LeftBlock,
        right: &[f32],
        c: &SharedSlice<C>,
        epilogue: Option<Epilogue>,
    ) {
        let first = block.inner.start == 0;
        let offset = block.rows.start * self.columns + block.columns.start;
        let c_start = c.as_ptr().wrapping_add(offset).cast::<f32>();
        let addend = match self.addend {
            _ if !first => c_start.cast_const(),
            Addend::Zero => std::ptr::null(),
            Addend::Output => c_start.cast_const(),
            Addend::Input(input) => input.as_ptr().wrapping_add(offset).cast(),
        };
        let bias = self.bias.filter(|_| first);
        let bias = bias.map_or(std::ptr::null(), |bias| bias[block.columns.start..].as_ptr().cast());
        let sink =
            Sink { c: c_start, row_stride: self.columns, addend, addend_row_stride: self.columns, bias };
        // SAFETY: guaranteed by the caller.
        unsafe {
            K::multiply(block, left, right, sink);
            if let Some(epilogue) = epilogue.filter(|_| block.inner.end == self.inner) {
                for row in block.rows.clone() {
                    let range = block.row_range(row, self.columns);
                    let sums = C::as_f32_mut(c.range_mut(range.clone())).expect("an f32 result");
                    epilogue(range, sums);
                }
            }
        }
    }

    /// Adds a block of the inner dimension to f32 sums in scratch memory. After the last block, applies the epilogue to
    /// them and rounds them to the result.
    ///
    /// # Safety
    ///
    /// As for `compute_rectangle`; `left` and `right` hold the packed block.
    #[allow(unsafe_code, clippy::too_many_arguments)] // All describe one block.
    unsafe fn staged_block<K: Kernel>(
        &self,
        block: &Block,
        left: LeftBlock,
        right: &[f32],
        stage: StagedSums,
        c: &SharedSlice<C>,
        epilogue: Option<Epilogue>,
        level: Level,
    ) {
        let is_empty = matches!(self.addend, Addend::Zero) && self.bias.is_none();
        let first = block.inner.start == 0;
        if first && !is_empty {
            for (row, sums) in block.rows.clone().zip(stage.sums.chunks_mut(stage.row_stride)) {
                // SAFETY: guaranteed by the caller.
                unsafe { self.init_sums(block, row, &mut sums[..block.columns.len()], c, level) };
            }
        }
        let sums = stage.sums.as_mut_ptr();
        let addend = if first && is_empty { std::ptr::null() } else { sums.cast_const() };
        let sink = Sink {
            c: sums,
            row_stride: stage.row_stride,
            addend,
            addend_row_stride: stage.row_stride,
            bias: std::ptr::null(),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { K::multiply(block, left, right, sink) };
        if block.inner.end == self.inner {
            for (row, sums) in block.rows.clone().zip(stage.sums.chunks_mut(stage.row_stride)) {
                let (range, sums) = (block.row_range(row, self.columns), &mut sums[..block.columns.len()]);
                if let Some(epilogue) = epilogue {
                    epilogue(range.clone(), sums);
                }
                // SAFETY: guaranteed by the caller.
                C::narrow(level, sums, unsafe { c.range_mut(range) });
            }
        }
    }

    /// Initializes a row of sums with the addend and the bias.
    ///
    /// # Safety
    ///
    /// As for `compute_rectangle`.
    #[allow(unsafe_code)]
    unsafe fn init_sums(
        &self,
        block: &Block,
        row: usize,
        sums: &mut [f32],
        c: &SharedSlice<C>,
        level: Level,
    ) {
        let range = block.row_range(row, self.columns);
        match self.addend {
            Addend::Zero => sums.fill(0.0),
            // SAFETY: guaranteed by the caller.
            Addend::Output => C::widen(level, unsafe { c.range_mut(range) }, sums),
            Addend::Input(input) => C::widen(level, &input[range], sums),
        }
        if let Some(bias) = self.bias {
            read(level, &bias[block.columns.clone()], &mut [0.0; BUFFER], |run, bias| {
                add_to(level, &mut sums[run], bias);
            });
        }
    }
}

/// A block of the computation: ranges of rows and columns of the result, and of the inner dimension.
struct Block {
    rows: Range<usize>,
    columns: Range<usize>,
    inner: Range<usize>,
}

impl Block {
    /// The range of one of its rows in a row-major matrix with this many columns.
    fn row_range(&self, row: usize, columns: usize) -> Range<usize> {
        row * columns + self.columns.start..row * columns + self.columns.end
    }
}

/// The f32 sums of a block, in scratch memory.
struct StagedSums<'a> {
    sums: &'a mut [f32],
    row_stride: usize,
}

/// The length of equal blocks of `len` elements: a multiple of `unit`, and at most `longest`, which is also a multiple.
fn even_block(len: usize, longest: usize, unit: usize) -> usize {
    let count = len.div_ceil(longest).max(1);
    len.div_ceil(count).next_multiple_of(unit).max(1)
}

fn blocks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
}
