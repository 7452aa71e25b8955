//! Philox4x32 with ten rounds (Salmon et al. 2011): random numbers as a function of a counter and a key, so that all
//! devices compute the same ones, in any order.

use std::array::from_fn;

use super::simd::simd;

/// Blocks per vectorized step.
const LANES: usize = 8;

/// The four words of one block.
pub(super) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    rounds(counter.map(|word| [u64::from(word)]), key).map(|[word]| word as u32)
}

simd! {
    /// The words of consecutive blocks, four per block. The counter of a block is (low half of its number, high half,
    /// ..counter).
    pub(super) fn philox_words(first: u64, counter: [u32; 2], key: [u32; 2], words: &mut [u32]) {
        let (whole, rest) = words.as_chunks_mut();
        let mut block = first;
        for words in whole {
            *words = lanes(block, counter, key);
            block += LANES as u64;
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&lanes(block, counter, key)[..rest.len()]);
        }
    }
}

simd! {
    /// One 16-bit number per column of a row, 32 columns from four consecutive blocks. Column c uses word
    /// `(c % 32) / 8` of block `4 (c / 32) + (c % 8) / 2`, the lower half if c is even. Counters are as above.
    pub(super) fn philox_columns(first: u64, counter: [u32; 2], key: [u32; 2], columns: &mut [u16]) {
        let mut block = first;
        for columns in columns.chunks_mut(8 * LANES) {
            let words = blocks(block, counter, key);
            let mut numbers = [0; 8 * LANES];
            for (index, pair) in numbers.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let word = words[index / 4 % 4][index / 16 * 4 + index % 4];
                *pair = [word as u16, (word >> 16) as u16];
            }
            match columns.as_chunks_mut() {
                ([all], []) => *all = numbers,
                _ => columns.copy_from_slice(&numbers[..columns.len()]),
            }
            block += LANES as u64;
        }
    }
}

#[inline(always)]
fn lanes(first: u64, counter: [u32; 2], key: [u32; 2]) -> [u32; 4 * LANES] {
    let blocks = blocks(first, counter, key);
    let mut words = [0; 4 * LANES];
    for (lane, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *words =
            [blocks[0][lane] as u32, blocks[1][lane] as u32, blocks[2][lane] as u32, blocks[3][lane] as u32];
    }
    words
}

/// The words of consecutive blocks, by word index, then by block.
#[inline(always)]
fn blocks(first: u64, counter: [u32; 2], key: [u32; 2]) -> [[u64; LANES]; 4] {
    let block = |lane: usize| first + lane as u64;
    let [third, fourth] = counter.map(|word| [u64::from(word); LANES]);
    rounds([from_fn(block), from_fn(|lane| block(lane) >> 32), third, fourth], key)
}

/// The ten rounds for `N` counters. A word is the lower half of a 64-bit lane; the upper half is ignored. The product
/// of two words fills a lane, so that no data moves between lanes.
#[inline(always)]
fn rounds<const N: usize>(mut counter: [[u64; N]; 4], mut key: [u32; 2]) -> [[u64; N]; 4] {
    const WORD: u64 = 0xFFFF_FFFF;
    for _ in 0..10 {
        let keys = key.map(u64::from);
        let mut next = [[0; N]; 4];
        for lane in 0..N {
            let first = (counter[0][lane] & WORD) * 0xD251_1F53;
            let second = (counter[2][lane] & WORD) * 0xCD9E_8D57;
            next[0][lane] = (second >> 32) ^ counter[1][lane] ^ keys[0];
            next[1][lane] = second;
            next[2][lane] = (first >> 32) ^ counter[3][lane] ^ keys[1];
            next[3][lane] = first;
        }
        counter = next;
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    /// The known-answer tests of the authors' Random123 library.
    #[test]
    fn philox_matches_published_answers() {
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

    #[test]
    fn columns_are_halves_of_words() {
        let first = 7u64 << 32;
        let number = |column: usize| {
            let block = (4 * (column / 32) + column % 8 / 2) as u32;
            let word = philox([block, 7, 5, 0], [8, 9])[column % 32 / 8];
            if column.is_multiple_of(2) { word as u16 } else { (word >> 16) as u16 }
        };
        let expected: Vec<u16> = (0..200).map(number).collect();
        for level in Level::available() {
            for len in [200, 128, 64, 33, 1, 0] {
                let mut columns = vec![0; len];
                philox_columns(level, first, [5, 0], [8, 9], &mut columns);
                assert_eq!(columns, expected[..len], "{level:?}");
            }
        }
    }

    #[test]
    fn words_are_those_of_consecutive_blocks() {
        // The block number overflows its low half, and the last block is incomplete.
        let first = (1 << 32) - 3;
        let expected: Vec<u32> = (first..first + 40)
            .flat_map(|block: u64| philox([block as u32, (block >> 32) as u32, 5, 6], [7, 8]))
            .collect();
        for level in Level::available() {
            let mut words = [0; 4 * 40 - 1];
            philox_words(level, first, [5, 6], [7, 8], &mut words);
            assert_eq!(words[..], expected[..words.len()], "{level:?}");
        }
    }
}
