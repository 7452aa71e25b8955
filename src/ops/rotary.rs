//! Rotary position embedding (RoPE) of queries and keys (Su et al. 2021).

use super::{Op, Operand, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs};

/// Rotates each query and key of position t: of its first R channels, i and i + R/2 are the coordinates of a point,
/// rotated by the angle `t f_i`, or by `-t f_i` for the `inverse`. Other channels and values are copied.
///
/// Input: qkv num[B,T,(H+2G)D], the query, key and value heads side by side. Output: the same shape, with H+G heads
/// rotated. Angles are f32 products, as in PyTorch; everything is computed in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// The number of rotated heads, queries and keys: H+G.
    pub rotated: usize,
    /// Channels per head: D.
    pub head: usize,
    /// Rotated channels per head: R, an even number of at most D.
    pub channels: usize,
    pub frequencies: Frequencies,
    pub inverse: bool,
}

/// Rotation frequencies of the channel pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Pair i rotates by `base^(-2i/R)` radians per position.
    pub base: f64,
    pub scaling: Option<Scaling>,
    /// Divisor of each pair's frequency, after the scaling; empty: no divisors.
    pub divisors: Vec<f64>,
}

/// Frequency scaling for longer contexts (Llama 3). Pairs with fewer than `low` turns in the `original` context are
/// slowed by `factor`; pairs between `low` and `high` turns by an interpolated factor; faster pairs are unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    pub factor: f64,
    pub low: f64,
    pub high: f64,
    pub original: usize,
}

impl Frequencies {
    /// Radians per position of each pair of `channels` rotated channels.
    pub fn of_channels(&self, channels: usize) -> Vec<f32> {
        let pair = |i: usize| {
            let frequency = self.base.powf(-2.0 * i as f64 / channels as f64);
            let scaled = self.scaling.map_or(frequency, |scaling| scaling.scaled(frequency));
            (scaled / self.divisors.get(i).unwrap_or(&1.0)) as f32
        };
        (0..channels / 2).map(pair).collect()
    }
}

impl Scaling {
    fn scaled(&self, frequency: f64) -> f64 {
        let turns = self.original as f64 * frequency / std::f64::consts::TAU;
        let unscaled = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        frequency * (unscaled + (1.0 - unscaled) / self.factor)
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
        let Rotary { rotated, head, channels, .. } = *self;
        if dims.len() != 3 || dims[2] < rotated * head || channels > head || !channels.is_multiple_of(2) {
            let problem = format!(
                "qkv is {}, expected [B, T, C] with at least {rotated} heads of {head} channels, {channels} of them \
                 rotated in pairs",
                inputs[0]
            );
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

    /// A rotation is linear and orthogonal: its backward pass is the inverse rotation.
    fn backward(&self, tape: &mut dyn Tape) {
        if tape.wants(0) {
            let dy = tape.output_gradient(0);
            let op = Op::Rotary(Rotary { inverse: !self.inverse, ..self.clone() });
            tape.contribute(op, vec![dy], 0, 0, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_pair_to_pair() {
        let frequencies = Frequencies { base: 10_000.0, scaling: None, divisors: Vec::new() };
        assert_eq!(frequencies.of_channels(8), [1.0, 0.1, 0.01, 0.001]);
        let divided = Frequencies { divisors: vec![1.0, 2.0, 4.0, 8.0], ..frequencies };
        assert_eq!(divided.of_channels(8), [1.0, 0.05, 0.0025, 0.000_125]);
    }

    /// In 8192 positions a pair with 2 pi / 8192 radians per position makes one turn, a pair with four times that makes
    /// four.
    #[test]
    fn scaling_slows_only_low_frequencies() {
        let scaling = Scaling { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let turn = std::f64::consts::TAU / 8192.0;
        assert_eq!(scaling.scaled(turn / 2.0), turn / 16.0);
        assert_eq!(scaling.scaled(turn), turn / 8.0);
        assert_eq!(scaling.scaled(4.0 * turn), 4.0 * turn);
        assert_eq!(scaling.scaled(100.0 * turn), 100.0 * turn);
        // Midway between 1 and 4 turns: half unscaled, half scaled by an eighth.
        let between = 2.5 * turn;
        assert!((scaling.scaled(between) / between - (0.5 + 0.5 / 8.0)).abs() < 1e-12);
    }
}
