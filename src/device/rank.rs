//! A device's share of the samples.

use std::ops::Range;

/// One of the processes that train together, each on its own device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub index: usize,
    /// The number of ranks (world size).
    pub of: usize,
}

impl Rank {
    pub const ALONE: Rank = Rank { index: 0, of: 1 };

    /// The rank's range of `of_all` samples. Ranks' counts differ by at most one; the first rank has the most.
    pub fn samples(self, of_all: usize) -> Range<usize> {
        let begin = |index: usize| (of_all * index).div_ceil(self.of);
        begin(self.index)..begin(self.index + 1)
    }
}

/// Variables for the process of a rank on a card, unless they are set: NCCL's sums are then the same bits each time, and
/// it takes all of its memory when it starts.
pub fn rank_environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let variables = [("NCCL_NVLS_ENABLE", "0"), ("NCCL_RUNTIME_CONNECT", "0")];
    variables.into_iter().filter(|(name, _)| std::env::var_os(name).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_partition_all_samples() {
        for (of, of_all) in [(1, 7), (2, 7), (3, 7), (4, 8), (5, 5)] {
            let shares: Vec<_> = (0..of).map(|index| Rank { index, of }.samples(of_all)).collect();
            assert_eq!((shares[0].start, shares[of - 1].end), (0, of_all));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lens = || shares.iter().map(|share| share.len());
            assert!(lens().max().unwrap() - lens().min().unwrap() <= 1);
            assert_eq!(lens().max().unwrap(), shares[0].len());
        }
    }
}
