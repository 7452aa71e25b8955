//! How optimizers store what they change.

use super::DType;

/// How an update stores what it changes. It computes in f32 whatever that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpdateFormat {
    pub states: StateFormat,
    pub weights: WeightFormat,
}

impl UpdateFormat {
    /// Of a parameter in f32.
    pub fn of_states(states: StateFormat) -> UpdateFormat {
        UpdateFormat { states, weights: WeightFormat::default() }
    }

    /// The narrowest that an update keeps of each number.
    pub fn narrowest(self) -> DType {
        self.states.dtype()
    }

    pub fn has_master(self) -> bool {
        matches!(self.weights, WeightFormat::Master(_))
    }
}

/// How parameters become what an update makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// They are read as they are stored, and those of 16 bits are rounded so when they are stored again.
    InPlace(Rounding),
    /// A copy in f32 is updated, to whose numbers they are the nearest, in this type. What they were before is not read.
    Master(DType),
}

impl Default for WeightFormat {
    fn default() -> WeightFormat {
        WeightFormat::InPlace(Rounding::Nearest)
    }
}

/// What an optimizer's numbers for each parameter are stored as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateFormat {
    #[default]
    F32,
    Bf16(Rounding),
    /// Block-wise dynamic quantization (Dettmers et al. 2022): a code of 8 bits for each number, and one f32 for each
    /// [`QUANTIZED_BLOCK`] of them, the largest magnitude among these. See [`DynamicMap`].
    Quantized,
}

/// How a number is stored in 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Ties to even.
    #[default]
    Nearest,
    /// Up or down, so that the mean over many draws is the number itself: what is too small to change a stored number in
    /// one step does so in some of many. A draw depends on the seed, the step, the parameter's site and the element.
    Stochastic { seed: u64 },
}

impl Rounding {
    /// Of what is drawn, if anything is.
    pub fn seed(self) -> Option<u64> {
        match self {
            Rounding::Nearest => None,
            Rounding::Stochastic { seed } => Some(seed),
        }
    }
}

impl StateFormat {
    /// Of the numbers themselves.
    pub fn dtype(self) -> DType {
        match self {
            StateFormat::F32 => DType::F32,
            StateFormat::Bf16(_) => DType::BF16,
            StateFormat::Quantized => DType::U8,
        }
    }
}

/// Numbers that share a scale.
pub const QUANTIZED_BLOCK: usize = 256;

/// What the 256 codes stand for, as shares of a block's largest magnitude, in ascending order: 0, 1 and between them seven
/// decades, each with twice as many numbers as the one below it, in the middles of equal parts of [0.1, 1] of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicMap {
    /// Of either sign, for first moments: 1, 2, .. 64 numbers in a decade, code 127 is 0. There is no -1.
    Signed,
    /// Of squares: 2, 4, .. 128 numbers in a decade, code 0 is 0.
    Unsigned,
}

impl DynamicMap {
    pub const DECADES: usize = 7;

    /// Numbers in a decade, the lowest first.
    pub const fn count(self, decade: usize) -> usize {
        match self {
            DynamicMap::Signed => 1 << decade,
            DynamicMap::Unsigned => 2 << decade,
        }
    }

    /// The code of 0; those of a decade's numbers follow it.
    pub const fn zero(self) -> usize {
        match self {
            DynamicMap::Signed => 127,
            DynamicMap::Unsigned => 0,
        }
    }

    /// How far above that of 0 the code of a decade's least number is. Of the decade after the last, 1 is the only number.
    pub const fn first(self, decade: usize) -> usize {
        match self {
            DynamicMap::Signed => 1 << decade,
            DynamicMap::Unsigned => (2 << decade) - 1,
        }
    }

    /// The share that a code stands for.
    pub fn share(self, code: u8) -> f64 {
        let above = usize::from(code).abs_diff(self.zero());
        let sign = if usize::from(code) < self.zero() { -1.0 } else { 1.0 };
        let decade = (0..=Self::DECADES).rev().find(|&decade| self.first(decade) <= above);
        sign * match decade {
            None => 0.0,
            Some(Self::DECADES) => 1.0,
            Some(decade) => {
                let place = (above - self.first(decade)) as f64 + 0.5;
                (0.1 + 0.9 * place / self.count(decade) as f64) * 10f64.powi(decade as i32 - 6)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against figures of the paper's reference implementation, to the digits that it prints.
    #[test]
    fn codes_stand_for_shares_in_ascending_order() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let shares: Vec<f64> = (0..=255).map(|code| map.share(code)).collect();
            assert!(shares.windows(2).all(|pair| pair[0] < pair[1]), "{map:?}");
            assert_eq!((shares[map.zero()], shares[255]), (0.0, 1.0));
        }
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} for {b}");
        near(DynamicMap::Signed.share(0), -0.992_968_75);
        near(DynamicMap::Signed.share(128), 5.5e-7);
        near(DynamicMap::Signed.share(254), 0.992_968_75);
        near(DynamicMap::Unsigned.share(1), 3.25e-7);
        near(DynamicMap::Unsigned.share(254), 0.996_484_375);
    }
}
