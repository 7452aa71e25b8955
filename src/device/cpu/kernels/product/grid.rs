//! How a product's result is divided between threads.

use std::ops::Range;

use super::Kernel;

/// How the result is divided between threads.
pub(super) struct Grid {
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
