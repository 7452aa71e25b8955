//! The order of the runs in a measurement round.

/// The order of `runs` runs in round `round`, counted from 1. Every even round reverses the round before it, so that
/// steady drift favours each of two runs in turn. Each pair of rounds starts with another run, so that no run always
/// follows the same one.
pub fn order(round: usize, runs: usize) -> Vec<usize> {
    let pair = round.saturating_sub(1) / 2;
    let forward = (0..runs).map(|at| (at + pair) % runs.max(1));
    if round.is_multiple_of(2) { forward.rev().collect() } else { forward.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_contains_each_run_once() {
        assert_eq!(order(1, 3), [0, 1, 2]);
        assert_eq!(order(2, 3), [2, 1, 0]);
        assert_eq!(order(3, 3), [1, 2, 0]);
        assert_eq!(order(4, 3), [0, 2, 1]);
        assert_eq!(order(7, 3), order(1, 3));
        assert_eq!(order(5, 0), Vec::<usize>::new());
    }

    #[test]
    fn each_of_two_runs_is_first_equally_often() {
        for (one, other) in [(0, 1), (0, 4), (2, 3)] {
            let is_first = |round: &usize| {
                let order = order(*round, 5);
                let position = |run| order.iter().position(|at| *at == run);
                position(one) < position(other)
            };
            assert_eq!((1..=10).filter(is_first).count(), 5, "{one} and {other}");
        }
    }
}
