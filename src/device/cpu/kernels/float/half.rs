//! 16-bit floating-point numbers.

use super::Float;
use crate::cpu::kernels::simd::{Level, simd};
use ops::DType;

/// bfloat16: the upper half of an f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

/// Bits of an f32 infinity.
const INFINITY: u32 = 0x7F80_0000;
/// The bit that makes an f32 NaN quiet. Setting it keeps the mantissa non-zero after truncation.
const QUIET: u32 = 0x0040_0000;
const SIGN: u32 = 0x8000_0000;

impl Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        // Adds half a ULP, or one bit less if the last kept bit is even.
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        let is_number = bits & !SIGN <= INFINITY;
        Bf16(((if is_number { rounded } else { bits | QUIET }) >> 16) as u16)
    }
}

/// A 16-bit type with stochastic rounding.
pub(crate) trait Half: Float {
    /// `to = from`, rounded up with a probability equal to the truncated fraction of a ULP, to 1 in 65536. The random
    /// number of an element is 16 bits of its word, from bit `shift` on.
    fn round_stochastically(level: Level, from: &[f32], words: &[u32], shift: u32, to: &mut [Self]);
}

impl Half for Bf16 {
    fn round_stochastically(level: Level, from: &[f32], words: &[u32], shift: u32, to: &mut [Bf16]) {
        round_bf16_stochastically(level, from, words, shift, to);
    }
}

impl Half for F16 {
    fn round_stochastically(level: Level, from: &[f32], words: &[u32], shift: u32, to: &mut [F16]) {
        round_f16_stochastically(level, from, words, shift, to);
    }
}

simd! {
    fn round_bf16_stochastically(from: &[f32], words: &[u32], shift: u32, to: &mut [Bf16]) {
        for ((to, from), word) in to.iter_mut().zip(from).zip(words) {
            let bits = from.to_bits();
            let is_number = bits & !SIGN <= INFINITY;
            let rounded = bits.wrapping_add(word >> shift & 0xFFFF);
            *to = Bf16(((if is_number { rounded } else { bits | QUIET }) >> 16) as u16);
        }
    }
}

simd! {
    fn round_f16_stochastically(from: &[f32], words: &[u32], shift: u32, to: &mut [F16]) {
        for ((to, &from), word) in to.iter_mut().zip(from).zip(words) {
            *to = F16::stochastic(from, word >> shift & 0xFFFF);
        }
    }
}

