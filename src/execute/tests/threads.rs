//! The number of threads against the results, which do not depend on it.

use super::trace_on;
use device::Target;
use spec::*;

/// A run whose sizes no number of threads divides, nor any width of a vector: 488 rows in a batch, 183 and 122 in
/// micro-batches of it, 87 channels, three heads of 29, a vocabulary of 263. Its sums are longer than what a kernel adds
/// up at a time: the rows of a weight's gradient, the elements of the gradients' norm.
fn uneven(accumulate: usize, recompute: Recompute) -> RunConfig {
    let mut config = testing::small();
    config.model = Model::Transformer(Transformer { vocabulary: 263, ..Transformer::new(2, 87, 3, 61) });
    config.train.batch_size = 8;
    config.strategy.accumulate = accumulate;
    config.strategy.recompute = recompute;
    config
}

/// The digests of all parameters and moments after each of four steps, and every loss.
#[test]
fn threads_change_no_bit() {
    for accumulate in [1, 3] {
        for recompute in [Recompute::None, Recompute::Block] {
            let config = uneven(accumulate, recompute);
            let trace = |threads| trace_on(&config, Target { threads, ..testing::target() });
            let alone = trace(1);
            for threads in 2..=4 {
                assert_eq!(trace(threads), alone, "{threads} threads, {:?}", config.strategy);
            }
        }
    }
}
