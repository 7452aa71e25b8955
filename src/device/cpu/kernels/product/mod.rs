//! Matrix products with packed operands, after Goto and van de Geijn (2008).
//!
//! The right operand is packed into panels as wide as a register tile, the left into rows that lie side by side,
//! both in the workspace of the operation. Each thread computes a rectangle of the result by itself. An element
//! is a sum over the inner dimension in order, in blocks whose length depends on that dimension alone: it has the
//! same bits on any number of threads and whatever other rows and columns are computed with it.

mod micro;
mod pack;

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
pub(crate) use micro::{Avx2, Avx512};
pub(crate) use micro::{Left, Micro, Portable, Sink};
pub(crate) use pack::pack_right;

use self::pack::LeftBlock;
use super::elementwise::add_to;
use super::operands::Start;
use super::simd::Level;
use super::workers::{Parts, Workers};

/// Packing space of one thread in bytes: what lies in it is read from the second-level cache.
pub(crate) const WORKSPACE_PER_THREAD: u64 = 1 << 20;

/// Longest inner dimension that is not cut.
const INNER_BLOCK: usize = 384;
/// Longest block of one that is.
const CUT_BLOCK: usize = 256;
/// Rows of the left operand that are packed at a time: a multiple of all tiles' rows, and enough that a transposed
/// operand is read in long pieces.
const ROW_BLOCK: usize = 96;
/// Columns of the widest register tile of any instruction set.
const WIDEST_TILE: usize = 32;

/// What the largest block of the left operand and one panel of the right need; with less, products of some shapes
/// cannot be computed. The same for every instruction set, for a target file does not say which one there is.
pub(crate) const LEAST_WORKSPACE_PER_THREAD: u64 =
    ((ROW_BLOCK + WIDEST_TILE) * INNER_BLOCK * size_of::<f32>()) as u64;

/// Element (i, j) is `data[i * row + j * step]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix with this many columns.
    pub(crate) fn new(data: &'a [f32], columns: usize) -> Matrix<'a> {
        Matrix { data, row: columns, step: 1 }
    }

    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix { data: self.data, row: self.step, step: self.row }
    }
}

/// `c[rows,columns] = left[rows,inner] right[inner,columns] + start + bias[columns]`
pub(crate) struct Product<'a> {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) left: Matrix<'a>,
    pub(crate) right: Matrix<'a>,
    pub(crate) start: Start<'a>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) sums: Option<RowSums<'a>>,
}

/// The sums of the rows of the left operand, whose columns lie along memory: found while it is packed.
pub(crate) struct RowSums<'a> {
    pub(crate) sums: Parts<'a, f32>,
    /// Whether they are added to what is there.
    pub(crate) accumulate: bool,
}

/// What is done to finished elements while they are in the cache: gets a row's piece and its place in c.
pub(crate) type Finish<'a> = &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync);

