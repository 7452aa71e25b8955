//! Matrix products with packed operands, after Goto and van de Geijn (2008).
//!
//! The right operand is packed into panels as wide as a register tile, the left into rows that lie side by side,
//! both in the workspace of the operation. Each thread computes a rectangle of the result by itself. An element
//! is a sum over the inner dimension in order, in blocks whose length depends on that dimension alone: it has the
//! same bits on any number of threads and whatever other rows and columns are computed with it.
//!
//! Operands of 16 bits become f32 when they are packed, except for bf16 where the processor multiplies it. A result of
//! 16 bits is summed in f32 in the workspace, for as many rows as find room there, and rounded when it is finished.

#[cfg(target_arch = "x86_64")]
mod amx;
mod element;
mod grid;
mod kernel;
mod micro;
mod pack;

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::is_available as has_amx;
#[cfg(target_arch = "x86_64")]
pub(crate) use micro::{Avx2, Avx512};
pub(crate) use micro::{Left, Micro, Portable, Sink, panels};
pub(crate) use pack::pack_right;

#[cfg(target_arch = "x86_64")]
use self::amx::Amx;
use self::element::Element;
use self::grid::Grid;
use self::kernel::Kernel;
#[cfg(target_arch = "x86_64")]
use self::micro::Avx512Bf16;
use self::pack::LeftBlock;
use super::elementwise::add_to;
use super::float::{BUFFER, Float, read};
use super::operands::Start;
use super::simd::Level;
use super::workers::{Parts, Workers};
use ops::DType;

/// Packing space of one thread in bytes: what lies in it is read from the second-level cache.
pub(crate) const WORKSPACE_PER_THREAD: u64 = 1 << 20;

/// Rows of the left operand that are packed at a time: a multiple of all tiles' rows, and enough that a transposed
/// operand is read in long pieces.
const ROW_BLOCK: usize = 96;
/// Rows of a result of 16 bits that are summed at a time where the inner dimension is cut: a multiple of all tiles'
/// rows. The right operand is packed once for each.
const STAGED_ROWS: usize = 480;
/// Elements of a cache line, at which panels begin.
const LINE: usize = 16;
/// Columns of the widest register tile of any instruction set.
const WIDEST_TILE: usize = 32;

/// What the largest block of the left operand and one panel of the right need; with less, products of some shapes
/// cannot be computed. The same for every instruction set, for a target file does not say which one there is.
pub(crate) const LEAST_WORKSPACE_PER_THREAD: u64 =
    ((ROW_BLOCK + WIDEST_TILE) * Portable::LONGEST * size_of::<f32>()) as u64;

/// Element (i, j) is `data[i * row + j * step]`. One of the strides is 1.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T = f32> {
    pub(crate) data: &'a [T],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A row-major matrix with this many columns.
    pub(crate) fn new(data: &'a [T], columns: usize) -> Matrix<'a, T> {
        Matrix { data, row: columns, step: 1 }
    }

    pub(crate) fn transposed(self) -> Matrix<'a, T> {
        Matrix { data: self.data, row: self.step, step: self.row }
    }

    /// Some columns of a row, which lie along memory.
    fn along(&self, row: usize, columns: Range<usize>) -> &'a [T] {
        assert_eq!(self.step, 1, "rows lie along memory");
        &self.data[row * self.row..][columns]
    }
}

impl<'a, T: Float> Matrix<'a, T> {
    /// The matrix itself, where it is stored in f32.
    fn as_f32(&self) -> Option<Matrix<'a>> {
        T::as_f32(self.data).map(|data| Matrix { data, row: self.row, step: self.step })
    }
}

/// `c[rows,columns] = left[rows,inner] right[inner,columns] + start + bias[columns]`, from operands stored as T and
/// a bias stored as B to a result stored as C; where that is f32, so is the bias.
pub(crate) struct Product<'a, T, C, B> {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) left: Matrix<'a, T>,
    pub(crate) right: Matrix<'a, T>,
    pub(crate) start: Start<'a, C>,
    pub(crate) bias: Option<&'a [B]>,
    pub(crate) sums: Option<RowSums<'a>>,
}

