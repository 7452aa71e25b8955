//! Attention kernels. Forward computes one head of one batch element per task, backward the heads that share keys.

/// Calls a function with the micro-kernel of the machine's instruction set.
macro_rules! with_micro_kernel {
    ($workers:expr, $function:ident::<$float:ident>($($argument:expr),*)) => {{
        use $crate::cpu::kernels::{matmul, simd::Level};
        match $workers.level() {
            Level::Portable => $function::<matmul::Portable, $float>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $function::<matmul::Avx2, $float>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => $function::<matmul::Avx512, $float>($($argument),*),
        }
    }};
}

mod backward;
mod forward;
mod gradient_sums;
mod materialized;

use ops::{Attention, AttentionConfig, Heads, TensorType};

use super::dropout::{self, SeededDropout};
use super::float::Float;
use super::matmul::{LeftRows, Matrix, MicroKernel, pack_right};
use super::operands::Operands;
use super::simd::Level;
use super::workers::{SharedSlice, Workers};

pub(super) use backward::run as backward;
pub(super) use forward::run as forward;
pub(super) use materialized::{backward as materialized_backward, forward as materialized_forward};

const QUERIES: usize = Attention::QUERY_TILE;
const KEYS: usize = Attention::KEY_TILE;
const SCORE_ROW: usize = Attention::SCORE_ROW;

/// Sizes and mask of one operation.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    sequence: usize,
    /// Numbers of query heads, and of key and value heads.
    heads: usize,
    kv_heads: usize,
    /// Channels of one head, and of all heads of the output.
    head: usize,
    channels: usize,
    attending: AttentionConfig,
}

impl Sizes {
    fn new(operation: &'static str, attending: AttentionConfig, qkv: &TensorType) -> Sizes {
        let sizes = attending.heads(operation, qkv).expect("an operation's types are checked before it runs");
        let Heads { batch, sequence, queries, keys, head } = sizes;
        Sizes { batch, sequence, heads: queries, kv_heads: keys, head, channels: sizes.channels(), attending }
    }

    /// Elements between positions in qkv.
    fn qkv_stride(&self) -> usize {
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

    /// Offsets of a query head, and of its keys and values.
    fn head_offsets(&self, batch: usize, head: usize) -> HeadOffsets {
        let position = batch * self.sequence;
        let key_head = self.heads + head / (self.heads / self.kv_heads);
        let in_qkv = [head, key_head, key_head + self.kv_heads];
        HeadOffsets {
            position,
            qkv: in_qkv.map(|head| position * self.qkv_stride() + head * self.head),
            out: position * self.channels + head * self.head,
            lse: (batch * self.heads + head) * self.sequence,
            sample: batch,
            dropout_row: head * self.sequence,
        }
    }
}

/// Offsets of one head of one batch element in tensors of each shape (B batch, T sequence, H query heads, G key heads,
/// D head size).
#[derive(Clone, Copy)]
struct HeadOffsets {
    /// In tensors [B,T].
    position: usize,
    /// Of queries, keys and values in qkv [B,T,(H+2G)D].
    qkv: [usize; 3],
    /// In out [B,T,HD].
    out: usize,
    /// In lse f32[B,H,T].
    lse: usize,
    /// The sample, and the row of its dropout mask [HT,T] for the first query.
    sample: usize,
    dropout_row: usize,
}

/// A query head in a group that shares keys. The heads of a group are processed in order.
#[derive(Clone, Copy)]
struct GroupHead {
    offsets: HeadOffsets,
    is_first: bool,
    is_last: bool,
}

/// Calls `work(offsets, scratch)` for each query head.
fn for_each_head(
    sizes: Sizes,
    scratch: &mut [f32],
    scratch_len: usize,
    workers: &Workers,
    work: impl Fn(HeadOffsets, &mut [f32]) + Sync,
) {
    let scratch = SharedSlice::new(scratch);
    workers.for_each_with_worker(sizes.batch * sizes.heads, |worker, index| {
        // SAFETY: each worker has its own range.
        #[allow(unsafe_code)]
        let scratch = unsafe { scratch.range_mut(worker * scratch_len..(worker + 1) * scratch_len) };
        work(sizes.head_offsets(index / sizes.heads, index % sizes.heads), scratch);
    });
}

/// Calls `work(heads, scratch)` for each group of query heads that share keys.
fn for_each_group(
    sizes: Sizes,
    scratch: &mut [f32],
    scratch_len: usize,
    workers: &Workers,
    work: impl Fn(&mut dyn Iterator<Item = GroupHead>, &mut [f32]) + Sync,
) {
    let scratch = SharedSlice::new(scratch);
    let group = sizes.heads / sizes.kv_heads;
    workers.for_each_with_worker(sizes.batch * sizes.kv_heads, |worker, index| {
        // SAFETY: each worker has its own range.
        #[allow(unsafe_code)]
        let scratch = unsafe { scratch.range_mut(worker * scratch_len..(worker + 1) * scratch_len) };
        let (batch, first) = (index / sizes.kv_heads, index % sizes.kv_heads * group);
        let mut heads = (0..group).map(|head| GroupHead {
            offsets: sizes.head_offsets(batch, first + head),
            is_first: head == 0,
            is_last: head + 1 == group,
        });
        work(&mut heads, scratch);
    });
}

/// Packs x^T as the right operand of a matmul over channels; x is [T, head] with a row stride.
fn pack_transposed<M: MicroKernel, T: Float>(
    level: Level,
    x: &[T],
    stride: usize,
    sizes: Sizes,
    packed: &mut [f32],
) {
    let matrix = Matrix::new(x, stride).transposed();
    pack_right::<M, T>(level, &matrix, 0..sizes.head, 0..sizes.sequence, packed);
}

/// Packs x as the right operand of a matmul over positions; x is [T, head] with a row stride.
fn pack_untransposed<M: MicroKernel, T: Float>(
    level: Level,
    x: &[T],
    stride: usize,
    sizes: Sizes,
    packed: &mut [f32],
) {
    pack_right::<M, T>(level, &Matrix::new(x, stride), 0..sizes.sequence, 0..sizes.head, packed);
}

/// The f32 rows of a tile of queries (or of their outputs' gradients): the channels of one head.
#[derive(Clone, Copy)]
struct TileRows<'a> {
    data: &'a [f32],
    stride: usize,
    head: usize,
}

