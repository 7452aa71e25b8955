//! Constants and random numbers.
//!
//! Random numbers are counter based, so that any device makes the same ones: elements 4j to 4j + 3 come from the
//! block of Philox4x32-10 (Salmon et al. 2011) with the counter (low half of j, high half of j, site, 0) and the
//! key (low half of the seed, high half of the seed). Its four words (a, b, c, d) become two pairs (a, b) and
//! (c, d), and each pair (u, v) two normal numbers, `r cos t` and `r sin t` with `r = sqrt(-2 ln((u + 1) / 2^32))`
//! and `t = 2 pi v / 2^32` (Box and Muller 1958), computed in f64, multiplied by the deviation and rounded to f32.

use crate::ops::{Fill, Normal};

use super::operands::Operands;
use super::workers::{Parts, Workers};

/// Elements that a thread takes at a time: whole blocks of four.
const CHUNK: usize = 1 << 14;

pub(super) fn fill(op: &Fill, operands: &mut Operands, workers: &Workers) {
    each_chunk(operands.output(0), workers, |_, part| part.fill(op.value));
}

pub(super) fn normal(op: &Normal, operands: &mut Operands, workers: &Workers) {
    each_chunk(operands.output(0), workers, |start, part| {
        for (index, block) in part.chunks_mut(4).enumerate() {
            let numbers = normals((start / 4 + index) as u64, op.seed, op.site);
            for (element, number) in block.iter_mut().zip(numbers) {
                *element = (number * f64::from(op.deviation)) as f32;
            }
        }
    });
}

fn each_chunk(output: &mut [f32], workers: &Workers, work: impl Fn(usize, &mut [f32]) + Sync) {
    let output = Parts::new(output);
    workers.chunks(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        work(range.start, unsafe { output.part(range.clone()) });
    });
}

/// Four normal numbers of mean 0 and deviation 1.
fn normals(block: u64, seed: u64, site: u32) -> [f64; 4] {
    let words = philox([block as u32, (block >> 32) as u32, site, 0], [seed as u32, (seed >> 32) as u32]);
    const UNIT: f64 = 1.0 / (1u64 << 32) as f64;
    let pair = |u: u32, v: u32| {
        let radius = (-2.0 * ((f64::from(u) + 1.0) * UNIT).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * f64::from(v) * UNIT).sin_cos();
        [radius * cosine, radius * sine]
    };
    let ([a, b], [c, d]) = (pair(words[0], words[1]), pair(words[2], words[3]));
    [a, b, c, d]
}

/// Philox4x32 with ten rounds.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers that come with the authors' Random123 library.
    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
