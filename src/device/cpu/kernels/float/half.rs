//! Numbers of 16 bits.

use super::Float;
use crate::cpu::kernels::simd::{Level, simd};
use ops::DType;

/// The upper half of an f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

/// Of an f32 without its sign.
const INFINITY: u32 = 0x7F80_0000;
/// Makes a not-a-number a quiet one, whatever of its other bits is kept.
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
        // Half a unit in the last place, less one bit where that unit's bit is even.
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        let is_number = bits & !SIGN <= INFINITY;
        Bf16(((if is_number { rounded } else { bits | QUIET }) >> 16) as u16)
    }
}

/// A number of 16 bits that others are rounded to up or down: up as often as so many of 65536 random numbers add up to one
/// with what is cut off. Those numbers are 16 bits of each word from bit `shift` on.
pub(crate) trait Half: Float {
    fn round_at_random(level: Level, from: &[f32], words: &[u32], shift: u32, to: &mut [Self]);
}

impl Half for Bf16 {
    fn round_at_random(level: Level, from: &[f32], words: &[u32], shift: u32, to: &mut [Bf16]) {
        round_bf16_at_random(level, from, words, shift, to);
    }
}

impl Half for F16 {
    fn round_at_random(level: Level, from: &[f32], words: &[u32], shift: u32, to: &mut [F16]) {
        round_f16_at_random(level, from, words, shift, to);
    }
}

simd! {
    fn round_bf16_at_random(from: &[f32], words: &[u32], shift: u32, to: &mut [Bf16]) {
        for ((to, from), word) in to.iter_mut().zip(from).zip(words) {
            let bits = from.to_bits();
            let is_number = bits & !SIGN <= INFINITY;
            let rounded = bits.wrapping_add(word >> shift & 0xFFFF);
            *to = Bf16(((if is_number { rounded } else { bits | QUIET }) >> 16) as u16);
        }
    }
}

simd! {
    fn round_f16_at_random(from: &[f32], words: &[u32], shift: u32, to: &mut [F16]) {
        for ((to, &from), word) in to.iter_mut().zip(from).zip(words) {
            *to = F16::at_random(from, word >> shift & 0xFFFF);
        }
    }
}

impl F16 {
    /// Bits of significand that an f32 has more.
    const SHIFT: u32 = 23 - 10;
    const EXPONENT: u32 = 0x7C00;
    /// What an f32's exponent is larger by.
    const BIAS: u32 = (127 - 15) << 23;
    /// Of an f32: the least number that is not subnormal here, and the one after the largest binade.
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    const TOO_LARGE: u32 = (127 + 16) << 23;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = u32::from(self.0 & 0x7FFF) << F16::SHIFT;
        let exponent = bits & F16::EXPONENT << F16::SHIFT;
        let normal = bits + F16::BIAS;
        // Put below the least normal number's significand, which is then subtracted.
        let subnormal =
            (f32::from_bits(bits + F16::LEAST_NORMAL) - f32::from_bits(F16::LEAST_NORMAL)).to_bits();
        let value = if exponent == 0 { subnormal } else { normal };
        let value = if exponent == F16::EXPONENT << F16::SHIFT { bits | INFINITY } else { value };
        f32::from_bits(value | u32::from(self.0 & 0x8000) << 16)
    }

    /// `draw` is below 65536.
    #[inline(always)]
    fn at_random(value: f32, draw: u32) -> F16 {
        /// What a subnormal number is a multiple of is 65536 of these.
        const UNITS: f32 = (1u64 << 40) as f32;
        let sign = value.to_bits() & SIGN;
        let bits = value.to_bits() ^ sign;
        let normal = bits.wrapping_sub(F16::BIAS).wrapping_add(draw >> 3) >> F16::SHIFT;
        let magnitude = if bits < F16::LEAST_NORMAL { f32::from_bits(bits) } else { 0.0 };
        let subnormal = ((magnitude * UNITS) as u32 + draw) >> 16;
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
        // A carry out of the significand is the next exponent, and one out of the last exponent is infinity.
        let odd = bits >> F16::SHIFT & 1;
        let normal = bits.wrapping_sub(F16::BIAS).wrapping_add(0xFFF + odd) >> F16::SHIFT;
        // Added to a number whose last place is that of subnormal ones, it is rounded by the addition.
        const MAGNET: f32 = 0.5;
        let subnormal = (f32::from_bits(bits) + MAGNET).to_bits().wrapping_sub(MAGNET.to_bits());
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
        assert_eq!(from.len(), to.len(), "as many numbers");
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.to_f32();
        }
    }
}

simd! {
    fn narrow_bf16(from: &[f32], to: &mut [Bf16]) {
        assert_eq!(from.len(), to.len(), "as many numbers");
        for (to, &from) in to.iter_mut().zip(from) {
            *to = Bf16::from_f32(from);
        }
    }
}

impl Float for F16 {
    const DTYPE: DType = DType::F16;

