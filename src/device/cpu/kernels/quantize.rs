//! Block-wise dynamic quantization: codes of 8 bits, and a scale for each block of them.

use std::sync::LazyLock;

use super::simd::{Level, simd};
use ops::DynamicMap;

const ALL_DECADES: usize = DynamicMap::DECADES + 1;

/// What quantizing takes, worked out once for each map.
pub(super) struct Codes {
    /// What each code stands for.
    shares: [f32; 256],
    encoder: Encoder,
}

/// How the code nearest to a share is found: its decade by comparison, its place there by arithmetic, for the codes of a
/// decade stand for the middles of equal parts of it.
#[derive(Clone, Copy)]
struct Encoder {
    /// By decade, and at last for 1 itself: the least share that belongs there.
    least: [f32; ALL_DECADES],
    /// Parts of the decade to a share; none of the last.
    parts: [f32; ALL_DECADES],
    /// Parts of a decade.
    count: [f32; ALL_DECADES],
    /// How much less than as many parts as its decade has the code of a decade's first is above that of 0.
    before: f32,
    zero: f32,
    signed: bool,
}

static SIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(DynamicMap::Signed));
static UNSIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(DynamicMap::Unsigned));

impl Codes {
    pub(super) fn of(map: DynamicMap) -> &'static Codes {
        match map {
            DynamicMap::Signed => &SIGNED,
            DynamicMap::Unsigned => &UNSIGNED,
        }
    }

    fn new(map: DynamicMap) -> Codes {
        let code = |above: usize| map.share((map.zero() + above) as u8);
        let least = |decade: usize| ((code(map.first(decade) - 1) + code(map.first(decade))) / 2.0) as f32;
        let parts = |decade: usize| match decade {
            DynamicMap::DECADES => 0.0,
            _ => (map.count(decade) as f64 / 0.9 * 10f64.powi(6 - decade as i32)) as f32,
        };
        Codes {
            shares: std::array::from_fn(|code| map.share(code as u8) as f32),
            encoder: Encoder {
                least: std::array::from_fn(least),
                parts: std::array::from_fn(parts),
                count: std::array::from_fn(|decade| map.count(decade) as f32),
                before: (map.count(0) - map.first(0)) as f32,
                zero: map.zero() as f32,
                signed: map == DynamicMap::Signed,
            },
        }
    }

    /// What the codes of a block stand for.
    pub(super) fn decode(&self, level: Level, codes: &[u8], scale: f32, to: &mut [f32]) {
        decode(level, &self.shares, codes, scale, to);
    }

    /// The nearest codes to the numbers of a block. Returns their scale.
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

/// Numbers that are encoded side by side.
const LANES: usize = 16;

impl Encoder {
    #[inline(always)]
    fn codes(&self, from: &[f32; LANES], scale: f32) -> [u8; LANES] {
        // What is added to it is rounded to a whole number, which its last bits then are.
        const MAGNET: f32 = 12_582_912.0;
        let mut shares = [0.0; LANES];
        for (share, value) in shares.iter_mut().zip(from) {
            *share = value.abs() / scale;
        }
        let (mut part, mut count) = ([0.0f32; LANES], [0.0f32; LANES]);
        for decade in 0..ALL_DECADES {
            let (least, parts, counted) = (self.least[decade], self.parts[decade], self.count[decade]);
            for lane in 0..LANES {
                let reached = shares[lane] >= least;
                part[lane] = if reached { parts } else { part[lane] };
                count[lane] = if reached { counted } else { count[lane] };
            }
        }
        let mut codes = [0; LANES];
        for lane in 0..LANES {
            // The first tenth of what a decade is parted in lies below it. All is 0 where no decade is reached.
            let place = shares[lane] * part[lane] - count[lane] * (1.0 / 9.0);
            let place = if place < count[lane] - 0.25 { place } else { count[lane] - 0.25 };
            let place = if place > 0.25 { place } else { 0.25 };
            // Rounded down, or a number between two parts to either.
            let place = (place - 0.5 + MAGNET) - MAGNET;
            let first = if count[lane] > self.before { count[lane] - self.before } else { 0.0 };
            let above = first + place;
            // There is one code less below 0 than above.
            let below = if above < self.zero { above } else { self.zero };
            let is_below = self.signed && from[lane] < 0.0;
            let number = if is_below { self.zero - below } else { self.zero + above };
            codes[lane] = (number + MAGNET).to_bits() as u8;
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all codes, none is nearer; a code's own number has that code.
    #[test]
    fn codes_are_the_nearest() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let codes = Codes::of(map);
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
                    // Subnormal numbers have no more than a few bits.
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
    fn a_block_of_zeros_stays_zeros() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let mut codes = [1; 100];
            let scale = Codes::of(map).encode(Level::best(), &[0.0; 100], &mut codes);
            assert_eq!(scale, 0.0);
            assert_eq!(codes.map(usize::from), [map.zero(); 100]);
            let mut numbers = [1.0; 100];
            // What memory begins as: code 0 of scale 0.
            Codes::of(map).decode(Level::best(), &[0; 100], 0.0, &mut numbers);
            assert_eq!(numbers, [0.0; 100]);
        }
    }
}
