//! `torch.nn.functional.scaled_dot_product_attention`.

use super::elementwise::softmax;
use super::manual_attention::{bmm, joined};
use super::views::copied;
use super::{cast, dropout, scale};
use crate::autograd::Gradient;
use crate::checkpoint::results;
use crate::coverage::NotCovered;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{OpKind, Shape};
use spec::KeywordEnum;

/// The sizes of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) batch: usize,
    pub(crate) sequence: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) head: usize,
    /// Whether queries lie in memory by head, [B, H, T, D], so that FlashAttention's result does, too.
    pub(crate) by_head: bool,
}

impl Heads {
    fn elements(&self) -> [usize; 2] {
        [self.queries, self.keys].map(|heads| self.batch * self.sequence * heads * self.head)
    }

    /// [B, H, T, D]
    pub(crate) fn query_shape(&self) -> Shape {
        Shape::new(&[self.batch, self.queries, self.sequence, self.head])
    }

    /// [B, G, T, D]
    pub(crate) fn key_shape(&self) -> Shape {
        Shape::new(&[self.batch, self.keys, self.sequence, self.head])
    }

    /// That of queries, keys or values: 0, 1 or 2.
    pub(crate) fn part_shape(&self, part: usize) -> Shape {
        if part == 0 { self.query_shape() } else { self.key_shape() }
    }

    /// Whether FlashAttention's output is a copy as [B, T, H, D].
    pub(crate) fn copies_flash_output(&self) -> bool {
        self.by_head && self.queries > 1
    }

    /// Channels per head of FlashAttention's accumulators.
    fn flash_channels(&self) -> u64 {
        self.head.next_multiple_of(if self.head <= 128 { 32 } else { 64 }) as u64
    }

    /// One f32 for each row of each query head, with `sequence` rows.
    fn rows(&self, sequence: usize) -> u64 {
        4 * (self.batch * self.queries * sequence) as u64
    }
}

/// The kernel that `_fused_sdp_choice` takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Flash,
    /// Memory-efficient attention.
    Efficient,
}

/// Whether attention without a mask is FlashAttention.
pub(crate) fn is_flash(torch: &Torch, dtype: DType) -> bool {
    Kernel::choose(torch, dtype) == Kernel::Flash
}

/// Whether attention without a mask has no fused kernel, but is written out in PyTorch: grouped heads in fp32.
pub(crate) fn is_unfused(torch: &Torch, heads: Heads, dtype: DType) -> bool {
    dtype == DType::F32 && heads.keys != heads.queries && !torch.rules.efficient_groups
}

impl Kernel {
    fn choose(torch: &Torch, dtype: DType) -> Kernel {
        if dtype.is_half() && torch.card.capability >= (8, 0) { Kernel::Flash } else { Kernel::Efficient }
    }
}

/// Fused attention of q [B, H, T, D] with k and v [B, G, T, D]; with a mask, of this shape, if not only later positions
/// are hidden.
pub(crate) fn scaled_dot_product_attention(
    torch: &Torch,
    [q, k, v]: [&Tensor; 3],
    mask: Option<Shape>,
    heads: Heads,
    is_causal: bool,
    has_dropout: bool,
) -> Tensor {
    let autocast = |tensor: &Tensor| match torch.autocast() {
        Some(dtype) => cast(torch, tensor, dtype),
        None => tensor.clone(),
    };
    let v = autocast(v);
    let k = autocast(k);
    let q = autocast(q);
    let dtype = q.dtype();
    let kernel = if mask.is_some() { Kernel::Efficient } else { Kernel::choose(torch, dtype) };
    if kernel == Kernel::Efficient && heads.keys != heads.queries && !torch.rules.efficient_groups {
        if is_unfused(torch, heads, dtype) && mask.is_none() {
            if torch.keeps_results() {
                torch.refuse(NotCovered(format!(
                    "selective checkpointing of grouped heads in fp32, which PyTorch {} has no fused kernel for",
                    torch.rules.version.keyword()
                )));
            }
            return unfused_attention(torch, [&q, &k, &v], is_causal, heads, has_dropout);
        }
        torch.refuse(NotCovered(format!(
            "grouped heads with a mask or, before compute capability 8.0, in fp16: PyTorch {} has no fused kernel for them",
            torch.rules.version.keyword()
        )));
    }
    let bias = mask.map(|mask| bias_of_mask(torch, mask, dtype));
    let node = torch.node(&[&q, &k, &v], &[&q, &k, &v], move |torch, _| match kernel {
        Kernel::Flash => flash_backward(torch, heads, dtype),
        Kernel::Efficient => efficient_backward(torch, heads, dtype, has_dropout),
    });
    let mut saved = results(torch, OpKind::Attention, || {
        let (output, saved) = match kernel {
            Kernel::Flash => flash_forward(torch, heads, dtype, has_dropout),
            Kernel::Efficient => efficient_forward(torch, heads, dtype, has_dropout, node.is_some()),
        };
        [vec![output], saved].concat()
    });
    let output = saved.remove(0);
    match node {
        None => output,
        Some(node) => {
            node.save(torch, &output.detached());
            bias.iter().for_each(|tensor| node.save(torch, tensor));
            saved.iter().for_each(|tensor| node.save(torch, tensor));
            output.output_of(&node, 0)
        }
    }
}

