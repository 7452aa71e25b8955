//! Self-attention: `in_proj`, attention by head, `out_proj`.

use crate::functions::{self, Heads, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;

pub(super) struct SelfAttention {
    pub(super) heads: usize,
    pub(super) is_causal: bool,
    pub(super) has_dropout: bool,
    pub(super) is_written_out: bool,
    /// Hides later positions of attention that is written out, bool[T, T].
    pub(super) mask: Option<Tensor>,
}

impl SelfAttention {
    /// x [B, T, C]; the parameters of both linear layers, each with its bias or each without.
    pub(super) fn call(&self, torch: &Torch, x: &Tensor, parameters: &[Tensor], trains: bool) -> Tensor {
        let (in_proj, out_proj) = parameters.split_at(parameters.len() / 2);
        let y = {
            let qkv = functions::linear(torch, x, &in_proj[0], in_proj.get(1));
            self.attend(torch, &qkv, trains)
        };
        functions::linear(torch, &y, &out_proj[0], out_proj.get(1))
    }

    /// qkv [B, T, 3C]. Returns [B, T, C].
    fn attend(&self, torch: &Torch, qkv: &Tensor, trains: bool) -> Tensor {
        let &[batch, sequence, row] = qkv.shape().dims() else { unreachable!("a sequence") };
        let (channels, heads) = (row / 3, self.heads);
        let head = channels / heads;
        let heads =
            Heads { batch, sequence, queries: heads, keys: heads, head, by_head: false, is_sliced: true };
        let parts: Vec<Tensor> = functions::split(torch, qkv, 3)
            .into_iter()
            .enumerate()
            .map(|(part, x)| {
                // Backward of the products makes other gradients than that of the keys by head.
                let by_head = self.is_written_out && part != 1;
                let layout = if by_head { Layout::Heads } else { Layout::Tokens };
                functions::heads(torch, &x, heads.query_shape().dims(), layout)
            })
            .collect();
        let Ok([q, k, v]) = <[Tensor; 3]>::try_from(parts) else { unreachable!("three parts") };
        let has_dropout = trains && self.has_dropout;
        if self.is_written_out {
            return functions::manual_attention(
                torch,
                [q, k, v],
                self.mask.as_ref(),
                heads,
                false,
                has_dropout,
            );
        }
        let y = functions::scaled_dot_product_attention(
            torch,
            [&q, &k, &v],
            None,
            heads,
            self.is_causal,
            has_dropout,
        );
        functions::heads(torch, &y, &[batch, sequence, channels], Layout::Tokens)
    }
}
