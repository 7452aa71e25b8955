//! Rules between the keys of a transformer.

use super::{MlpActivation, NormPlacement, Positions, QkNormOver, Rotary, SubLayers, Transformer};
use crate::reader::declare::KeywordEnum;
use crate::reader::error::Problem;
use crate::reader::tree::Table;
use crate::schema::rules::{attach_span, divisors};

const D_MODEL: &str = "model.transformer.d_model";
const HEADS: &str = "model.transformer.heads";
const KV_HEADS: &str = "model.transformer.kv_heads";
const HEAD_DIM: &str = "model.transformer.head_dim";
const CAUSAL: &str = "model.transformer.causal";
const WINDOW: &str = "model.transformer.window";
const GLOBAL_EVERY: &str = "model.transformer.global_every";
const GLOBAL_FIRST: &str = "model.transformer.global_first";
const POSITIONS: &str = "model.transformer.positions";
const ROTARY: &str = "model.transformer.rotary";
const EXPERTS: &str = "model.transformer.experts";
const EXPERT_COUNT: &str = "model.transformer.experts.count";
const PER_TOKEN: &str = "model.transformer.experts.per_token";
const ACTIVATION: &str = "model.transformer.activation";
const BIAS: &str = "model.transformer.bias";
const DIVISORS: &str = "model.transformer.rotary.divisors";
const CHANNELS: &str = "model.transformer.rotary.channels";
const WINDOW_SCALE: &str = "model.transformer.window_attention_scale";
const QK_NORM: &str = "model.transformer.qk_norm";
const QK_NORM_OVER: &str = "model.transformer.qk_norm_over";
const SUB_LAYERS: &str = "model.transformer.sub_layers";
const HEAD_BIAS: &str = "model.transformer.head_bias";
const TIED: &str = "model.transformer.tied";
const NORM_PLACEMENT: &str = "model.transformer.norm_placement";
const WINDOW_BASE: &str = "model.transformer.rotary.window_base";
const LOW: &str = "model.transformer.rotary.scaling.low";
const HIGH: &str = "model.transformer.rotary.scaling.high";

impl Transformer {
    pub(super) fn check_rules(&self, tree: &Table) -> Result<(), Problem> {
        self.heads_divide_d_model(tree)?;
        self.kv_heads_divide_heads(tree)?;
        self.window_needs_causal_attention(tree)?;
        self.global_every_needs_window(tree)?;
        self.global_first_needs_global_every(tree)?;
        self.window_scale_needs_window(tree)?;
        self.qk_norm_over_needs_qk_norm(tree)?;
        self.parallel_parts_need_pre_norms(tree)?;
        self.head_bias_needs_own_weight(tree)?;
        self.tokens_choose_among_experts(tree)?;
        self.experts_are_gated_without_biases(tree)?;
        self.rotary_needs_even_head_dim(tree)?;
        self.rotary_needs_rotary_positions(tree)?;
        self.rotated_channels_are_pairs_of_a_head(tree)?;
        self.each_pair_has_a_divisor(tree)?;
        self.window_base_needs_window(tree)?;
        self.scaling_low_is_below_high(tree)
    }