/// A mask as numbers that are added to scores: 0 or minus infinity. Rows are padded to 8 elements.
fn bias_of_mask(torch: &Torch, mask: Shape, dtype: DType) -> Tensor {
    let bias = {
        let _numbers = [torch.scalar(dtype), torch.scalar(dtype)];
        torch.tensor(mask, dtype)
    };
    match mask.last().next_multiple_of(8) {
        padded if padded == mask.last() => bias,
        padded => torch.tensor(mask.with_last(padded), dtype),
    }
}

/// Attention of grouped heads where no fused kernel takes them, `_scaled_dot_product_attention_math`.
fn unfused_attention(
    torch: &Torch,
    [q, k, v]: [&Tensor; 3],
    is_causal: bool,
    heads: Heads,
    has_dropout: bool,
) -> Tensor {
    let scores = Shape::new(&[heads.batch, heads.queries, heads.sequence, heads.sequence]);
    let square = |dtype: DType| torch.empty(&[heads.sequence, heads.sequence], dtype);
    let output = {
        let q = scale(torch, q);
        let _bias = is_causal.then(|| {
            let _lower = {
                let _ones = square(DType::Bool);
                square(DType::Bool)
            };
            let _numbers = [torch.scalar(q.dtype()), torch.scalar(q.dtype())];
            square(q.dtype())
        });
        let [k, v] = [k, v].map(|x| interleaved(torch, x, heads));
        let products = {
            let k = scale(torch, &k);
            let is_copied = heads.queries > 1 && heads.batch > 1 && !heads.by_head;
            let q = if is_copied { copied(torch, &q) } else { q.clone() };
            bmm(torch, &q, &k, scores)
        };
        let mut weights = softmax(torch, &products, products.dtype());
        {
            // Rows of which all scores are minus infinity become zero.
            let _is_infinite = torch.tensor(scores, DType::Bool);
            let _rows = torch.empty(&[heads.batch, heads.queries, heads.sequence], DType::Bool);
            torch.scalar(DType::F32);
        }
        drop(products);
        if has_dropout {
            weights = dropout(torch, &weights);
        }
        bmm(torch, &weights, &v, heads.query_shape())
    };
    joined(torch, output, heads)
}

/// `x.repeat_interleave(H // G, 1)`, whose gradient is summed by group.
fn interleaved(torch: &Torch, x: &Tensor, heads: Heads) -> Tensor {
    torch.output((heads.query_shape(), x.dtype()), None, &[x], &[], move |torch, backward| {
        vec![torch.tensor(heads.key_shape(), backward.gradient().dtype()).into()]
    })
}

fn flash_forward(torch: &Torch, heads: Heads, dtype: DType, has_dropout: bool) -> (Tensor, Vec<Tensor>) {
    let output = torch.tensor(heads.query_shape(), dtype);
    let sums = torch.empty(&[heads.batch, heads.queries, heads.sequence], DType::F32);
    let splits = if has_dropout { 1 } else { flash_splits(torch, heads) };
    let accumulators = (splits > 1).then(|| {
        let rows = splits as u64 * heads.rows(heads.sequence);
        [torch.storage(rows), torch.storage(rows * heads.flash_channels())]
    });
    let mut saved = vec![sums];
    if torch.rules.flash_state_on_card {
        saved.extend([torch.empty(&[2], DType::I64), torch.empty(&[1], DType::I64)]);
        if has_dropout {
            // The generator's state replaces the placeholder.
            saved[1] = torch.empty(&[2], DType::I64);
        }
    }
    drop(accumulators);
    (output, saved)
}

/// The number of parts that FlashAttention divides keys into, where queries alone do not fill the card
/// (`num_splits_heuristic`).
fn flash_splits(torch: &Torch, heads: Heads) -> usize {
    let blocks = heads.batch * heads.queries * heads.sequence.div_ceil(64);
    let key_tile = match heads.head {
        ..=64 => 256,
        65..=128 => 128,
        _ => 64,
    };
    let parts = heads.sequence.div_ceil(key_tile);
    let places = 2 * torch.card.multiprocessors;
    if blocks as f64 >= 0.8 * places as f64 {
        return 1;
    }
    let efficiency = |splits: usize| {
        let is_eligible = splits == 1 || parts.div_ceil(splits) != parts.div_ceil(splits - 1);
        let waves = (blocks * splits) as f64 / places as f64;
        is_eligible.then(|| waves / (blocks * splits).div_ceil(places) as f64)
    };
    let candidates =
        || (1..=128.min(places).min(parts)).filter_map(|splits| Some((splits, efficiency(splits)?)));
    let best = candidates().map(|(_, efficiency)| efficiency).fold(0.0, f64::max);
    candidates().find(|(_, efficiency)| *efficiency >= 0.85 * best).map_or(1, |(splits, _)| splits)
}

