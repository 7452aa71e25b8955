//! Measurements by round. Values of the same round are compared, since drift within a round is small.

use base::statistics::{self, Ratio};
use results::Row;

/// Positive values, at most one per round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rounds {
    /// Sorted by round.
    figures: Vec<(Round, f64)>,
    /// Number of interim tests for a sufficient number of repeats; each widens the confidence interval.
    looks: usize,
}

/// Id of the sweep that interleaved all runs, and number of the repeat.
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

    /// Half-width of the median's confidence interval, over the median.
    pub(super) fn half_width(&self) -> Option<f64> {
        let center = self.median()?;
        let relative: Vec<f64> = self.figures.iter().map(|(_, value)| value / center).collect();
        Ratio::of(&relative, self.looks)?.half_width()
    }

    pub(super) fn len(&self) -> usize {
        self.figures.len()
    }

    /// The highest number of a repeat.
    pub(super) fn last_repeat(&self) -> usize {
        self.figures.iter().map(|((_, repeat), _)| *repeat).max().unwrap_or(0)
    }

    /// Whether both have values of the same rounds, so that their ratios to a third are of equal confidence.
    pub(super) fn has_same_rounds(&self, other: &Rounds) -> bool {
        let (own, theirs) = (self.figures.iter(), other.figures.iter());
        self.looks == other.looks && own.map(|(round, _)| round).eq(theirs.map(|(round, _)| round))
    }

    /// The values of both in each round that has both.
    fn paired<'a>(&'a self, other: &'a Rounds) -> impl Iterator<Item = (&'a Round, f64, f64)> {
        let same_round = |round: &Round| {
            let at = other.figures.partition_point(|(theirs, _)| theirs < round);
            other.figures.get(at).filter(|(theirs, _)| theirs == round)
        };
        self.figures.iter().filter_map(move |(round, value)| Some((round, *value, same_round(round)?.1)))
    }

    /// The ratios to `other`, one per round that has both.
    pub(super) fn ratios(&self, other: &Rounds) -> Vec<f64> {
        self.paired(other).map(|(_, own, other)| own / other).collect()
    }

    /// The products with `other`, one per round that has both.
    pub(super) fn products(&self, other: &Rounds) -> Rounds {
        let figures = self.paired(other).map(|(round, own, other)| (round.clone(), own * other)).collect();
        Rounds { figures, looks: self.looks.max(other.looks) }
    }

    /// The ratio to `other` by paired rounds. Without a common round: the ratio of the medians, of unknown confidence.
    pub(super) fn over(&self, other: &Rounds) -> Option<Ratio> {
        Ratio::of(&self.ratios(other), self.looks.max(other.looks))
            .or_else(|| Some(Ratio::unpaired(self.median()? / other.median()?)))
    }
}