impl F16 {
    /// Mantissa bits of f32 less those of f16.
    const SHIFT: u32 = 23 - 10;
    const EXPONENT: u32 = 0x7C00;
    /// Difference of the exponent biases.
    const BIAS: u32 = (127 - 15) << 23;
    /// Bits of f32 numbers: the smallest normal f16, and the power of two above the largest f16.
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    const TOO_LARGE: u32 = (127 + 16) << 23;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = u32::from(self.0 & 0x7FFF) << F16::SHIFT;
        let exponent = bits & F16::EXPONENT << F16::SHIFT;
        let normal = bits + F16::BIAS;
        // Placed in the mantissa of the smallest normal number, which is then subtracted.
        let subnormal =
            (f32::from_bits(bits + F16::LEAST_NORMAL) - f32::from_bits(F16::LEAST_NORMAL)).to_bits();
        let value = if exponent == 0 { subnormal } else { normal };
        let value = if exponent == F16::EXPONENT << F16::SHIFT { bits | INFINITY } else { value };
        f32::from_bits(value | u32::from(self.0 & 0x8000) << 16)
    }

    /// Stochastic rounding; `random` is below 65536.
    #[inline(always)]
    fn stochastic(value: f32, random: u32) -> F16 {
        /// 65536 over the smallest subnormal f16.
        const UNITS: f32 = (1u64 << 40) as f32;
        let sign = value.to_bits() & SIGN;
        let bits = value.to_bits() ^ sign;
        let normal = bits.wrapping_sub(F16::BIAS).wrapping_add(random >> 3) >> F16::SHIFT;
        let magnitude = if bits < F16::LEAST_NORMAL { f32::from_bits(bits) } else { 0.0 };
        let subnormal = ((magnitude * UNITS) as u32 + random) >> 16;
        let value = if bits < F16::LEAST_NORMAL { subnormal } else { normal };
        let value = if bits >= F16::TOO_LARGE { F16::EXPONENT } else { value };
        let not_a_number = F16::EXPONENT | ((QUIET | bits & !INFINITY) >> F16::SHIFT);
        let value = if bits > INFINITY { not_a_number } else { value };
        F16((value | sign >> 16) as u16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> F16 {
        let sign = value.to_bits() & SIGN;
        let bits = value.to_bits() ^ sign;
        // A carry out of the mantissa increments the exponent; from the largest exponent it gives infinity.
        let odd = bits >> F16::SHIFT & 1;
        let normal = bits.wrapping_sub(F16::BIAS).wrapping_add(0xFFF + odd) >> F16::SHIFT;
        // The ULP of 0.5 in f32 is the smallest subnormal f16, so that the addition rounds to a multiple of it.
        const MAGIC: f32 = 0.5;
        let subnormal = (f32::from_bits(bits) + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
        let value = if bits < F16::LEAST_NORMAL { subnormal } else { normal };
        let value = if bits >= F16::TOO_LARGE { F16::EXPONENT } else { value };
        let not_a_number = F16::EXPONENT | ((QUIET | bits & !INFINITY) >> F16::SHIFT);
        let value = if bits > INFINITY { not_a_number } else { value };
        F16((value | sign >> 16) as u16)
    }
}

impl Float for Bf16 {
    const DTYPE: DType = DType::BF16;

    fn widen(level: Level, from: &[Bf16], to: &mut [f32]) {
        widen_bf16(level, from, to);
    }

    fn narrow(level: Level, from: &[f32], to: &mut [Bf16]) {
        narrow_bf16(level, from, to);
    }

    #[cfg(target_arch = "x86_64")]
    fn as_bf16(values: &[Bf16]) -> Option<&[Bf16]> {
        Some(values)
    }
}

simd! {
    fn widen_bf16(from: &[Bf16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "slices of equal length");
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.to_f32();
        }
    }
}

simd! {
    fn narrow_bf16(from: &[f32], to: &mut [Bf16]) {
        assert_eq!(from.len(), to.len(), "slices of equal length");
        for (to, &from) in to.iter_mut().zip(from) {
            *to = Bf16::from_f32(from);
        }
    }
}

impl Float for F16 {
    const DTYPE: DType = DType::F16;

    fn widen(level: Level, from: &[F16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "slices of equal length");
        match level {
            Level::Portable => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from.to_f32();
                }
            }
            // SAFETY: a level beyond the portable one exists only where its features were detected.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Level::Avx2 => unsafe { x86::widen_8(from, to) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => unsafe { x86::widen_16(from, to) },
        }
    }

    fn narrow(level: Level, from: &[f32], to: &mut [F16]) {
        assert_eq!(from.len(), to.len(), "slices of equal length");
        match level {
            Level::Portable => {
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = F16::from_f32(from);
                }
            }
            // SAFETY: a level beyond the portable one exists only where its features were detected.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Level::Avx2 => unsafe { x86::narrow_8(from, to) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => unsafe { x86::narrow_16(from, to) },
        }
    }
}

