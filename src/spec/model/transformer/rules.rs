//! Rules between the keys of a transformer.

use super::{Positions, Rotary, Transformer};
use crate::error::Problem;
use crate::rules::{blame, divisors};
use crate::tree::Table;

const D_MODEL: &str = "model.transformer.d_model";
const HEADS: &str = "model.transformer.heads";
const KV_HEADS: &str = "model.transformer.kv_heads";
const HEAD_DIM: &str = "model.transformer.head_dim";
const CAUSAL: &str = "model.transformer.causal";
const WINDOW: &str = "model.transformer.window";
const GLOBAL_EVERY: &str = "model.transformer.global_every";
const POSITIONS: &str = "model.transformer.positions";
const ROTARY: &str = "model.transformer.rotary";
const LOW: &str = "model.transformer.rotary.scaling.low";
const HIGH: &str = "model.transformer.rotary.scaling.high";

impl Transformer {
    pub(super) fn check_rules(&self, tree: &Table) -> Result<(), Problem> {
        self.heads_divide_the_model(tree)?;
        self.heads_share_alike(tree)?;
        self.windows_look_back(tree)?;
        self.windows_are_there(tree)?;
        self.rotations_are_of_pairs(tree)?;
        self.rotations_are_asked_for(tree)?;
        self.scaling_has_a_range(tree)
    }

    fn heads_divide_the_model(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, .. } = *self;
        if self.head_dim > 0 {
            return Ok(());
        }
        let message = format!("{HEADS} = {heads} does not divide {D_MODEL} = {d_model}");
        let works = format!("{}; or say how many channels each has, with head_dim", divisors(d_model, heads));
        Err(blame(message, &[HEADS, D_MODEL], tree, works))
    }

    fn heads_share_alike(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, kv_heads, .. } = *self;
        if heads.is_multiple_of(kv_heads) {
            return Ok(());
        }
        let message = format!("{KV_HEADS} = {kv_heads} does not divide {HEADS} = {heads}");
        Err(blame(message, &[KV_HEADS, HEADS], tree, divisors(heads, kv_heads)))
    }

    fn windows_look_back(&self, tree: &Table) -> Result<(), Problem> {
        if self.causal || self.window.is_none() {
            return Ok(());
        }
        let message = "a window ends where a position is, and causal = false lets it see what comes after";
        Err(blame(message.to_owned(), &[WINDOW, CAUSAL], tree, "leave one of the two out"))
    }

    fn windows_are_there(&self, tree: &Table) -> Result<(), Problem> {
        if self.window.is_some() || self.global_every.is_none() {
            return Ok(());
        }
        let message = "global_every says which blocks see beyond the window, and there is none";
        Err(blame(
            message.to_owned(),
            &[GLOBAL_EVERY, WINDOW],
            tree,
            "write window = 1024, say, or leave global_every out",
        ))
    }

    fn rotations_are_of_pairs(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, head_dim, .. } = *self;
        if self.positions != Positions::Rotary || head_dim.is_multiple_of(2) {
            return Ok(());
        }
        let message = format!(
            "positions = \"rotary\" turns channels in pairs, and heads of {head_dim} channels have one left over"
        );
        let works = if heads * head_dim != d_model {
            format!("a head_dim of {} does", head_dim + 1)
        } else if d_model.is_multiple_of(2) {
            format!("of heads, {}", divisors(d_model / 2, heads))
        } else {
            format!("a d_model of {} does, or other positions", 2 * d_model)
        };
        Err(blame(message, &[POSITIONS, HEAD_DIM, HEADS, D_MODEL], tree, works))
    }

    fn rotations_are_asked_for(&self, tree: &Table) -> Result<(), Problem> {
        if self.positions == Positions::Rotary || self.rotary == Rotary::default() {
            return Ok(());
        }
        let message = "rotary says how queries and keys are rotated, and positions are not \"rotary\"";
        Err(blame(
            message.to_owned(),
            &[ROTARY, POSITIONS],
            tree,
            "write positions = \"rotary\", or leave rotary out",
        ))
    }

    fn scaling_has_a_range(&self, tree: &Table) -> Result<(), Problem> {
        let Some(scaling) = &self.rotary.scaling else { return Ok(()) };
        if scaling.low < scaling.high {
            return Ok(());
        }
        let message = format!(
            "rotary.scaling.low = {:?} is not below rotary.scaling.high = {:?}",
            scaling.low, scaling.high
        );
        Err(blame(message, &[LOW, HIGH], tree, "Llama 3 has low = 1.0 and high = 4.0"))
    }
}
