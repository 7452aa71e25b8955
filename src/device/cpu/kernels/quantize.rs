//! Block-wise dynamic quantization: 8-bit codes, and a scale per block.

use std::sync::LazyLock;

use super::simd::{Level, simd};
use ops::DynamicMap;

const ALL_DECADES: usize = DynamicMap::DECADES + 1;

/// The tables for encoding and decoding, computed once for each map.
pub(super) struct Codebook {
    /// The value of each code, relative to the scale.
    shares: [f32; 256],
    encoder: Encoder,
}

/// Tables to find the code nearest to a value relative to the scale (a share). Comparisons find its decade, arithmetic
/// its position there, because the codes of a decade stand for the midpoints of equal intervals.
#[derive(Clone, Copy)]
struct Encoder {
    /// The smallest share of each decade; the last entry is for the share 1.
    lower_bounds: [f32; ALL_DECADES],
    /// Intervals of each decade per unit of share; 0 for the last entry.
    intervals_per_share: [f32; ALL_DECADES],
    /// Number of intervals of each decade.
    interval_counts: [f32; ALL_DECADES],
    /// The same for every decade: its number of intervals, less the distance of its first code from the code of 0.
    first_offset: f32,
    /// The code of 0.
    zero: f32,
    signed: bool,
}

static SIGNED: LazyLock<Codebook> = LazyLock::new(|| Codebook::new(DynamicMap::Signed));
static UNSIGNED: LazyLock<Codebook> = LazyLock::new(|| Codebook::new(DynamicMap::Unsigned));

impl Codebook {
    pub(super) fn for_map(map: DynamicMap) -> &'static Codebook {
        match map {
            DynamicMap::Signed => &SIGNED,
            DynamicMap::Unsigned => &UNSIGNED,
        }
    }

    fn new(map: DynamicMap) -> Codebook {
        let code = |above: usize| map.share((map.zero() + above) as u8);
        let least = |decade: usize| ((code(map.first(decade) - 1) + code(map.first(decade))) / 2.0) as f32;
        let parts = |decade: usize| match decade {
            DynamicMap::DECADES => 0.0,
            _ => (map.count(decade) as f64 / 0.9 * 10f64.powi(6 - decade as i32)) as f32,
        };
        Codebook {
            shares: std::array::from_fn(|code| map.share(code as u8) as f32),
            encoder: Encoder {
                lower_bounds: std::array::from_fn(least),
                intervals_per_share: std::array::from_fn(parts),
                interval_counts: std::array::from_fn(|decade| map.count(decade) as f32),
                first_offset: (map.count(0) - map.first(0)) as f32,
                zero: map.zero() as f32,
                signed: map == DynamicMap::Signed,
            },
        }
    }

    /// Decodes a block.
    pub(super) fn decode(&self, level: Level, codes: &[u8], scale: f32, to: &mut [f32]) {
        decode(level, &self.shares, codes, scale, to);
    }

    /// Encodes a block to the nearest codes. Returns its scale.
    pub(super) fn encode(&self, level: Level, from: &[f32], codes: &mut [u8]) -> f32 {
        let scale = largest(level, from);
        encode(level, self.encoder, from, scale, codes);
        scale
    }
}

simd! {
    fn decode(shares: &[f32; 256], codes: &[u8], scale: f32, to: &mut [f32]) {
        for (to, &code) in to.iter_mut().zip(codes) {
            *to = shares[usize::from(code)] * scale;
        }
    }
}

simd! {
    pub(super) fn largest(values: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = values.as_chunks::<16>();
        for chunk in whole {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane = if value.abs() > *lane { value.abs() } else { *lane };
            }
        }
        rest.iter().chain(&lanes).fold(0.0, |largest: f32, value| largest.max(value.abs()))
    }
}

simd! {
    fn encode(encoder: Encoder, from: &[f32], scale: f32, codes: &mut [u8]) {
        let (whole, rest) = from.as_chunks();
        let (whole_codes, rest_codes) = codes.as_chunks_mut();
        for (from, codes) in whole.iter().zip(whole_codes) {
            *codes = encoder.codes(from, scale);
        }
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        rest_codes.copy_from_slice(&encoder.codes(&last, scale)[..rest.len()]);
    }
}

/// Numbers per vectorized step of encoding.
const LANES: usize = 16;

