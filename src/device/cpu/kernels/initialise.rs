//! Initial values: constants and normally distributed random numbers.
//!
//! Random numbers are counter-based, so that all devices compute the same ones. Elements 4j to 4j + 3 come from the
//! Philox4x32-10 block (Salmon et al. 2011) with the counter (low half of j, high half of j, site, 0) and the key (low
//! half of the seed, high half of the seed). Its four words (a, b, c, d) form two pairs, (a, b) and (c, d). Each pair
//! (u, v) gives two normal numbers, `r cos t` and `r sin t` with `r = sqrt(-2 ln((u + 1) / 2^32))` and
//! `t = 2 pi v / 2^32` (Box and Muller 1958), computed in f64, multiplied by the standard deviation and rounded to f32.

use ops::{Fill, Normal, Operation as _};

use super::float::{BUFFER, Float, with_float, write};
use super::operands::Operands;
use super::philox::philox;
use super::workers::{SharedSlice, Workers};

/// Elements per task: a multiple of four.
const CHUNK: usize = 1 << 14;

pub(super) fn fill(op: &Fill, operands: &mut Operands, workers: &Workers) {
    match op.output.dtype {
        // Types that are not floating-point are filled with zeros only.
        dtype if op.is_zeros() || !dtype.is_float() => {
            for_each_chunk(operands.output_bytes(0), workers, |_, part| part.fill(0))
        }
        dtype => with_float!(dtype, T => {
            let mut value = T::default();
            T::narrow(workers.level(), &[op.value], std::slice::from_mut(&mut value));
            for_each_chunk(operands.output::<T>(0), workers, |_, part| part.fill(value));
        }),
    }
}

pub(super) fn normal<T: Float>(op: &Normal, operands: &mut Operands, workers: &Workers) {
    let (level, deviation) = (workers.level(), f64::from(op.deviation.of(&op.output)));
    for_each_chunk(operands.output::<T>(0), workers, |start, part| {
        write(level, part, &mut [0.0; BUFFER], |run, numbers| {
            for (index, block) in numbers.chunks_mut(4).enumerate() {
                let numbers = normals(((start + run.start) / 4 + index) as u64, op.seed, op.site);
                for (element, number) in block.iter_mut().zip(numbers) {
                    *element = (number * deviation) as f32;
                }
            }
        });
    });
}

/// Calls `work(start, elements)` for each chunk of the output.
fn for_each_chunk<T: Send>(output: &mut [T], workers: &Workers, work: impl Fn(usize, &mut [T]) + Sync) {
    let output = SharedSlice::new(output);
    workers.for_each_chunk(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        work(range.start, unsafe { output.range_mut(range.clone()) });
    });
}

/// Four normal numbers with mean 0 and standard deviation 1.
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
