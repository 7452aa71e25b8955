//! Sums of numbers of several ranks.

use super::float::{Float, with_float};
use super::simd::Level;
use ops::DType;

/// Numbers that are summed at once.
const BLOCK: usize = 256;

/// `to = from[0] + from[1] + ..`, elementwise, in f32 and rounded once.
///
/// # Safety
/// All have this number of elements of this type, aligned, and nothing else writes them.
pub(in crate::cpu) unsafe fn sum(dtype: DType, from: &[*const u8], to: *mut u8, elements: usize) {
    // SAFETY: guaranteed by the caller.
    with_float!(dtype, T => unsafe { sum_of::<T>(from, to, elements) })
}

/// # Safety
/// As for [`sum`].
unsafe fn sum_of<T: Float>(from: &[*const u8], to: *mut u8, elements: usize) {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<T>(), elements) };
    let (mut sums, mut widened) = ([0.0; BLOCK], [0.0; BLOCK]);
    for (block, to) in to.chunks_mut(BLOCK).enumerate() {
        let len = to.len();
        for (index, from) in from.iter().enumerate() {
            // SAFETY: within the elements of the source.
            let numbers = unsafe { std::slice::from_raw_parts(from.cast::<T>().add(block * BLOCK), len) };
            let numbers = T::widened(Level::Portable, numbers, &mut widened);
            match index {
                0 => sums[..len].copy_from_slice(numbers),
                _ => sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number),
            }
        }
        T::narrow(Level::Portable, &sums[..len], to);
    }
}