    fn heads_divide_d_model(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, .. } = *self;
        if self.head_dim > 0 {
            return Ok(());
        }
        let message = format!("{HEADS} = {heads} does not divide {D_MODEL} = {d_model}");
        let remedy = format!("use {}, or set head_dim", divisors(d_model, heads));
        Err(attach_span(message, &[HEADS, D_MODEL], tree, remedy))
    }

    fn kv_heads_divide_heads(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, kv_heads, .. } = *self;
        if heads.is_multiple_of(kv_heads) {
            return Ok(());
        }
        let message = format!("{KV_HEADS} = {kv_heads} does not divide {HEADS} = {heads}");
        Err(attach_span(message, &[KV_HEADS, HEADS], tree, format!("use {}", divisors(heads, kv_heads))))
    }

    fn window_needs_causal_attention(&self, tree: &Table) -> Result<(), Problem> {
        if self.causal || self.window.is_none() {
            return Ok(());
        }
        let message = "window needs causal attention, and causal = false attends to later positions";
        Err(attach_span(message.to_owned(), &[WINDOW, CAUSAL], tree, "remove one of the two"))
    }

    fn global_every_needs_window(&self, tree: &Table) -> Result<(), Problem> {
        if self.window.is_some() || self.global_every.is_none() {
            return Ok(());
        }
        let message = "global_every selects the blocks without a window, and window is not set";
        Err(attach_span(
            message.to_owned(),
            &[GLOBAL_EVERY, WINDOW],
            tree,
            "add a window, such as window = 1024, or remove global_every",
        ))
    }

    fn global_first_needs_global_every(&self, tree: &Table) -> Result<(), Problem> {
        let Some(first) = self.global_first else { return Ok(()) };
        let (message, remedy) = match self.global_every {
            None => {
                let message =
                    "global_first selects one of every n blocks, and global_every is not set".to_owned();
                (message, "add global_every, or remove global_first")
            }
            // Block `every` would have a window, although it is the first of a group of n.
            Some(every) if first > every => {
                (format!("global_first = {first} is above global_every = {every}"), "use 1 to global_every")
            }
            Some(_) => return Ok(()),
        };
        Err(attach_span(message, &[GLOBAL_FIRST, GLOBAL_EVERY], tree, remedy))
    }

    fn window_scale_needs_window(&self, tree: &Table) -> Result<(), Problem> {
        if self.window.is_some() || self.window_attention_scale.is_none() {
            return Ok(());
        }
        let message = "window_attention_scale is for the blocks with a window, and window is not set";
        Err(attach_span(
            message.to_owned(),
            &[WINDOW_SCALE, WINDOW],
            tree,
            "add a window, such as window = 1024, or use attention_scale",
        ))
    }

    fn qk_norm_over_needs_qk_norm(&self, tree: &Table) -> Result<(), Problem> {
        if self.qk_norm || self.qk_norm_over == QkNormOver::Head {
            return Ok(());
        }
        let message = "qk_norm_over has no effect: qk_norm is false";
        Err(attach_span(
            message.to_owned(),
            &[QK_NORM_OVER, QK_NORM],
            tree,
            "use qk_norm = true, or remove qk_norm_over",
        ))
    }

    fn parallel_parts_need_pre_norms(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { sub_layers, norm_placement, .. } = self;
        if *sub_layers == SubLayers::Sequential || *norm_placement == NormPlacement::Pre {
            return Ok(());
        }
        let message = format!(
            "sub_layers = \"{}\" needs norms before the parts of a block, and norm_placement is \"{}\"",
            sub_layers.keyword(),
            norm_placement.keyword()
        );
        Err(attach_span(
            message,
            &[SUB_LAYERS, NORM_PLACEMENT],
            tree,
            "use norm_placement = \"pre\" or sub_layers = \"sequential\"",
        ))
    }

    /// A layer is trained or frozen as a whole, and a tied weight is the embedding's.
    fn head_bias_needs_own_weight(&self, tree: &Table) -> Result<(), Problem> {
        if !self.head_bias || !self.tied {
            return Ok(());
        }
        let message = "head_bias is for a head with its own weight, and tied = true shares the embedding's";
        Err(attach_span(
            message.to_owned(),
            &[HEAD_BIAS, TIED],
            tree,
            "use tied = false or head_bias = false",
        ))
    }

    fn tokens_choose_among_experts(&self, tree: &Table) -> Result<(), Problem> {
        match &self.experts {
            Some(experts) if experts.per_token > experts.count => {
                let message = format!(
                    "experts.per_token = {} is above experts.count = {}",
                    experts.per_token, experts.count
                );
                let remedy = format!("use 1 to {}", experts.count);
                Err(attach_span(message, &[PER_TOKEN, EXPERT_COUNT], tree, remedy))
            }
            _ => Ok(()),
        }
    }

    fn experts_are_gated_without_biases(&self, tree: &Table) -> Result<(), Problem> {
        if self.experts.is_none() {
            return Ok(());
        }
        if let MlpActivation::Plain(_) = self.activation {
            let message = format!("experts need a gate, and activation is \"{}\"", self.activation.keyword());
            let remedy = "use a gated activation, such as activation = \"swiglu\"";
            return Err(attach_span(message, &[EXPERTS, ACTIVATION], tree, remedy));
        }
        if self.bias {
            let message = "experts have no biases, and bias = true adds them to the linear layers of blocks";
            let remedy = "use bias = false; qkv_bias = true adds those of queries, keys and values";
            return Err(attach_span(message.to_owned(), &[EXPERTS, BIAS], tree, remedy));
        }
        Ok(())
    }

    fn rotated_channels_are_pairs_of_a_head(&self, tree: &Table) -> Result<(), Problem> {
        let Some(channels) = self.rotary.channels else { return Ok(()) };
        if channels.is_multiple_of(2) && channels <= self.head_dim {
            return Ok(());
        }
        let message = format!(
            "rotary.channels = {channels}, and heads of {} channels rotate in pairs of channels",
            self.head_dim
        );
        let most = self.head_dim / 2 * 2;
        let remedy = if most > 0 {
            format!("use an even number of at most {most}")
        } else {
            "use a larger head_dim".to_owned()
        };
        Err(attach_span(message, &[CHANNELS, HEAD_DIM], tree, remedy))
    }

    fn rotary_needs_even_head_dim(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, head_dim, .. } = *self;
        let is_whole = self.rotary.channels.is_none();
        if self.positions != Positions::Rotary || !is_whole || head_dim.is_multiple_of(2) {
            return Ok(());
        }
        let message = format!(
            "positions = \"rotary\" rotates channels in pairs, and {head_dim} channels per head are an odd number"
        );
        let remedy = if heads * head_dim != d_model {
            format!("use head_dim = {}", head_dim + 1)
        } else if d_model.is_multiple_of(2) {
            format!("use {} for heads", divisors(d_model / 2, heads))
        } else {
            format!("use d_model = {} or other positions", 2 * d_model)
        };
        Err(attach_span(message, &[POSITIONS, HEAD_DIM, HEADS, D_MODEL], tree, remedy))
    }

    fn rotary_needs_rotary_positions(&self, tree: &Table) -> Result<(), Problem> {
        if self.positions == Positions::Rotary || self.rotary == Rotary::default() {
            return Ok(());
        }
        let message = "rotary has no effect: positions is not \"rotary\"";
        Err(attach_span(
            message.to_owned(),
            &[ROTARY, POSITIONS],
            tree,
            "use positions = \"rotary\", or remove rotary",
        ))
    }

    fn each_pair_has_a_divisor(&self, tree: &Table) -> Result<(), Problem> {
        let (found, pairs) = (self.rotary.divisors.len(), self.rotated_channels() / 2);
        if [0, pairs].contains(&found) {
            return Ok(());
        }
        let message =
            format!("rotary.divisors has {found} numbers, and heads have {pairs} rotated pairs of channels");
        Err(attach_span(message, &[DIVISORS, CHANNELS, HEAD_DIM], tree, format!("write {pairs} numbers")))
    }

    fn window_base_needs_window(&self, tree: &Table) -> Result<(), Problem> {
        if self.window.is_some() || self.rotary.window_base.is_none() {
            return Ok(());
        }
        let message = "rotary.window_base is for the blocks with a window, and window is not set";
        Err(attach_span(
            message.to_owned(),
            &[WINDOW_BASE, WINDOW],
            tree,
            "add a window, such as window = 1024, or remove window_base",
        ))
    }

    fn scaling_low_is_below_high(&self, tree: &Table) -> Result<(), Problem> {
        let Some(scaling) = &self.rotary.scaling else { return Ok(()) };
        if scaling.low < scaling.high {
            return Ok(());
        }
        let message = format!(
            "rotary.scaling.low = {:?} is not below rotary.scaling.high = {:?}",
            scaling.low, scaling.high
        );
        Err(attach_span(message, &[LOW, HIGH], tree, "Llama 3 uses low = 1.0 and high = 4.0"))
    }
}