impl Product<'_> {
    pub(crate) fn run(
        &self,
        c: &mut [f32],
        finish: Option<Finish>,
        workspace: &mut [f32],
        workers: &Workers,
    ) {
        match workers.level() {
            Level::Portable => self.run_with::<Portable>(c, finish, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.run_with::<Avx2>(c, finish, workspace, workers),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => self.run_with::<Avx512>(c, finish, workspace, workers),
        }
    }

    fn run_with<M: Micro>(
        &self,
        c: &mut [f32],
        finish: Option<Finish>,
        workspace: &mut [f32],
        workers: &Workers,
    ) {
        self.check(c.len());
        let grid = Grid::new::<M>(self.rows, self.columns, workers.threads());
        let scratch_len = workspace.len() / workers.threads() / 16 * 16;
        let (c, scratch) = (Parts::new(c), Parts::new(workspace));
        workers.each(grid.len(), |index| {
            let (rows, columns) = grid.rectangle(index);
            // SAFETY: each rectangle has scratch memory of its own, and rectangles do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                let scratch = scratch.part(index * scratch_len..(index + 1) * scratch_len);
                self.rectangle::<M>(rows, columns, &c, finish, workers.level(), scratch);
            }
        });
    }

    /// The bounds that the unchecked accesses rely on.
    fn check(&self, c_len: usize) {
        let holds = |matrix: &Matrix, rows: usize, columns: usize| {
            rows == 0
                || columns == 0
                || (rows - 1) * matrix.row + (columns - 1) * matrix.step < matrix.data.len()
        };
        assert!(holds(&self.left, self.rows, self.inner), "the left operand holds rows x inner");
        assert!(holds(&self.right, self.inner, self.columns), "the right operand holds inner x columns");
        assert_eq!(c_len, self.rows * self.columns, "the result holds rows x columns");
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
    unsafe fn rectangle<M: Micro>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        c: &Parts<f32>,
        finish: Option<Finish>,
        level: Level,
        scratch: &mut [f32],
    ) {
        const { assert!(M::COLUMNS <= WIDEST_TILE) };
        let longest = if self.inner <= INNER_BLOCK { INNER_BLOCK } else { CUT_BLOCK };
        let inner_block = even_block(self.inner, longest, 1);
        let in_place = self.left.step == 1 && self.sums.is_none();
        // Where nothing is packed, what was computed is finished while it is in the cache that is nearest.
        let row_block = if in_place { M::ROWS } else { ROW_BLOCK };
        let packed = if in_place { 0 } else { row_block * inner_block };
        let (left_scratch, right_scratch) = scratch.split_at_mut(packed);
        let widest = right_scratch.len() / inner_block.max(1) / M::COLUMNS * M::COLUMNS;
        assert!(widest > 0, "the workspace holds a block of each operand");
        let column_block = even_block(columns.len(), widest, M::COLUMNS);
        for columns in blocks(columns, column_block) {
            for inner in blocks(0..self.inner, inner_block) {
                pack_right::<M>(&self.right, inner.clone(), columns.clone(), right_scratch);
                for rows in blocks(rows.clone(), row_block) {
                    let left = if in_place {
                        LeftBlock::in_place(&self.left, &rows, &inner)
                    } else {
                        // SAFETY: no other thread computes this rectangle.
                        unsafe { self.pack_left::<M>(&rows, &inner, &columns, level, left_scratch) }
                    };
                    // SAFETY: the packed operands hold this block, the rest is the caller's promise.
                    unsafe {
                        self.block::<M>(&rows, &inner, &columns, left, right_scratch, c);
                        if let Some(finish) = finish.filter(|_| inner.end == self.inner) {
                            for row in rows {
                                let place =
                                    row * self.columns + columns.start..row * self.columns + columns.end;
                                finish(place.clone(), c.part(place));
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
    unsafe fn pack_left<M: Micro>(
        &self,
        rows: &Range<usize>,
        inner: &Range<usize>,
        columns: &Range<usize>,
        level: Level,
        scratch: &mut [f32],
    ) -> LeftBlock {
        let Some(wanted) = self.sums.as_ref().filter(|_| columns.start == 0) else {
            return LeftBlock::packed::<M>(&self.left, rows, inner, scratch, None);
        };
        let mut sums = [0.0; ROW_BLOCK];
        let sums = &mut sums[..rows.len()];
        let left = LeftBlock::packed::<M>(&self.left, rows, inner, scratch, Some((level, sums)));
        // SAFETY: nobody else computes the first columns of these rows.
        let so_far = unsafe { wanted.sums.part(rows.clone()) };
        if inner.start == 0 && !wanted.accumulate {
            so_far.fill(0.0);
        }
        add_to(level, so_far, sums);
        left
    }

    /// Adds one block of the inner dimension to a block of the result.
    ///
    /// # Safety
    ///
    /// As for `rectangle`; `left` and `right` hold the packed block.
    #[allow(unsafe_code)]
    unsafe fn block<M: Micro>(
        &self,
        rows: &Range<usize>,
        inner: &Range<usize>,
        columns: &Range<usize>,
        left: LeftBlock,
        right: &[f32],
        c: &Parts<f32>,
    ) {
        let first = inner.start == 0;
        for row in rows.clone().step_by(M::ROWS) {
            let place = row * self.columns + columns.start;
            let c_start = c.as_ptr().wrapping_add(place);
            let from = match self.start {
                _ if !first => c_start.cast_const(),
                Start::Zero => std::ptr::null(),
                Start::Output => c_start.cast_const(),
                Start::Other(other) => other.as_ptr().wrapping_add(place),
            };
            let bias =
                self.bias.filter(|_| first).map_or(std::ptr::null(), |bias| bias[columns.start..].as_ptr());
            let sink = Sink { c: c_start, row: self.columns, from, from_row: self.columns, bias };
            // SAFETY: by the caller's promise.
            unsafe {
                panels::<M>(
                    M::ROWS.min(rows.end - row),
                    columns.len(),
                    inner.len(),
                    left.rows_from(row - rows.start),
                    right.as_ptr(),
                    inner.len() * M::COLUMNS,
                    sink,
                );
            }
        }
    }
}

/// Multiplies at most `M::ROWS` rows by panels of the right operand, `panel_len` elements apart.
///
/// # Safety
///
/// The operands hold what is named, the result's elements are written by nobody else, and the machine has the
/// instruction set.
#[allow(unsafe_code)]
pub(crate) unsafe fn panels<M: Micro>(
    rows: usize,
    columns: usize,
    k: usize,
    left: Left,
    right: *const f32,
    panel_len: usize,
    sink: Sink,
) {
    for (index, column) in (0..columns).step_by(M::COLUMNS).enumerate() {
        // SAFETY: by the caller's promise.
        unsafe {
            M::tile(
                rows,
                M::COLUMNS.min(columns - column),
                k,
                left,
                right.add(index * panel_len),
                sink.columns_from(column),
            );
        }
    }
}

/// Blocks of equal length, a multiple of `unit` and at most `longest`, which is one too.
fn even_block(len: usize, longest: usize, unit: usize) -> usize {
    let count = len.div_ceil(longest).max(1);
    len.div_ceil(count).next_multiple_of(unit).max(1)
}

fn blocks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
}

/// How the result is divided between threads.
struct Grid {
    rows: usize,
    columns: usize,
    /// Parts that the rows and the columns are cut into.
    parts: [usize; 2],
    /// What is not cut.
    units: [usize; 2],
}

impl Grid {
    /// Packing one element costs about as much as this many multiply-adds.
    const PACKING: usize = 16;
    /// A tile with fewer rows takes less time, one with fewer columns does not: rows are cut nearly anywhere.
    const ROWS: usize = 4;

    /// The division with the least work for the busiest thread.
    fn new<M: Micro>(rows: usize, columns: usize, threads: usize) -> Grid {
        let units = [Grid::ROWS, M::COLUMNS];
        let cost = |row_parts: usize| {
            let height = rows.div_ceil(units[0]).div_ceil(row_parts) * units[0];
            let width = columns.div_ceil(units[1]).div_ceil(threads / row_parts) * units[1];
            height * width + Grid::PACKING * (height + width)
        };
        let divisors = (1..=threads).filter(|parts| threads.is_multiple_of(*parts));
        let row_parts = divisors.min_by_key(|&parts| cost(parts)).unwrap_or(1);
        Grid { rows, columns, parts: [row_parts, threads / row_parts], units }
    }

    fn len(&self) -> usize {
        self.parts[0] * self.parts[1]
    }

    fn rectangle(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let part = |len: usize, unit: usize, parts: usize, index: usize| {
            let tiles = len.div_ceil(unit);
            let edge = |index: usize| len.min(tiles * index / parts * unit);
            edge(index)..edge(index + 1)
        };
        (
            part(self.rows, self.units[0], self.parts[0], index / self.parts[1]),
            part(self.columns, self.units[1], self.parts[1], index % self.parts[1]),
        )
    }
}
