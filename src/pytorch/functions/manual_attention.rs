//! Attention written out: two products, a mask and a softmax, with the copies that `bmm` makes of transposed views.
//!
//! B batch, T sequence, H query heads, G key and value heads, D channels per head.

use super::attention::Heads;
use super::elementwise::softmax;
use super::views::{copied, copied_both_ways, full_slices};
use super::{add, cast, dropout, matmul_output, mul, save_factors, scale, soft_cap};
use crate::autograd::Strides;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// The attention of the scripts' own modules. q, k and v are views [B, heads, T, D] of tensors [B, T, heads*D].
pub(crate) fn manual_attention(
    torch: &Torch,
    [q, mut k, mut v]: [Tensor; 3],
    mask: Option<&Tensor>,
    heads: Heads,
    cap: bool,
    has_dropout: bool,
) -> Tensor {
    let factors = Factors { heads, is_cached: false, dtype: torch.autocast().unwrap_or(q.dtype()) };
    if heads.keys != heads.queries {
        // x[:, :, None].expand(-1, -1, H // G, -1, -1).flatten(1, 2)
        let repeated = [&k, &v].map(|x| repeated(torch, x, heads, 2));
        [k, v] = repeated;
    }
    let mut scores = {
        let products = factors.products(torch, &q, &k);
        scale(torch, &products)
    };
    if cap {
        scores = soft_cap(torch, &scores);
    }
    if let Some(mask) = mask {
        // scores.masked_fill(mask, -inf)
        scores =
            torch.output((scores.shape(), scores.dtype()), None, &[&scores], &[mask], |torch, backward| {
                vec![torch.like(backward.gradient()).into()]
            });
    }
    let dtype = if torch.autocast().is_some() { DType::F32 } else { scores.dtype() };
    scores = softmax(torch, &scores, dtype);
    if has_dropout {
        scores = dropout(torch, &scores);
    }
    let output = factors.weighted(torch, &scores, &v);
    // y.transpose(1, 2).flatten(-2)
    joined(torch, output, heads)
}

/// How the transformers library writes attention out (`eager_attention_forward`).
#[derive(Clone, Copy)]
pub(crate) struct Eager {
    pub(crate) cap: bool,
    /// Whether the softmax is in fp32 (`dtype=torch.float32`), and its result in the dtype of the queries. Else the result
    /// is in that of the values.
    pub(crate) upcasts: bool,
    /// Whether it divides scores by a tensor, and hides later keys by a mask of its own (GPT-2 in 4.x).
    pub(crate) hides_later_keys: bool,
    pub(crate) has_dropout: bool,
    /// Whether keys and values come from a cache, which has copied them.
    pub(crate) is_cached: bool,
}

/// The output [B, T, H*D], and the weights of the values, of q [B, H, T, D] with k and v [B, G, T, D]. `mask`: numbers that
/// are added to the scores.
pub(crate) fn eager_attention(
    torch: &Torch,
    [q, k, v]: [&Tensor; 3],
    mask: &Tensor,
    heads: Heads,
    eager: Eager,
) -> [Tensor; 2] {
    let dtype = torch.autocast().unwrap_or(q.dtype());
    let factors = Factors { heads, is_cached: eager.is_cached, dtype };
    let [k, v] = match heads.keys == heads.queries {
        true => [k.clone(), v.clone()],
        // x[:, :, None, :, :].expand(B, G, H // G, T, D).reshape(B, H, T, D)
        false => [k, v].map(|x| repeated(torch, x, heads, 4)),
    };
    let products = factors.products(torch, q, &k);
    let (mut weights, hidden_scores) = match eager.hides_later_keys {
        false => {
            let scaled = scale(torch, &products);
            drop(products);
            (scaled, None)
        }
        true => {
            let divided = mul(torch, &products, &torch.scalar(products.dtype()));
            drop(products);
            let hidden = torch.scalar(divided.dtype());
            (selected(torch, &divided), Some(hidden))
        }
    };
    if eager.cap {
        weights = scale(torch, &weights);
        weights = super::tanh(torch, &weights);
        weights = scale(torch, &weights);
    }
    weights = add(torch, &weights, mask);
    let is_fp32 = eager.upcasts || torch.autocast().is_some();
    let softmax = softmax(torch, &weights, if is_fp32 { DType::F32 } else { weights.dtype() });
    if eager.upcasts {
        // softmax(scores).to(q.dtype)
        weights = cast(torch, &softmax, q.dtype());
        drop(softmax);
    } else {
        weights = softmax;
        weights = cast(torch, &weights, v.dtype());
    }
    if eager.has_dropout {
        weights = dropout(torch, &weights);
    }
    let output = factors.weighted(torch, &weights, &v);
    drop(hidden_scores);
    // y.transpose(1, 2).contiguous()
    [joined(torch, output, heads), weights]
}

/// `torch.where(mask, x, number)`
fn selected(torch: &Torch, x: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), None, &[x], &[], |torch, backward| {
        let _zero = torch.scalar(backward.gradient().dtype());
        vec![torch.like(backward.gradient()).into()]
    })
}