fn flash_backward(torch: &Torch, heads: Heads, dtype: DType) -> Vec<Gradient> {
    // `out.contiguous()` of [B, T, H, D].
    let _output = heads.copies_flash_output().then(|| torch.tensor(heads.query_shape(), dtype));
    let gradients = empty_gradients(torch, heads, dtype);
    let rows = heads.rows(heads.sequence.next_multiple_of(128));
    let _delta = torch.storage(rows);
    let _dq = torch.storage(rows * heads.flash_channels());
    let _expanded = expanded_gradients(torch, heads, dtype);
    gradients
}

fn efficient_forward(
    torch: &Torch,
    heads: Heads,
    dtype: DType,
    has_dropout: bool,
    needs_grad: bool,
) -> (Tensor, Vec<Tensor>) {
    // With dropout, seed and offset lie in host memory.
    let mut saved = match torch.rules.efficient_state_on_card && !has_dropout {
        true => vec![torch.scalar(DType::I64), torch.scalar(DType::I64)],
        false => Vec::new(),
    };
    let output = torch.tensor(heads.query_shape(), dtype);
    if needs_grad {
        let rows = heads.sequence.next_multiple_of(32);
        saved.push(torch.empty(&[heads.batch, heads.queries, rows], DType::F32));
    }
    if dtype.is_half() && heads.head > 128 {
        // The output's sums do not fit into registers.
        torch.scratch(4 * heads.elements()[0] as u64);
    }
    (output, saved)
}

fn efficient_backward(torch: &Torch, heads: Heads, dtype: DType, has_dropout: bool) -> Vec<Gradient> {
    let gradients = empty_gradients(torch, heads, dtype);
    let _expanded = expanded_gradients(torch, heads, dtype);
    let rows = heads.rows(heads.sequence);
    // The sum of gradient times output, which the fp16 kernel computes itself.
    let _delta = if dtype.is_half() {
        torch.storage(rows)
    } else {
        let _products = torch.storage(4 * heads.elements()[0] as u64);
        let sums = torch.storage(rows);
        // Made contiguous, [B, H, T].
        if heads.queries > 1 { torch.storage(rows) } else { sums }
    };
    // Before Volta, no kernel for fp32 divides the keys.
    if dtype.is_half() || torch.card.capability >= (7, 0) {
        torch.scratch(efficient_workspace(torch, heads, dtype, has_dropout));
    }
    gradients
}

/// The workspace of memory-efficient attention's backward: for each tile of query gradients a counter and its sum; in
/// some kernels, also the sums of the gradients of keys and values.
fn efficient_workspace(torch: &Torch, heads: Heads, dtype: DType, has_dropout: bool) -> u64 {
    let has_large_shared_memory = matches!(torch.card.capability, (8..=10, 0));
    let (rows, columns, sums_all) = match (dtype.is_half(), heads.head) {
        (_, ..=64) => (64, 64, false),
        (false, _) => (if has_large_shared_memory { 128 } else { 64 }, 64, false),
        (true, 129..) => (128, 64, true),
        // The kernel for up to 96 channels has no dropout.
        (true, head) if matches!(torch.card.capability, (8, 6 | 9)) && (head > 96 || has_dropout) => {
            (64, 64, true)
        }
        (true, _) if torch.card.capability == (7, 5) => (128, 64, false),
        (true, _) => (if has_large_shared_memory { 128 } else { 64 }, 128, false),
    };
    let tiles = heads.sequence.div_ceil(rows) * heads.head.div_ceil(columns);
    let sums = heads.sequence.next_multiple_of(64) * heads.head.next_multiple_of(rows);
    let bytes = tiles * (16 + 4 * rows * columns) + if sums_all { 2 * 4 * sums } else { 0 };
    (heads.batch * heads.queries * bytes) as u64
}

fn empty_gradients(torch: &Torch, heads: Heads, dtype: DType) -> Vec<Gradient> {
    let shapes = [heads.query_shape(), heads.key_shape(), heads.key_shape()];
    shapes.into_iter().map(|shape| torch.tensor(shape, dtype).into()).collect()
}

/// Gradients of keys and values for every query head, before they are summed over groups.
fn expanded_gradients(torch: &Torch, heads: Heads, dtype: DType) -> Vec<Tensor> {
    let count = if heads.keys == heads.queries { 0 } else { 2 };
    (0..count).map(|_| torch.tensor(heads.query_shape(), dtype)).collect()
}
