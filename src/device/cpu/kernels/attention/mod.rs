//! Attention in tiles of scores: forward one batch element's head at a time, backward those that share keys.

/// Calls a function for the machine's instruction set.
macro_rules! with_micro {
    ($workers:expr, $function:ident::<$float:ident>($($argument:expr),*)) => {{
        use $crate::cpu::kernels::{product, simd::Level};
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

use ops::{Attending, Attention, Heads, TensorType};

use super::dropout::{self, Chance};
use super::float::Float;
use super::operands::Operands;
use super::product::{Left, Matrix, Micro, pack_right};
use super::simd::Level;
use super::workers::{Parts, Workers};

pub(super) use backward::run as backward;
pub(super) use forward::run as forward;
pub(super) use materialized::{backward as materialized_backward, forward as materialized_forward};

const QUERIES: usize = Attention::QUERY_TILE;
const KEYS: usize = Attention::KEY_TILE;
const SCORE_ROW: usize = Attention::SCORE_ROW;

/// Sizes of one operation, and what each query sees.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    sequence: usize,
    /// Heads of queries, and of keys and values.
    heads: usize,
    kv_heads: usize,
    /// Channels of one head, and of all of a result.
    head: usize,
    channels: usize,
    attending: Attending,
}

impl Sizes {
    fn new(operation: &'static str, attending: Attending, qkv: &TensorType) -> Sizes {
        let sizes = attending.heads(operation, qkv).expect("an operation's types are checked before it runs");
        let Heads { batch, sequence, queries, keys, head } = sizes;
        Sizes { batch, sequence, heads: queries, kv_heads: keys, head, channels: sizes.channels(), attending }
    }

    /// Elements between positions in a qkv.
    fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head
    }

    fn scale(&self) -> f32 {
        self.attending.scale(self.head)
    }

    fn padded_head(&self) -> usize {
        self.head.next_multiple_of(Attention::PANEL)
    }

    fn padded_sequence(&self) -> usize {
        self.sequence.next_multiple_of(Attention::PANEL)
    }

    /// Where a head of queries and what belongs to it begin.
    fn place(&self, batch: usize, head: usize) -> Head {
        let position = batch * self.sequence;
        let key_head = self.heads + head / (self.heads / self.kv_heads);
        let in_qkv = [head, key_head, key_head + self.kv_heads];
        Head {
            position,
            qkv: in_qkv.map(|head| position * self.row() + head * self.head),
            out: position * self.channels + head * self.head,
            lse: (batch * self.heads + head) * self.sequence,
            sample: batch,
            row: head * self.sequence,
        }
    }
}

/// One head of one batch element: where it begins in a tensor of each shape.
#[derive(Clone, Copy)]
struct Head {
    /// In what there is one of for each position, [B,T].
    position: usize,
    /// Queries, keys and values in qkv [B,T,(H+2G)D].
    qkv: [usize; 3],
    /// In out [B,T,HD].
    out: usize,
    /// In lse f32[B,H,T].
    lse: usize,
    /// Its sample, and which of that's rows of weights is its first query's.
    sample: usize,
    row: usize,
}

/// A head of those that share keys, one after the other.
#[derive(Clone, Copy)]
struct Member {
    place: Head,
    is_first: bool,
    is_last: bool,
}

/// Calls `work` for each head of queries with scratch memory of its own.
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
        work(sizes.place(index / sizes.heads, index % sizes.heads), scratch);
    });
}

/// Calls `work` for the heads of queries that share keys, with scratch memory that only these have.
fn each_group(
    sizes: Sizes,
    scratch: &mut [f32],
    scratch_len: usize,
    workers: &Workers,
    work: impl Fn(&mut dyn Iterator<Item = Member>, &mut [f32]) + Sync,
) {
    let scratch = Parts::new(scratch);
    let group = sizes.heads / sizes.kv_heads;
    workers.each_by(sizes.batch * sizes.kv_heads, |worker, index| {
        // SAFETY: each worker has a part of its own.
        #[allow(unsafe_code)]
        let scratch = unsafe { scratch.part(worker * scratch_len..(worker + 1) * scratch_len) };
        let (batch, first) = (index / sizes.kv_heads, index % sizes.kv_heads * group);
        let mut members = (0..group).map(|member| Member {
            place: sizes.place(batch, first + member),
            is_first: member == 0,
            is_last: member + 1 == group,
        });
        work(&mut members, scratch);
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

/// Some keys and queries, and which of the keys each of the queries sees.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// Whether it is the first of these queries.
    is_first: bool,
    /// First key.
    key: usize,
    /// One past the last key.
    key_end: usize,
    /// First query.
    query: usize,
    query_end: usize,
    attending: Attending,
    starts: Starts<'a>,
}

/// Where the document of each position of a sequence begins, if documents are told apart.
#[derive(Clone, Copy)]
struct Starts<'a>(Option<&'a [i32]>);

impl<'a> Starts<'a> {
    /// Of all sequences.
    fn of_all(attending: Attending, index: usize, operands: &Operands<'a>) -> Starts<'a> {
        Starts(attending.documents.then(|| operands.tokens(index)))
    }

    fn of(self, place: Head, sizes: Sizes) -> Starts<'a> {
        Starts(self.0.map(|starts| &starts[place.position..place.position + sizes.sequence]))
    }

    /// The first key that a query sees for its document.
    fn first(self, query: usize) -> usize {
        self.0.map_or(0, |starts| starts[query] as usize)
    }
}

/// The chance of weights to be dropped, if there is one: the seeds are the input of that index.
fn chance<'a>(attending: Attending, index: Option<usize>, operands: &Operands<'a>) -> Option<Chance<'a>> {
    Some(Chance::new(attending.dropped?, operands.tokens(index?)))
}

const _: () =
    assert!(Attention::PANEL.is_multiple_of(dropout::PANEL), "tiles of keys begin where numbers do");

impl<'a> Tile<'a> {
    /// All tiles that queries of the tile beginning at `query` see. They begin where panels do.
    fn of_queries(query: usize, sizes: Sizes, starts: Starts<'a>) -> impl Iterator<Item = Tile<'a>> {
        let (attending, sequence) = (sizes.attending, sizes.sequence);
        let query_end = sequence.min(query + QUERIES);
        let first = attending.seen(query, sequence).start.max(starts.first(query));
        let first = first / Attention::PANEL * Attention::PANEL;
        let end = attending.seen(query_end - 1, sequence).end;
        (first..end).step_by(KEYS).map(move |key| Tile {
            is_first: key == first,
            key,
            key_end: end.min(key + KEYS),
            query,
            query_end,
            attending,
            starts,
        })
    }

    /// Groups of `size` queries, as ranges of rows of the tile, that see a key of it or come too late to.
    fn query_groups(self, size: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let rows = self.query_end - self.query;
        (0..rows)
            .step_by(size)
            .map(move |row| row..rows.min(row + size))
            .filter(move |rows| self.keys_until(rows.end) > 0)
    }

    /// Keys up to the last one that the rows up to `end` see.
    fn keys_until(self, end: usize) -> usize {
        let last = if self.attending.causal { self.query + end } else { self.key_end };
        self.key_end.min(last).saturating_sub(self.key)
    }

    /// Keys that a row no longer sees.
    fn hidden(self, row: usize) -> usize {
        let query = self.query + row;
        let first = self.attending.seen(query, self.key_end).start.max(self.starts.first(query));
        first.saturating_sub(self.key).min(self.key_end - self.key)
    }
}
