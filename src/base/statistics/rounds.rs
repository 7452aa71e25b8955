//! The order in which a round measures what is compared.

/// The order of round `round`, from 1, of `runs` runs. Every other round is the one before it backwards, so that what drifts
/// steadily favours each of two runs in turn; and pairs of rounds begin with another run each, so that no run always follows
/// the same one.
pub fn order(round: usize, runs: usize) -> Vec<usize> {
    let pair = round.saturating_sub(1) / 2;
    let forward = (0..runs).map(|at| (at + pair) % runs.max(1));
    if round.is_multiple_of(2) { forward.rev().collect() } else { forward.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_each_run_once_in_another_order() {
        assert_eq!(order(1, 3), [0, 1, 2]);
        assert_eq!(order(2, 3), [2, 1, 0]);
        assert_eq!(order(3, 3), [1, 2, 0]);
        assert_eq!(order(4, 3), [0, 2, 1]);
        assert_eq!(order(7, 3), order(1, 3));
        assert_eq!(order(5, 0), Vec::<usize>::new());
    }

    #[test]
    fn of_two_runs_each_is_first_as_often_as_the_other() {
        for (one, other) in [(0, 1), (0, 4), (2, 3)] {
            let is_first = |round: &usize| {
                let order = order(*round, 5);
                let place = |run| order.iter().position(|at| *at == run);
                place(one) < place(other)
            };
            assert_eq!((1..=10).filter(is_first).count(), 5, "{one} and {other}");
        }
    }
}
