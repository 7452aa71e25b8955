//! Storage formats of optimizer states and of the updated parameters.

use super::DType;

/// The storage format of an update's states and parameters. The update computes in f32 in every format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpdateFormat {
    pub states: StateFormat,
    pub weights: WeightFormat,
}

impl UpdateFormat {
    /// The format with f32 parameters and these states.
    pub fn of_states(states: StateFormat) -> UpdateFormat {
        UpdateFormat { states, weights: WeightFormat::default() }
    }

    /// The narrowest dtype that an update stores per parameter element.
    pub fn narrowest(self) -> DType {
        self.states.dtype()
    }

    pub fn has_master(self) -> bool {
        matches!(self.weights, WeightFormat::Master(_))
    }
}

/// How an update writes parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// The stored parameters are read, updated and written back; 16-bit parameters are rounded this way.
    InPlace(Rounding),
    /// An f32 copy (master weights) is updated; the parameters are its values rounded to nearest in this dtype. The
    /// update does not read the stored parameters.
    Master(DType),
}

impl Default for WeightFormat {
    fn default() -> WeightFormat {
        WeightFormat::InPlace(Rounding::Nearest)
    }
}

/// The storage format of moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateFormat {
    #[default]
    F32,
    Bf16(Rounding),
    /// Block-wise dynamic quantization (Dettmers et al. 2022): an 8-bit code per number, and one f32 scale, the largest
    /// magnitude, per block of [`QUANTIZED_BLOCK`] numbers. See [`DynamicMap`].
    Quantized,
}

/// Rounding to 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Ties to even.
    #[default]
    Nearest,
    /// Up or down at random with the exact value as mean, so that updates smaller than half a ULP accumulate over many
    /// steps. A draw depends on the seed, the step, the parameter's site and the element.
    Stochastic { seed: u64 },
}

impl Rounding {
    /// The seed of stochastic rounding.
    pub fn seed(self) -> Option<u64> {
        match self {
            Rounding::Nearest => None,
            Rounding::Stochastic { seed } => Some(seed),
        }
    }
}

impl StateFormat {
    /// The dtype of the stored numbers or codes.
    pub fn dtype(self) -> DType {
        match self {
            StateFormat::F32 => DType::F32,
            StateFormat::Bf16(_) => DType::BF16,
            StateFormat::Quantized => DType::U8,
        }
    }
}

/// Numbers per scale.
pub const QUANTIZED_BLOCK: usize = 256;

/// The values of the 256 codes, as fractions of the block's largest magnitude, in ascending order: 0, 1 and seven
/// decades between them. Each decade has twice as many values as the one below; they are the midpoints of equal parts
/// of [0.1, 1] of the decade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicMap {
    /// Signed, for first moments: 1, 2, .. 64 numbers per decade and sign; code 127 is 0. There is no -1.
    Signed,
    /// Unsigned, for squares: 2, 4, .. 128 numbers per decade; code 0 is 0.
    Unsigned,
}

impl DynamicMap {
    pub const DECADES: usize = 7;

    /// Numbers in a decade; decade 0 is the lowest.
    pub const fn count(self, decade: usize) -> usize {
        match self {
            DynamicMap::Signed => 1 << decade,
            DynamicMap::Unsigned => 2 << decade,
        }
    }

    /// The code of 0.
    pub const fn zero(self) -> usize {
        match self {
            DynamicMap::Signed => 127,
            DynamicMap::Unsigned => 0,
        }
    }

    /// The distance from the code of 0 to the code of the decade's smallest number. The decade after the last contains
    /// only 1.
    pub const fn first(self, decade: usize) -> usize {
        match self {
            DynamicMap::Signed => 1 << decade,
            DynamicMap::Unsigned => (2 << decade) - 1,
        }
    }

    /// The value of a code, as a fraction of the block's largest magnitude.
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

    /// Compared with the printed digits of the paper's reference implementation.
    #[test]
    fn code_values_ascend_and_match_the_reference() {
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
