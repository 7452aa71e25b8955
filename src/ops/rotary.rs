//! Positions as rotations of queries and keys (Su et al. 2021).

use super::{Op, Operand, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs};

/// Each query and key of position t is rotated: its channels i and i + D/2 are the coordinates of a point that goes by the
/// angle `t f_i`, or back by it if it is the `inverse`. Values stay as they are.
///
/// Input: qkv num[B,T,(H+2G)D], heads of queries, of keys and of values side by side. Output: the same with H+G of them
/// rotated. Angles are f32 products, as PyTorch's are, and all is computed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// How many heads are rotated, of queries and of keys: H+G.
    pub rotated: usize,
    /// Channels of one: D, an even number.
    pub head: usize,
    pub frequencies: Frequencies,
    pub inverse: bool,
}

/// How fast each pair of channels turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frequencies {
    /// Pair i turns by `base^(-2i/D)` a position.
    pub base: f64,
    pub scaling: Option<Scaling>,
}

/// What slows pairs down that turn less than `high` times in the `original` context, for a longer one: those of less than
/// `low` turns by all of the `factor`, those between by a part of it (Llama 3's).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    pub factor: f64,
    pub low: f64,
    pub high: f64,
    pub original: usize,
}

impl Frequencies {
    /// Radians a position, of each pair of channels of a head.
    pub fn of_head(&self, head: usize) -> Vec<f32> {
        let pair = |i: usize| {
            let frequency = self.base.powf(-2.0 * i as f64 / head as f64);
            self.scaling.map_or(frequency, |scaling| scaling.of(frequency)) as f32
        };
        (0..head / 2).map(pair).collect()
    }
}

impl Scaling {
    fn of(&self, frequency: f64) -> f64 {
        let turns = self.original as f64 * frequency / std::f64::consts::TAU;
        let share = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        frequency * (share + (1.0 - share) / self.factor)
    }
}

impl Operation for Rotary {
    fn name(&self) -> &'static str {
        if self.inverse { "rotary-backward" } else { "rotary" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        expect_float(self.name(), "qkv", &inputs[0])?;
        let dims = inputs[0].shape.dims();
        if dims.len() != 3 || dims[2] < self.rotated * self.head || !self.head.is_multiple_of(2) {
            let Rotary { rotated, head, .. } = self;
            let problem =
                format!("qkv is {}, not [B, T, ..] of {rotated} heads of {head} and more", inputs[0]);
            return Err(TypeError { operation: self.name(), problem });
        }
        Ok(vec![inputs[0]])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    /// A rotation's slope is the rotation: its transpose goes back.
    fn backward(&self, tape: &mut dyn Tape) {
        if tape.wants(0) {
            let dy = tape.output_gradient(0);
            tape.contribute(Op::Rotary(Rotary { inverse: !self.inverse, ..*self }), vec![dy], 0, 0, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_slower_from_one_to_the_next() {
        let frequencies = Frequencies { base: 10_000.0, scaling: None }.of_head(8);
        assert_eq!(frequencies, [1.0, 0.1, 0.01, 0.001]);
    }

    /// Of 8192 positions, a pair of 2 pi / 8192 radians makes one turn, one of four times that makes four.
    #[test]
    fn slow_pairs_are_slowed_down_for_a_longer_context() {
        let scaling = Scaling { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let turn = std::f64::consts::TAU / 8192.0;
        assert_eq!(scaling.of(turn / 2.0), turn / 16.0);
        assert_eq!(scaling.of(turn), turn / 8.0);
        assert_eq!(scaling.of(4.0 * turn), 4.0 * turn);
        assert_eq!(scaling.of(100.0 * turn), 100.0 * turn);
        // Half way between 1 and 4 turns: half of it at its own speed, half at an eighth.
        let between = 2.5 * turn;
        assert!((scaling.of(between) / between - (0.5 + 0.5 / 8.0)).abs() < 1e-12);
    }
}
