//! Exchanges of numbers between ranks.

/// Shares are equal, and in the order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Each rank gets the sums over all ranks.
    AllReduce,
    /// Each rank gets its share of the sums.
    ReduceScatter,
    /// Each rank gets the shares of all.
    AllGather,
}

impl Collective {
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
        }
    }

    /// Bytes that each of n ranks sends, of a whole of this size: (n - 1) / n of it, in an all-reduce twice.
    pub fn sent_bytes(self, whole: u64, ranks: usize) -> u64 {
        let times = if self == Collective::AllReduce { 2 } else { 1 };
        (times * (ranks as u128 - 1) * u128::from(whole) / ranks as u128) as u64
    }
}