/// The factors of the two products.
struct Factors {
    heads: Heads,
    is_cached: bool,
    /// The dtype of the products.
    dtype: DType,
}

impl Factors {
    /// `torch.matmul(q, k.transpose(-2, -1))`, [B, H, T, T]
    fn products(&self, torch: &Torch, q: &Tensor, k: &Tensor) -> Tensor {
        let casts = [k, q].map(|x| cast(torch, x, self.dtype));
        // The cast of a single repeated head is a copy of its own.
        let is_copy = self.is_contiguous() || self.is_grouped() && k.dtype() != self.dtype;
        let (q, of_q) = self.for_product(torch, &casts[1], self.heads.by_head);
        let k_lies_by_head = is_copy || self.heads.by_head && !self.is_grouped();
        let (k, of_k) = self.for_product(torch, &casts[0], k_lies_by_head);
        // Only a copy is contiguous after it is transposed.
        let of_k = match of_k {
            Strides::Contiguous => Strides::permuted_if(!self.is_copied(k_lies_by_head)),
            Strides::Permuted if self.is_expanded() => Strides::Sparse,
            of_k => of_k,
        };
        let Heads { batch, queries, sequence, .. } = self.heads;
        bmm(torch, [&q, &k], [of_q, of_k], Shape::new(&[batch, queries, sequence, sequence]))
    }

    /// `torch.matmul(weights, v)`, as [B, T, H*D].
    fn weighted(&self, torch: &Torch, weights: &Tensor, v: &Tensor) -> Tensor {
        let is_cast = v.dtype() != self.dtype;
        let v = cast(torch, v, self.dtype);
        let weights = cast(torch, weights, self.dtype);
        let (v, of_v) = self.for_product(torch, &v, self.is_contiguous());
        let of_v = match of_v {
            Strides::Permuted if self.is_expanded() => {
                if is_cast {
                    Strides::Contiguous
                } else {
                    Strides::Sparse
                }
            }
            of_v => of_v,
        };
        let Heads { batch, queries, sequence, head, .. } = self.heads;
        bmm(
            torch,
            [&weights, &v],
            [Strides::Contiguous, of_v],
            Shape::new(&[batch, sequence, queries * head]),
        )
    }

    fn is_grouped(&self) -> bool {
        self.heads.keys != self.heads.queries
    }

    /// Whether keys and values are contiguous: cached, or repeated, which copies them unless there is a single one.
    fn is_contiguous(&self) -> bool {
        if self.is_grouped() { self.heads.keys > 1 } else { self.is_cached }
    }

    /// Whether keys and values are a single head, expanded without a copy.
    fn is_expanded(&self) -> bool {
        self.is_grouped() && self.heads.keys == 1
    }

    /// [B, T, H, D] as [B, H, T, D] is contiguous with one head; `bmm` needs no copy of one sample either.
    fn is_copied(&self, is_contiguous: bool) -> bool {
        self.heads.queries > 1 && self.heads.batch > 1 && !is_contiguous
    }

    /// Queries, keys or values as `bmm` takes them.
    fn for_product(&self, torch: &Torch, x: &Tensor, is_contiguous: bool) -> (Tensor, Strides) {
        match self.is_copied(is_contiguous) {
            true => (copied(torch, x), Strides::Contiguous),
            false if is_contiguous => (x.clone(), Strides::Contiguous),
            false => (x.clone(), self.heads.strides(self.heads.queries)),
        }
    }
}

/// Attention's output by head as [B, T, H*D].
pub(super) fn joined(torch: &Torch, output: Tensor, heads: Heads) -> Tensor {
    match (heads.queries > 1, heads.batch > 1) {
        (false, _) => output,
        (true, true) => copied_both_ways(torch, &output),
        (true, false) => copied(torch, &output),
    }
}

/// Keys or values of each query head, whose gradients are summed by group. `slices`: indices `:` of the expression.
pub(crate) fn repeated(torch: &Torch, x: &Tensor, heads: Heads, slices: usize) -> Tensor {
    let x = &full_slices(torch, x, slices);
    let base = (heads.keys == 1).then_some(x);
    torch.output((heads.query_shape(), x.dtype()), base, &[x], &[], move |torch, backward| {
        vec![torch.tensor(heads.key_shape(), backward.gradient().dtype()).into()]
    })
}

/// `torch.bmm(a, b)`; the second gradient is made first.
pub(super) fn bmm(torch: &Torch, [a, b]: [&Tensor; 2], strides: [Strides; 2], shape: Shape) -> Tensor {
    let (dtype, shapes) = (a.dtype(), [a.shape(), b.shape()]);
    let node = torch.node(&[a, b], &[], move |torch, backward| {
        let second = backward.needs(1).then(|| matmul_output(torch, shapes[1], dtype));
        let first = backward.needs(0).then(|| matmul_output(torch, shapes[0], dtype));
        vec![first.into(), second.into()]
    });
    node.iter().for_each(|node| save_factors(torch, node, [a, b], strides));
    let output = matmul_output(torch, shape, dtype);
    match node {
        Some(node) => output.output_of(&node, 0),
        None => output,
    }
}