/// The sums of the rows of the left operand, whose columns lie along memory: found while it is packed.
pub(crate) struct RowSums<'a> {
    pub(crate) sums: Parts<'a, f32>,
    /// Whether they are added to what is there.
    pub(crate) accumulate: bool,
}

/// What is done to finished elements, before they are rounded, while they are in the cache: gets a row's piece and
/// its place in c.
pub(crate) type Finish<'a> = &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync);

impl<T: Float, C: Float, B: Float> Product<'_, T, C, B> {
    pub(crate) fn run(&self, c: &mut [C], finish: Option<Finish>, workspace: &mut [f32], workers: &Workers) {
        match workers.level() {
            Level::Portable => self.run_with::<Portable>(c, finish, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.run_with::<Avx2>(c, finish, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Amx if T::DTYPE == DType::BF16 => self.run_with::<Amx>(c, finish, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 if T::DTYPE == DType::BF16 => {
                self.run_with::<Avx512Bf16>(c, finish, workspace, workers);
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => {
                self.run_with::<Avx512>(c, finish, workspace, workers)
            }
        }
    }

    fn run_with<K: Kernel>(
        &self,
        c: &mut [C],
        finish: Option<Finish>,
        workspace: &mut [f32],
        workers: &Workers,
    ) {
        self.check(c.len());
        let grid = Grid::new::<K>(self.rows, self.columns, workers.threads());
        let scratch_len = workspace.len() / workers.threads() / LINE * LINE;
        let (c, scratch) = (Parts::new(c), Parts::new(workspace));
        workers.each(grid.len(), |index| {
            let (rows, columns) = grid.rectangle(index);
            // SAFETY: each rectangle has scratch memory of its own, and rectangles do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                let scratch = scratch.part(index * scratch_len..(index + 1) * scratch_len);
                K::prepared(|| self.rectangle::<K>(rows, columns, &c, finish, workers.level(), scratch));
            }
        });
    }

    /// The bounds that the unchecked accesses rely on.
    fn check(&self, c_len: usize) {
        let holds = |matrix: &Matrix<T>, rows: usize, columns: usize| {
            rows == 0
                || columns == 0
                || (rows - 1) * matrix.row + (columns - 1) * matrix.step < matrix.data.len()
        };
        assert!(holds(&self.left, self.rows, self.inner), "the left operand holds rows x inner");
        assert!(holds(&self.right, self.inner, self.columns), "the right operand holds inner x columns");
        assert_eq!(c_len, self.rows * self.columns, "the result holds rows x columns");
        assert!(C::DTYPE != DType::F32 || B::DTYPE == DType::F32, "a result in f32 has its bias in f32");
        if let Start::Other(start) = self.start {
            assert_eq!(start.len(), c_len, "what is added to is as large as the result");
        }
        assert!(self.bias.is_none_or(|bias| bias.len() == self.columns), "one bias for each column");
        assert!(self.sums.as_ref().is_none_or(|sums| sums.sums.len() == self.rows), "one sum for each row");
    }

    /// # Safety
    ///
    /// No other thread touches this rectangle of `c`, and the operands have been checked.
    #[allow(unsafe_code)]
    unsafe fn rectangle<K: Kernel>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        c: &Parts<C>,
        finish: Option<Finish>,
        level: Level,
        scratch: &mut [f32],
    ) {
        const { assert!(K::COLUMNS <= WIDEST_TILE && ROW_BLOCK.is_multiple_of(K::ROWS)) };
        let longest = if self.inner <= K::LONGEST { K::LONGEST } else { K::CUT };
        let inner_block = even_block(self.inner, longest, K::UNIT);
        let is_cut = inner_block < self.inner;
        let along = self.left.step == 1 && self.sums.is_none();
        // Where nothing is transposed, what was computed is finished while it is in the cache that is nearest.
        let row_block = if along { K::ROWS } else { ROW_BLOCK };
        let packed = if along && K::is_in_place(&self.left, self.inner) {
            0
        } else {
            K::left_len(row_block, inner_block)
        };
        let (left_scratch, scratch) = scratch.split_at_mut(packed.next_multiple_of(LINE));
        let is_staged = C::DTYPE != DType::F32;
        let pass = if is_staged && is_cut { STAGED_ROWS } else { rows.len().max(1) };
        let staged_rows = match (is_staged, is_cut) {
            (false, _) => 0,
            (true, false) => row_block,
            (true, true) => STAGED_ROWS,
        };
        let panel = K::panel_len(inner_block) + staged_rows * K::COLUMNS;
        let widest = scratch.len() / panel.max(1) * K::COLUMNS;
        assert!(widest > 0, "the workspace holds a block of each operand");
        let column_block = even_block(columns.len(), widest, K::COLUMNS);
        let (stage, right_scratch) = scratch.split_at_mut(staged_rows * column_block);
        for columns in blocks(columns, column_block) {
            for pass in blocks(rows.clone(), pass) {
                for inner in blocks(0..self.inner, inner_block) {
                    K::pack_right(level, &self.right, inner.clone(), columns.clone(), right_scratch);
                    for rows in blocks(pass.clone(), row_block) {
                        let staged = if is_staged && is_cut { rows.start - pass.start } else { 0 };
                        let block = Block { rows, columns: columns.clone(), inner: inner.clone() };
                        let left = if along {
                            K::rows_along(level, &self.left, &block, left_scratch)
                        } else {
                            // SAFETY: no other thread computes this rectangle.
                            unsafe { self.pack_left::<K>(&block, level, left_scratch) }
                        };
                        let stage = Stage { sums: &mut stage[staged * column_block..], row: column_block };
                        // SAFETY: the packed operands hold this block, the rest is the caller's promise.
                        unsafe {
                            if is_staged {
                                self.staged_block::<K>(&block, left, right_scratch, stage, c, finish, level);
                            } else {
                                self.direct_block::<K>(&block, left, right_scratch, c, finish);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Packs a block of the left operand. Whoever computes the first columns sums its rows, so that it is done once.
    ///
    /// # Safety
    ///
    /// No other thread computes these rows and columns.
    #[allow(unsafe_code)]
    unsafe fn pack_left<K: Kernel>(&self, block: &Block, level: Level, scratch: &mut [f32]) -> LeftBlock {
        let Some(wanted) = self.sums.as_ref().filter(|_| block.columns.start == 0) else {
            return K::rows_beside(level, &self.left, block, scratch, None);
        };
        let mut sums = [0.0; ROW_BLOCK];
        let sums = &mut sums[..block.rows.len()];
        let left = K::rows_beside(level, &self.left, block, scratch, Some(sums));
        // SAFETY: nobody else computes the first columns of these rows.
        let so_far = unsafe { wanted.sums.part(block.rows.clone()) };
        if block.inner.start == 0 && !wanted.accumulate {
            so_far.fill(0.0);
        }
        add_to(level, so_far, sums);
        left
    }

    /// Adds a block of the inner dimension to a result in f32, where it lies.
    ///
    /// # Safety
    ///
    /// As for `rectangle`; `left` and `right` hold the packed block, and C is f32.
    #[allow(unsafe_code)]
    unsafe fn direct_block<K: Kernel>(
        &self,
        block: &Block,
        left: LeftBlock,
        right: &[f32],
        c: &Parts<C>,
        finish: Option<Finish>,
    ) {
        let first = block.inner.start == 0;
        let place = block.rows.start * self.columns + block.columns.start;
        let c_start = c.as_ptr().wrapping_add(place).cast::<f32>();
        let from = match self.start {
            _ if !first => c_start.cast_const(),
            Start::Zero => std::ptr::null(),
            Start::Output => c_start.cast_const(),
            Start::Other(other) => other.as_ptr().wrapping_add(place).cast(),
        };
        let bias = self.bias.filter(|_| first);
        let bias = bias.map_or(std::ptr::null(), |bias| bias[block.columns.start..].as_ptr().cast());
        let sink = Sink { c: c_start, row: self.columns, from, from_row: self.columns, bias };
        // SAFETY: by the caller's promise.
        unsafe {
            K::multiply(block, left, right, sink);
            if let Some(finish) = finish.filter(|_| block.inner.end == self.inner) {
                for row in block.rows.clone() {
                    let place = block.place(row, self.columns);
                    let part = C::as_f32_mut(c.part(place.clone())).expect("a result in f32");
                    finish(place, part);
                }
            }
        }
    }

    /// Adds a block of the inner dimension to sums in f32, which are finished and rounded after the last one.
    ///
    /// # Safety
    ///
    /// As for `rectangle`; `left` and `right` hold the packed block.
    #[allow(unsafe_code, clippy::too_many_arguments)] // What a block is made of.
    unsafe fn staged_block<K: Kernel>(
        &self,
        block: &Block,
        left: LeftBlock,
        right: &[f32],
        stage: Stage,
        c: &Parts<C>,
        finish: Option<Finish>,
        level: Level,
    ) {
        let is_empty = matches!(self.start, Start::Zero) && self.bias.is_none();
        let first = block.inner.start == 0;
        if first && !is_empty {
            for (row, sums) in block.rows.clone().zip(stage.sums.chunks_mut(stage.row)) {
                // SAFETY: by the caller's promise.
                unsafe { self.begin(block, row, &mut sums[..block.columns.len()], c, level) };
            }
        }
        let sums = stage.sums.as_mut_ptr();
        let from = if first && is_empty { std::ptr::null() } else { sums.cast_const() };
        let sink = Sink { c: sums, row: stage.row, from, from_row: stage.row, bias: std::ptr::null() };
        // SAFETY: by the caller's promise.
        unsafe { K::multiply(block, left, right, sink) };
        if block.inner.end == self.inner {
            for (row, sums) in block.rows.clone().zip(stage.sums.chunks_mut(stage.row)) {
                let (place, sums) = (block.place(row, self.columns), &mut sums[..block.columns.len()]);
                if let Some(finish) = finish {
                    finish(place.clone(), sums);
                }
                // SAFETY: by the caller's promise.
                C::narrow(level, sums, unsafe { c.part(place) });
            }
        }
    }

    /// What a row of sums begins as.
    ///
    /// # Safety
    ///
    /// As for `rectangle`.
    #[allow(unsafe_code)]
    unsafe fn begin(&self, block: &Block, row: usize, sums: &mut [f32], c: &Parts<C>, level: Level) {
        let place = block.place(row, self.columns);
        match self.start {
            Start::Zero => sums.fill(0.0),
            // SAFETY: by the caller's promise.
            Start::Output => C::widen(level, unsafe { c.part(place) }, sums),
            Start::Other(other) => C::widen(level, &other[place], sums),
        }
        if let Some(bias) = self.bias {
            read(level, &bias[block.columns.clone()], &mut [0.0; BUFFER], |run, bias| {
                add_to(level, &mut sums[run], bias);
            });
        }
    }
}

/// What is computed at a time.
struct Block {
    rows: Range<usize>,
    columns: Range<usize>,
    inner: Range<usize>,
}

impl Block {
    /// Where a row of it lies in a matrix with this many columns.
    fn place(&self, row: usize, columns: usize) -> Range<usize> {
        row * columns + self.columns.start..row * columns + self.columns.end
    }
}

/// Scratch memory for the sums of a block, whose rows are this many elements apart.
struct Stage<'a> {
    sums: &'a mut [f32],
    row: usize,
}

/// Blocks of equal length, a multiple of `unit` and at most `longest`, which is one too.
fn even_block(len: usize, longest: usize, unit: usize) -> usize {
    let count = len.div_ceil(longest).max(1);
    len.div_ceil(count).next_multiple_of(unit).max(1)
}

fn blocks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
}
