//! Rules between the keys of a transformer.

use super::{Positions, Rotary, Transformer};
use crate::spec::error::Problem;
use crate::spec::rules::{blame, divisors};
use crate::spec::tree::Table;

const D_MODEL: &str = "model.transformer.d_model";
const HEADS: &str = "model.transformer.heads";
const POSITIONS: &str = "model.transformer.positions";
const ROTARY: &str = "model.transformer.rotary";
const LOW: &str = "model.transformer.rotary.scaling.low";
const HIGH: &str = "model.transformer.rotary.scaling.high";

impl Transformer {
    pub(super) fn check_rules(&self, tree: &Table) -> Result<(), Problem> {
        self.heads_divide_the_model(tree)?;
        self.rotations_are_of_pairs(tree)?;
        self.rotations_are_asked_for(tree)?;
        self.scaling_has_a_range(tree)
    }

    fn heads_divide_the_model(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, .. } = *self;
        if d_model.is_multiple_of(heads) {
            return Ok(());
        }
        let message = format!("{HEADS} = {heads} does not divide {D_MODEL} = {d_model}");
        Err(blame(message, &[HEADS, D_MODEL], tree, divisors(d_model, heads)))
    }

    fn rotations_are_of_pairs(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, .. } = *self;
        if self.positions != Positions::Rotary || self.head_dim().is_multiple_of(2) {
            return Ok(());
        }
        let message = format!(
            "positions = \"rotary\" turns channels in pairs, and heads of {D_MODEL} / {HEADS} = {} have one left over",
            self.head_dim()
        );
        let works = if d_model.is_multiple_of(2) {
            format!("of heads, {}", divisors(d_model / 2, heads))
        } else {
            format!("a d_model of {} does, or other positions", 2 * d_model)
        };
        Err(blame(message, &[POSITIONS, HEADS, D_MODEL], tree, works))
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