impl Encoder {
    #[inline(always)]
    fn codes(&self, from: &[f32; LANES], scale: f32) -> [u8; LANES] {
        // Adding it rounds to an integer, which the low bits of the sum then hold.
        const MAGIC: f32 = 12_582_912.0;
        let mut shares = [0.0; LANES];
        for (share, value) in shares.iter_mut().zip(from) {
            *share = value.abs() / scale;
        }
        let (mut part, mut count) = ([0.0f32; LANES], [0.0f32; LANES]);
        for decade in 0..ALL_DECADES {
            let (least, parts, counted) =
                (self.lower_bounds[decade], self.intervals_per_share[decade], self.interval_counts[decade]);
            for lane in 0..LANES {
                let reached = shares[lane] >= least;
                part[lane] = if reached { parts } else { part[lane] };
                count[lane] = if reached { counted } else { count[lane] };
            }
        }
        let mut codes = [0; LANES];
        for lane in 0..LANES {
            // A decade begins at a tenth of its end, `count / 9` intervals above 0. All is 0 if the share is below
            // every decade.
            let position = shares[lane] * part[lane] - count[lane] * (1.0 / 9.0);
            let position = if position < count[lane] - 0.25 { position } else { count[lane] - 0.25 };
            let position = if position > 0.25 { position } else { 0.25 };
            // Rounds down; on the border between two intervals, either result is right.
            let position = (position - 0.5 + MAGIC) - MAGIC;
            let first = if count[lane] > self.first_offset { count[lane] - self.first_offset } else { 0.0 };
            let above = first + position;
            // There is one code fewer below 0 than above.
            let below = if above < self.zero { above } else { self.zero };
            let is_below = self.signed && from[lane] < 0.0;
            let number = if is_below { self.zero - below } else { self.zero + above };
            codes[lane] = (number + MAGIC).to_bits() as u8;
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other code is nearer, and the exact value of a code is encoded to that code.
    #[test]
    fn encode_finds_the_nearest_code() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let codes = Codebook::for_map(map);
            let shares: Vec<f64> = (0..=255).map(|code| map.share(code)).collect();
            let mut numbers: Vec<f32> = shares.iter().map(|&share| share as f32).collect();
            let mut x = 1.0f32;
            while x > 1e-9 {
                numbers.push(if map == DynamicMap::Signed && numbers.len().is_multiple_of(2) {
                    -x
                } else {
                    x
                });
                x *= 0.9987;
            }
            numbers.push(0.0);
            for level in Level::available() {
                let mut found = vec![0; numbers.len()];
                for scale in [1.0f32, 3e-7, 1e-39] {
                    let scaled: Vec<f32> = numbers.iter().map(|number| number * scale).collect();
                    assert_eq!(codes.encode(level, &scaled, &mut found), scale);
                    if scale == 1.0 {
                        assert!(
                            found[..256].iter().enumerate().all(|(code, &found)| code == usize::from(found))
                        );
                    }
                    // Subnormal numbers have few significant bits.
                    let slack = if scale < f32::MIN_POSITIVE { 2e-6 } else { 1e-6 };
                    for (&number, &code) in scaled.iter().zip(&found) {
                        let share = f64::from(number) / f64::from(scale);
                        let distance = |code: &f64| (code - share).abs();
                        let nearest = shares.iter().map(distance).fold(f64::INFINITY, f64::min);
                        let own = distance(&shares[usize::from(code)]);
                        assert!(
                            own <= nearest + slack * share.abs(),
                            "{map:?} at {level:?}: {code} for {share}"
                        );
                    }
                    let mut decoded = vec![0.0; found.len()];
                    codes.decode(level, &found, scale, &mut decoded);
                    let expected: Vec<f32> =
                        found.iter().map(|&code| shares[usize::from(code)] as f32 * scale).collect();
                    assert_eq!(decoded, expected);
                }
            }
        }
    }

    #[test]
    fn block_of_zeros_stays_zero() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let mut codes = [1; 100];
            let scale = Codebook::for_map(map).encode(Level::best(), &[0.0; 100], &mut codes);
            assert_eq!(scale, 0.0);
            assert_eq!(codes.map(usize::from), [map.zero(); 100]);
            let mut numbers = [1.0; 100];
            // The initial contents of states: code 0 with scale 0.
            Codebook::for_map(map).decode(Level::best(), &[0; 100], 0.0, &mut numbers);
            assert_eq!(numbers, [0.0; 100]);
        }
    }
}
