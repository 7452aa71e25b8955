//! Results do not depend on the number of threads.

use super::trace_on;
use device::Target;
use spec::*;

/// A run whose sizes are not multiples of the number of threads or the vector width: 488 rows in a batch, 183 and 122
/// in micro-batches, 87 channels, three heads of 29, a vocabulary of 263. Its sums are longer than a kernel's tile: the
/// rows of a weight's gradient, the elements of the gradients' norm.
fn uneven(accumulate: usize, recompute: Recompute) -> RunConfig {
    let mut config = testing::small();
    config.model = Model::Transformer(Transformer { vocabulary: 263, ..Transformer::new(2, 87, 3, 61) });
    config.train.batch_size = 8;
    config.strategy.accumulate = accumulate;
    config.strategy.recompute = recompute;
    config
}

/// Compares the digests of parameters and moments after each of four steps, and every loss.
#[test]
fn number_of_threads_does_not_change_results() {
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
