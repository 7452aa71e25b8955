//! A figure in each of the rounds that measured it. Figures of one round can be compared: what drifts has not gone far.

use base::statistics::{self, Ratio};
use results::Row;

/// Positive figures, at most one a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rounds {
    /// In the order of rounds.
    figures: Vec<(Round, f64)>,
    /// How often it was looked at whether these are enough.
    looks: usize,
}

/// The process that measured all runs in turns, and how often it had done so.
type Round = (String, usize);

impl Rounds {
    pub(super) fn of(rows: &[&Row], figure: impl Fn(&Row) -> Option<f64>) -> Rounds {
        let positive = |value: &f64| value.is_finite() && *value > 0.0;
        let in_round = |row: &&Row| {
            let round = (row.sweep.clone(), row.repeat);
            figure(row).filter(positive).map(|value| (round, value))
        };
        let looks = rows.iter().filter_map(|row| row.looks).max().unwrap_or(1);
        let mut figures: Vec<(Round, f64)> = rows.iter().filter_map(in_round).collect();
        figures.sort_by(|(one, _), (other, _)| one.cmp(other));
        Rounds { figures, looks }
    }

    pub(super) fn median(&self) -> Option<f64> {
        let values: Vec<f64> = self.figures.iter().map(|(_, value)| *value).collect();
        statistics::median(&values)
    }

    /// How well it is known by itself: half the width of its interval, over the median.
    pub(super) fn half_width(&self) -> Option<f64> {
        let center = self.median()?;
        let beside: Vec<f64> = self.figures.iter().map(|(_, value)| value / center).collect();
        Ratio::of(&beside, self.looks)?.half_width()
    }

    pub(super) fn len(&self) -> usize {
        self.figures.len()
    }

    /// This over the other, in each round that has both.
    pub(super) fn ratios(&self, other: &Rounds) -> Vec<f64> {
        let beside = |round: &Round| {
            let at = other.figures.partition_point(|(theirs, _)| theirs < round);
            other.figures.get(at).filter(|(theirs, _)| theirs == round)
        };
        self.figures.iter().filter_map(|(round, value)| Some(value / beside(round)?.1)).collect()
    }

    /// How many times the other this is. Where no round has both, their medians say it, and nothing how sure that is.
    pub(super) fn over(&self, other: &Rounds) -> Option<Ratio> {
        Ratio::of(&self.ratios(other), self.looks.max(other.looks))
            .or_else(|| Some(Ratio::unpaired(self.median()? / other.median()?)))
    }
}