    fn widen(level: Level, from: &[F16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many numbers");
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
        assert_eq!(from.len(), to.len(), "as many numbers");
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

/// The processor's own conversions: compilers do not find them.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::F16;

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

    /// Defines the conversions of slices of equal length with one instruction set.
    macro_rules! conversions {
        ($feature:literal, $lanes:literal, $widen:ident, $narrow:ident, $bits:ty, $load_bits:ident, $store_bits:ident,
         $widened:ident, $load:ident, $store:ident, $narrowed:expr) => {
            #[target_feature(enable = $feature)]
            pub(super) fn $widen(from: &[F16], to: &mut [f32]) {
                let convert = |from: &[F16; $lanes], to: &mut [f32; $lanes]| {
                    // SAFETY: both are as long as a vector.
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
                    // SAFETY: both are as long as a vector.
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

    /// What bits of a number with this many bits of fraction mean: none for a not-a-number.
    fn meaning(bits: u16, fraction: u32) -> Option<f64> {
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

    fn every_pattern_means_what_it_should<T: Float>(make: fn(u16) -> T, bits: fn(T) -> u16, fraction: u32) {
        let patterns: Vec<T> = (0..=u16::MAX).map(make).collect();
        for level in Level::available() {
            let wide = widened(level, &patterns);
            let back = narrowed::<T>(level, &wide);
            for ((&pattern, wide), back) in patterns.iter().zip(wide).zip(back) {
                match meaning(bits(pattern), fraction) {
                    Some(value) => {
                        let same_sign = value.is_sign_negative() == wide.is_sign_negative();
                        assert!(f64::from(wide) == value && same_sign, "{level:?} {:x}", bits(pattern));
                        assert_eq!(bits(back), bits(pattern), "{level:?}");
                    }
                    None => {
                        assert!(wide.is_nan(), "{level:?} {:x}", bits(pattern));
                        assert!(meaning(bits(back), fraction).is_none(), "{level:?} {:x}", bits(pattern));
                    }
                }
            }
        }
    }

    #[test]
    fn every_pattern_is_the_same_after_a_round_trip() {
        every_pattern_means_what_it_should(Bf16, |number| number.0, 7);
        every_pattern_means_what_it_should(F16, |number| number.0, 10);
    }

    /// Between any two neighbours: their middle goes to the even one, what is next to it to the nearer one.
    fn rounds_to_the_nearest<T: Float>(bits: fn(T) -> u16, fraction: u32, largest: u16) {
        for level in Level::available() {
            for sign in [0, 0x8000] {
                let mut values = Vec::new();
                let mut expected = Vec::new();
                for below in 0..=largest {
                    let above = below + 1;
                    // The largest number's neighbour would be the next power of two, which is infinite.
                    let top = 2f64.powi(1 << (14 - fraction));
                    let [low, high] =
                        [below, above].map(|bits| meaning(bits, fraction).unwrap_or(top).min(top));
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
    fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        rounds_to_the_nearest::<Bf16>(|number| number.0, 7, 0x7F7F);
        rounds_to_the_nearest::<F16>(|number| number.0, 10, 0x7BFF);
    }

    #[test]
    fn what_is_too_large_becomes_infinite_and_not_a_number_stays() {
        let not_numbers =
            [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFFF_FFFF].map(f32::from_bits);
        for level in Level::available() {
            let large = narrowed::<F16>(level, &[65519.0, 65520.0, 1e30, f32::MAX, f32::INFINITY, -7e4]);
            assert_eq!(large.map_bits(), [0x7BFF, 0x7C00, 0x7C00, 0x7C00, 0x7C00, 0xFC00], "{level:?}");
            let large = narrowed::<Bf16>(level, &[3.3895e38, f32::MAX, f32::INFINITY, -f32::MAX]);
            assert_eq!(large.map_bits(), [0x7F7F, 0x7F80, 0x7F80, 0xFF80], "{level:?}");
            assert!(
                narrowed::<F16>(level, &not_numbers).map_bits().iter().all(|bits| bits & 0x7FFF > 0x7C00)
            );
            assert!(
                narrowed::<Bf16>(level, &not_numbers).map_bits().iter().all(|bits| bits & 0x7FFF > 0x7F80)
            );
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

    /// Up or down as often as the draws say, whichever part of the range a number is in.
    #[test]
    fn a_number_of_f16_is_rounded_up_as_often_as_it_is_near() {
        let words: Vec<u32> = (0..1 << 16).collect();
        let up = |value: f32| {
            let mut all = vec![F16::default(); words.len()];
            F16::round_at_random(Level::best(), &vec![value; words.len()], &words, 0, &mut all);
            let wide = widened(Level::best(), &all);
            let least = wide.iter().copied().fold(f32::INFINITY, f32::min);
            (least, wide.iter().filter(|&&found| found > least).count())
        };
        // Exact numbers stay, the least subnormal and the largest among them; an eighth of the way up, and half.
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
        F16::round_at_random(Level::best(), &[f32::NAN], &[0xFFFF], 0, &mut found);
        assert!(widened(Level::best(), &found)[0].is_nan());
    }
}