impl<'a> TileRows<'a> {
    /// The first `count` rows of x: x itself if it is f32, otherwise converted to `wide`.
    fn new<T: Float>(
        level: Level,
        x: &'a [T],
        stride: usize,
        count: usize,
        head: usize,
        wide: &'a mut [f32],
    ) -> TileRows<'a> {
        if let Some(data) = T::as_f32(x) {
            return TileRows { data, stride, head };
        }
        for (x, wide) in x.chunks(stride).zip(wide.chunks_exact_mut(head)).take(count) {
            T::widen(level, &x[..head], wide);
        }
        TileRows { data: wide, stride: head, head }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..row * self.stride + self.head]
    }

    /// The rows from `row` on, as the left operand of a matmul over channels.
    fn left(&self, row: usize) -> LeftRows {
        LeftRows { start: self.data[row * self.stride..].as_ptr(), row_stride: self.stride, inner_stride: 1 }
    }
}

/// Takes the first `len` elements of scratch memory.
fn take<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    taken
}

/// A tile of queries and keys, with its mask.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// Whether it is the first tile of these queries.
    is_first: bool,
    /// First key.
    key: usize,
    /// One past the last key.
    key_end: usize,
    /// First query.
    query: usize,
    query_end: usize,
    attending: AttentionConfig,
    starts: DocumentStarts<'a>,
}

/// The first position of the document of each position, if documents are masked.
#[derive(Clone, Copy)]
struct DocumentStarts<'a>(Option<&'a [i32]>);

impl<'a> DocumentStarts<'a> {
    /// For all sequences, from the input with this index.
    fn new(attending: AttentionConfig, index: usize, operands: &Operands<'a>) -> DocumentStarts<'a> {
        DocumentStarts(attending.documents.then(|| operands.i32_input(index)))
    }

    /// For the sequence of a head.
    fn for_head(self, offsets: HeadOffsets, sizes: Sizes) -> DocumentStarts<'a> {
        DocumentStarts(self.0.map(|starts| &starts[offsets.position..offsets.position + sizes.sequence]))
    }

    /// The first key of a query's document.
    fn first_key(self, query: usize) -> usize {
        self.0.map_or(0, |starts| starts[query] as usize)
    }
}

/// The dropout of attention weights, if there is any; `index` is that of the input with the seeds.
fn dropout_of<'a>(
    attending: AttentionConfig,
    index: Option<usize>,
    operands: &Operands<'a>,
) -> Option<SeededDropout<'a>> {
    Some(SeededDropout::new(attending.dropped?, operands.i32_input(index?)))
}

const _: () = assert!(
    Attention::PANEL.is_multiple_of(dropout::PANEL),
    "tiles of keys begin at a multiple of dropout::PANEL"
);

impl<'a> Tile<'a> {
    /// All tiles with keys visible to the tile of queries that begins at `query`. They begin at panels.
    fn for_queries(query: usize, sizes: Sizes, starts: DocumentStarts<'a>) -> impl Iterator<Item = Tile<'a>> {
        let (attending, sequence) = (sizes.attending, sizes.sequence);
        let query_end = sequence.min(query + QUERIES);
        let first = attending.seen(query, sequence).start.max(starts.first_key(query));
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

    /// Groups of `size` queries, as ranges of rows, without those that precede all keys of the tile.
    fn query_groups(self, size: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let rows = self.query_end - self.query;
        (0..rows)
            .step_by(size)
            .map(move |row| row..rows.min(row + size))
            .filter(move |rows| self.keys_until(rows.end) > 0)
    }

    /// The number of keys up to the last one visible to the rows before `end`.
    fn keys_until(self, end: usize) -> usize {
        let last = if self.attending.causal { self.query + end } else { self.key_end };
        self.key_end.min(last).saturating_sub(self.key)
    }

    /// The number of keys before the first one visible to a row: those before its window or document.
    fn hidden_before(self, row: usize) -> usize {
        let query = self.query + row;
        let first = self.attending.seen(query, self.key_end).start.max(self.starts.first_key(query));
        first.saturating_sub(self.key).min(self.key_end - self.key)
    }
}
