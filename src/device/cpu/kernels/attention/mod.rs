//! Causal attention in tiles of scores, one batch element's head at a time.

/// Calls a function for the machine's instruction set.
macro_rules! with_micro {
    ($workers:expr, $function:ident::<$float:ident>($($argument:expr),*)) => {{
        use $crate::device::cpu::kernels::{product, simd::Level};
        match $workers.level() {
            Level::Portable => $function::<product::Portable, $float>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $function::<product::Avx2, $float>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => $function::<product::Avx512, $float>($($argument),*),
        }
    }};
}

mod backward;
mod forward;
mod materialized;
mod sums;

use crate::ops::{Attention, TensorType};

use super::float::Float;
use super::product::{Left, Matrix, Micro, pack_right};
use super::simd::Level;
use super::workers::{Parts, Workers};

pub(super) use backward::run as backward;
pub(super) use forward::run as forward;
pub(super) use materialized::{backward as materialized_backward, forward as materialized_forward};

const QUERIES: usize = Attention::QUERY_TILE;
const KEYS: usize = Attention::KEY_TILE;
const SCORE_ROW: usize = Attention::SCORE_ROW;

/// Sizes of one operation.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    sequence: usize,
    channels: usize,
    heads: usize,
    /// Channels of one head.
    head: usize,
}

impl Sizes {
    fn new(qkv: &TensorType, heads: usize) -> Sizes {
        let (dims, channels) = (qkv.shape.dims(), qkv.shape.last() / 3);
        Sizes { batch: dims[0], sequence: dims[1], channels, heads, head: channels / heads }
    }

    /// Elements between positions in a qkv.
    fn row(&self) -> usize {
        3 * self.channels
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head as f32).sqrt()
    }

    fn padded_head(&self) -> usize {
        self.head.next_multiple_of(Attention::PANEL)
    }

    fn padded_sequence(&self) -> usize {
        self.sequence.next_multiple_of(Attention::PANEL)
    }
}

/// One head of one batch element: where it begins in a tensor of each shape.
#[derive(Clone, Copy)]
struct Head {
    /// Queries in qkv [B,T,3C]; keys lie C and values 2C after them.
    qkv: usize,
    /// In out [B,T,C].
    out: usize,
    /// In lse f32[B,H,T].
    lse: usize,
}

/// Calls `work` for each head with scratch memory of its own.
fn each_head(
    sizes: Sizes,
    scratch: &mut [f32],
    scratch_len: usize,
    workers: &Workers,
    work: impl Fn(Head, &mut [f32]) + Sync,
) {
    let scratch = Parts::new(scratch);
    workers.each_by(sizes.batch * sizes.heads, |worker, index| {
        // SAFETY: each worker has a part of its own.
        #[allow(unsafe_code)]
        let scratch = unsafe { scratch.part(worker * scratch_len..(worker + 1) * scratch_len) };
        let (batch, head) = (index / sizes.heads, index % sizes.heads);
        let position = batch * sizes.sequence;
        let place = Head {
            qkv: position * sizes.row() + head * sizes.head,
            out: position * sizes.channels + head * sizes.head,
            lse: index * sizes.sequence,
        };
        work(place, scratch);
    });
}

/// Packs x^T, x [T, head] with rows `row` elements apart, as the right operand of a product over channels.
fn pack_transposed<M: Micro, T: Float>(level: Level, x: &[T], row: usize, sizes: Sizes, packed: &mut [f32]) {
    let matrix = Matrix::new(x, row).transposed();
    pack_right::<M, T>(level, &matrix, 0..sizes.head, 0..sizes.sequence, packed);
}

/// Packs x [T, head] as the right operand of a product over positions.
fn pack_straight<M: Micro, T: Float>(level: Level, x: &[T], row: usize, sizes: Sizes, packed: &mut [f32]) {
    pack_right::<M, T>(level, &Matrix::new(x, row), 0..sizes.sequence, 0..sizes.head, packed);
}

/// Rows of a head's channels in f32, for tiles of queries: this many elements apart.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    row: usize,
    head: usize,
}

impl<'a> Rows<'a> {
    /// The first `count` rows of x, `row` elements apart: where they lie, or copied to `wide`.
    fn new<T: Float>(
        level: Level,
        x: &'a [T],
        row: usize,
        count: usize,
        head: usize,
        wide: &'a mut [f32],
    ) -> Rows<'a> {
        if let Some(data) = T::as_f32(x) {
            return Rows { data, row, head };
        }
        for (x, wide) in x.chunks(row).zip(wide.chunks_exact_mut(head)).take(count) {
            T::widen(level, &x[..head], wide);
        }
        Rows { data: wide, row: head, head }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.row..row * self.row + self.head]
    }

    /// The rows from this one on, as the left operand of a product over channels.
    fn left(&self, row: usize) -> Left {
        Left { start: self.data[row * self.row..].as_ptr(), row: self.row, step: 1 }
    }
}

/// Takes `len` elements off the front of scratch memory.
fn take<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    taken
}

/// The keys of one tile, from `key`, that the queries from `first` to `end` see, and which of them each sees.
#[derive(Clone, Copy)]
struct Tile {
    /// First key.
    key: usize,
    /// One past the last key.
    key_end: usize,
    /// First query.
    query: usize,
    query_end: usize,
}

impl Tile {
    /// All tiles that queries of the tile beginning at `query` see.
    fn of_queries(query: usize, sequence: usize) -> impl Iterator<Item = Tile> {
        let query_end = sequence.min(query + QUERIES);
        (0..query_end).step_by(KEYS).map(move |key| Tile {
            key,
            key_end: query_end.min(key + KEYS),
            query,
            query_end,
        })
    }

    /// Groups of `size` queries, as ranges of rows of the tile, that see a key of it.
    fn query_groups(self, size: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let rows = self.query_end - self.query;
        (0..rows)
            .step_by(size)
            .map(move |row| row..rows.min(row + size))
            .filter(move |rows| self.query + rows.end > self.key)
    }

    /// Keys that the rows up to `end` see.
    fn keys_until(self, end: usize) -> usize {
        self.key_end.min(self.query + end).saturating_sub(self.key)
    }
}