/// Conversion with the processor's F16C and AVX-512 instructions, which the compiler does not emit by itself.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::F16;

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

    /// Defines the conversions between slices of equal length with one instruction set.
    macro_rules! conversions {
        ($feature:literal, $lanes:literal, $widen:ident, $narrow:ident, $bits:ty, $load_bits:ident, $store_bits:ident,
         $widened:ident, $load:ident, $store:ident, $narrowed:expr) => {
            #[target_feature(enable = $feature)]
            pub(super) fn $widen(from: &[F16], to: &mut [f32]) {
                let convert = |from: &[F16; $lanes], to: &mut [f32; $lanes]| {
                    // SAFETY: both arrays have the length of a vector.
                    #[allow(unsafe_code)]
                    unsafe {
                        $store(to.as_mut_ptr(), $widened($load_bits(from.as_ptr().cast::<$bits>())))
                    }
                };
                let (whole, rest) = from.as_chunks();
                let (whole_to, rest_to) = to.as_chunks_mut();
                for (from, to) in whole.iter().zip(whole_to) {
                    convert(from, to);
                }
                let (mut padded, mut widened) = ([F16(0); $lanes], [0.0; $lanes]);
                padded[..rest.len()].copy_from_slice(rest);
                convert(&padded, &mut widened);
                rest_to.copy_from_slice(&widened[..rest.len()]);
            }

            #[target_feature(enable = $feature)]
            pub(super) fn $narrow(from: &[f32], to: &mut [F16]) {
                let convert = |from: &[f32; $lanes], to: &mut [F16; $lanes]| {
                    // SAFETY: both arrays have the length of a vector.
                    #[allow(unsafe_code)]
                    unsafe {
                        $store_bits(to.as_mut_ptr().cast::<$bits>(), $narrowed($load(from.as_ptr())))
                    }
                };
                let (whole, rest) = from.as_chunks();
                let (whole_to, rest_to) = to.as_chunks_mut();
                for (from, to) in whole.iter().zip(whole_to) {
                    convert(from, to);
                }
                let (mut padded, mut narrowed) = ([0.0; $lanes], [F16(0); $lanes]);
                padded[..rest.len()].copy_from_slice(rest);
                convert(&padded, &mut narrowed);
                rest_to.copy_from_slice(&narrowed[..rest.len()]);
            }
        };
    }

    conversions!(
        "avx512f",
        16,
        widen_16,
        narrow_16,
        __m256i,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm512_cvtph_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_cvtps_ph::<NEAREST>
    );
    conversions!(
        "avx,f16c",
        8,
        widen_8,
        narrow_8,
        __m128i,
        _mm_loadu_si128,
        _mm_storeu_si128,
        _mm256_cvtph_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widened<T: Float>(level: Level, values: &[T]) -> Vec<f32> {
        let mut wide = vec![0.0; values.len()];
        T::widen(level, values, &mut wide);
        wide
    }

    fn narrowed<T: Float>(level: Level, values: &[f32]) -> Vec<T> {
        let mut narrow = vec![T::default(); values.len()];
        T::narrow(level, values, &mut narrow);
        narrow
    }

    /// The value of a 16-bit pattern with this number of fraction bits; `None` for NaN.
    fn decode(bits: u16, fraction: u32) -> Option<f64> {
        let exponents = 1 << (15 - fraction);
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(bits >> fraction & (exponents - 1));
        let significand = f64::from(bits & ((1 << fraction) - 1)) / f64::from(1 << fraction);
        let bias = i32::from(exponents / 2 - 1);
        match exponent {
            0 => Some(sign * significand * 2f64.powi(1 - bias)),
            _ if exponent + 1 < i32::from(exponents) => {
                Some(sign * (1.0 + significand) * 2f64.powi(exponent - bias))
            }
            _ if significand == 0.0 => Some(sign * f64::INFINITY),
            _ => None,
        }
    }

    fn check_every_pattern<T: Float>(make: fn(u16) -> T, bits: fn(T) -> u16, fraction: u32) {
        let patterns: Vec<T> = (0..=u16::MAX).map(make).collect();
        for level in Level::available() {
            let wide = widened(level, &patterns);
            let back = narrowed::<T>(level, &wide);
            for ((&pattern, wide), back) in patterns.iter().zip(wide).zip(back) {
                match decode(bits(pattern), fraction) {
                    Some(value) => {
                        let same_sign = value.is_sign_negative() == wide.is_sign_negative();
                        assert!(f64::from(wide) == value && same_sign, "{level:?} {:x}", bits(pattern));
                        assert_eq!(bits(back), bits(pattern), "{level:?}");
                    }
                    None => {
                        assert!(wide.is_nan(), "{level:?} {:x}", bits(pattern));
                        assert!(decode(bits(back), fraction).is_none(), "{level:?} {:x}", bits(pattern));
                    }
                }
            }
        }
    }

    #[test]
    fn every_bit_pattern_survives_a_round_trip() {
        check_every_pattern(Bf16, |number| number.0, 7);
        check_every_pattern(F16, |number| number.0, 10);
    }

    /// Between any two neighbours: the midpoint rounds to the even one, the f32 numbers next to it to the nearer one.
    fn check_rounding<T: Float>(bits: fn(T) -> u16, fraction: u32, largest: u16) {
        for level in Level::available() {
            for sign in [0, 0x8000] {
                let mut values = Vec::new();
                let mut expected = Vec::new();
                for below in 0..=largest {
                    let above = below + 1;
                    // The upper neighbour of the largest number is a power of two that rounds to infinity.
                    let top = 2f64.powi(1 << (14 - fraction));
                    let [low, high] =
                        [below, above].map(|bits| decode(bits, fraction).unwrap_or(top).min(top));
                    let middle = ((low + high) / 2.0) as f32;
                    let even = if below % 2 == 0 { below } else { above };
                    for (value, nearest) in
                        [(middle.next_down(), below), (middle, even), (middle.next_up(), above)]
                    {
                        values.push(if sign == 0 { value } else { -value });
                        expected.push(nearest | sign);
                    }
                }
                let found: Vec<u16> = narrowed::<T>(level, &values).into_iter().map(bits).collect();
                for ((value, found), expected) in values.iter().zip(found).zip(expected) {
                    assert_eq!(found, expected, "{level:?} {value:e}");
                }
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_ties_to_even() {
        check_rounding::<Bf16>(|number| number.0, 7, 0x7F7F);
        check_rounding::<F16>(|number| number.0, 10, 0x7BFF);
    }

    #[test]
    fn overflow_becomes_infinity_and_nan_stays_nan() {
        let nans = [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFFF_FFFF].map(f32::from_bits);
        for level in Level::available() {
            let large = narrowed::<F16>(level, &[65519.0, 65520.0, 1e30, f32::MAX, f32::INFINITY, -7e4]);
            assert_eq!(large.map_bits(), [0x7BFF, 0x7C00, 0x7C00, 0x7C00, 0x7C00, 0xFC00], "{level:?}");
            let large = narrowed::<Bf16>(level, &[3.3895e38, f32::MAX, f32::INFINITY, -f32::MAX]);
            assert_eq!(large.map_bits(), [0x7F7F, 0x7F80, 0x7F80, 0xFF80], "{level:?}");
            assert!(narrowed::<F16>(level, &nans).map_bits().iter().all(|bits| bits & 0x7FFF > 0x7C00));
            assert!(narrowed::<Bf16>(level, &nans).map_bits().iter().all(|bits| bits & 0x7FFF > 0x7F80));
        }
    }

    trait MapBits {
        fn map_bits(&self) -> Vec<u16>;
    }

    impl MapBits for Vec<F16> {
        fn map_bits(&self) -> Vec<u16> {
            self.iter().map(|number| number.0).collect()
        }
    }

    impl MapBits for Vec<Bf16> {
        fn map_bits(&self) -> Vec<u16> {
            self.iter().map(|number| number.0).collect()
        }
    }

    /// For numbers in each part of the range, over all 65536 random numbers.
    #[test]
    fn stochastic_rounding_to_f16_rounds_up_in_proportion_to_the_fraction() {
        let words: Vec<u32> = (0..1 << 16).collect();
        let up = |value: f32| {
            let mut all = vec![F16::default(); words.len()];
            F16::round_stochastically(Level::best(), &vec![value; words.len()], &words, 0, &mut all);
            let wide = widened(Level::best(), &all);
            let least = wide.iter().copied().fold(f32::INFINITY, f32::min);
            (least, wide.iter().filter(|&&found| found > least).count())
        };
        // Exact numbers never change, including the smallest subnormal and the largest number.
        for exact in [0.0, 1.0, -1.5, 65504.0, 2f32.powi(-24), 2f32.powi(-14), 3.0 * 2f32.powi(-24)] {
            assert_eq!(up(exact), (exact, 0));
        }
        assert_eq!(up(1.0 + 2f32.powi(-13)), (1.0, 1 << 13));
        assert_eq!(up(-(1.0 + 2f32.powi(-11))).1, 1 << 15);
        assert_eq!(up(2f32.powi(-25)), (0.0, 1 << 15));
        assert_eq!(up(2f32.powi(-14) - 2f32.powi(-25)), (2f32.powi(-14) - 2f32.powi(-24), 1 << 15));
        assert_eq!(up(f32::INFINITY), (f32::INFINITY, 0));
        assert_eq!(up(1e6), (f32::INFINITY, 0));
        assert_eq!(up(65520.0), (65504.0, 1 << 15));
        let mut found = [F16::default(); 1];
        F16::round_stochastically(Level::best(), &[f32::NAN], &[0xFFFF], 0, &mut found);
        assert!(widened(Level::best(), &found)[0].is_nan());
    }
}
