//! Division of a matmul's result between threads.

use std::ops::Range;

use super::Kernel;

/// A grid of rectangles of the result, one per thread.
pub(super) struct Grid {
    rows: usize,
    columns: usize,
    /// Numbers of parts of the rows and of the columns.
    parts: [usize; 2],
    /// Numbers of rows and columns that are not divided.
    units: [usize; 2],
}

impl Grid {
    /// Cost of packing one element, in multiply-adds.
    const PACKING: usize = 16;
    /// Granularity of the division of rows. It may be smaller than a tile: a tile with fewer rows takes less time, one
    /// with fewer columns does not.
    const ROWS: usize = 4;

    /// The division with the least work for the busiest thread.
    pub(super) fn new<K: Kernel>(rows: usize, columns: usize, threads: usize) -> Grid {
        let units = [Grid::ROWS, K::COLUMNS];
        let cost = |row_parts: usize| {
            let height = rows.div_ceil(units[0]).div_ceil(row_parts) * units[0];
            let width = columns.div_ceil(units[1]).div_ceil(threads / row_parts) * units[1];
            height * width + Grid::PACKING * (height + width)
        };
        let divisors = (1..=threads).filter(|parts| threads.is_multiple_of(*parts));
        let row_parts = divisors.min_by_key(|&parts| cost(parts)).unwrap_or(1);
        Grid { rows, columns, parts: [row_parts, threads / row_parts], units }
    }

    pub(super) fn len(&self) -> usize {
        self.parts[0] * self.parts[1]
    }

    pub(super) fn rectangle(&self, index: usize) -> (Range<usize>, Range<usize>) {
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
