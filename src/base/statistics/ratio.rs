//! Ratios of paired measurements, one per round, and whether they differ significantly from 1.

use super::{Interval, median, median_interval, typical_deviation};

/// The confidence level of one comparison.
const CONFIDENCE: f64 = 0.95;
/// With fewer rounds no rank interval reaches the confidence level: 2 * 0.5^5 is more than 5 %.
pub const FEWEST_ROUNDS: usize = 6;
/// With fewer rounds, a difference is reported only if all ratios exceed this factor, which is larger than the ratio
/// between any two speed modes of a machine.
pub const BY_FAR: f64 = 2.0;
/// Smaller differences are not reported, even if significant.
const NEGLIGIBLE: f64 = 0.005;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Too few rounds.
    Unknown,
    /// No significant difference.
    None,
    Less,
    More,
}

/// The median ratio over several rounds. Effects that hit both quantities of a round alike, such as drift, cancel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    /// The 95 % confidence interval of the median ratio, for any distribution. `None` with too few rounds.
    pub interval: Option<Interval>,
    pub difference: Difference,
}

impl Ratio {
    /// From one ratio per round. `looks` is the number of interim analyses of the stopping rule; the error probability
    /// is divided among them (Bonferroni). `None` without rounds.
    pub fn of(rounds: &[f64], looks: usize) -> Option<Ratio> {
        let confidence = 1.0 - (1.0 - CONFIDENCE) / looks.max(1) as f64;
        let median = median(rounds)?;
        let interval = median_interval(rounds, confidence).filter(|interval| interval.coverage >= confidence);
        let all = |beyond: fn(f64) -> bool| rounds.iter().all(|ratio| beyond(*ratio));
        let difference = match interval {
            None if all(|ratio| ratio < 1.0 / BY_FAR) => Difference::Less,
            None if all(|ratio| ratio > BY_FAR) => Difference::More,
            None => Difference::Unknown,
            Some(interval) if interval.high < 1.0 && median < 1.0 - NEGLIGIBLE => Difference::Less,
            Some(interval) if interval.low > 1.0 && median > 1.0 + NEGLIGIBLE => Difference::More,
            Some(_) => Difference::None,
        };
        Some(Ratio { median, interval, difference })
    }

    /// A ratio of unpaired measurements, without an interval.
    pub fn unpaired(median: f64) -> Ratio {
        Ratio { median, interval: None, difference: Difference::Unknown }
    }

    /// The relative half-width of the interval: 0.02 reads as +-2 %.
    pub fn half_width(&self) -> Option<f64> {
        self.interval.map(|interval| interval.half_width() / self.median)
    }
}

/// The numbers of rounds after which the stopping rule is evaluated, for at most `most` rounds.
pub fn looks(most: usize) -> Vec<usize> {
    const FIRST: usize = 8;
    const STEP: usize = 4;
    (FIRST..most).step_by(STEP).chain([most]).collect()
}

/// The number of rounds that detects the observed difference, or `least` if that is larger, with 90 % power, given the
/// observed spread. `None` for a single round, or if more than `most` rounds are needed.
pub fn rounds_to_tell(rounds: &[f64], least: f64, most: usize) -> Option<usize> {
    if rounds.len() < 2 {
        return None;
    }
    let logarithms: Vec<f64> = rounds.iter().map(|ratio| ratio.ln()).collect();
    let spread = typical_deviation(&logarithms)?;
    let difference = median(&logarithms)?.abs().max((1.0 + least).ln());
    // The probability that a round points the other way. The logistic distribution approximates the normal one to 1 %,
    // with longer tails.
    let contrary = 1.0 / (1.0 + (1.702 * difference / spread).exp());
    (FEWEST_ROUNDS..=most).find(|rounds| power(*rounds, contrary) >= 0.9)
}

/// The probability that, of `rounds` rounds that each point the other way with probability `contrary`, no more do so
/// than the interval excludes.
fn power(rounds: usize, contrary: f64) -> f64 {
    let values: Vec<f64> = (0..rounds).map(|at| at as f64).collect();
    let Some(interval) = median_interval(&values, CONFIDENCE) else { return 0.0 };
    let excluded = interval.low as usize;
    let mut term = (1.0 - contrary).powi(rounds as i32);
    let mut sum = term;
    for count in 1..=excluded {
        term *= (rounds - count + 1) as f64 / count as f64 * contrary / (1.0 - contrary);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rounds_detect_only_large_differences() {
        let difference = |rounds: &[f64]| Ratio::of(rounds, 1).unwrap().difference;
        assert_eq!(difference(&[1.79]), Difference::Unknown);
        assert_eq!(difference(&[2.01]), Difference::More);
        assert_eq!(difference(&[0.49, 0.4, 0.3, 0.2, 0.49]), Difference::Less);
        assert_eq!(difference(&[0.49, 0.51]), Difference::Unknown);
        assert_eq!(Ratio::of(&[], 1), None);
    }

    #[test]
    fn interval_containing_one_shows_no_difference() {
        let ratio_of = |rounds: &[f64]| Ratio::of(rounds, 1).unwrap();
        // All six rounds must agree, or nine of ten.
        assert_eq!(ratio_of(&[1.1, 1.2, 1.1, 1.3, 1.2, 1.1]).difference, Difference::More);
        assert_eq!(ratio_of(&[1.1, 1.2, 1.1, 1.3, 1.2, 0.9]).difference, Difference::None);
        let nine = [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 1.1];
        assert_eq!(ratio_of(&nine).difference, Difference::Less);
        assert_eq!(ratio_of(&[&nine[1..], &[1.1]].concat()).difference, Difference::None);
        assert_eq!(ratio_of(&[1.004; 6]).difference, Difference::None, "significant but negligible");
        let ratio = ratio_of(&[0.9, 1.0, 1.0, 1.0, 1.0, 1.2]);
        assert!((ratio.half_width().unwrap() - 0.15).abs() < 1e-12, "{ratio:?}");
        assert_eq!(ratio_of(&[1.0; 5]).half_width(), None);
    }

    #[test]
    fn more_looks_require_stronger_evidence() {
        assert_eq!(looks(20), [8, 12, 16, 20]);
        assert_eq!(looks(10), [8, 10]);
        assert_eq!(looks(8), [8]);
        // Ten rounds, nine against one: 97.9 % confidence, which suffices for one or two looks, but not for three.
        let rounds = [1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 0.9];
        let after = |looks| Ratio::of(&rounds, looks).unwrap().difference;
        assert_eq!([after(1), after(2), after(3)], [Difference::More, Difference::More, Difference::None]);
    }

    #[test]
    fn required_rounds_follow_from_the_spread() {
        // With a spread of 3 %, ten rounds detect a difference of 5 % with probability 90.8 %.
        let spread = |by: f64| [1.05 * (-by).exp(), 1.05, 1.05 * by.exp()];
        assert!((power(10, 0.0519) - 0.908).abs() < 1e-3, "{}", power(10, 0.0519));
        let required = |deviation: f64| rounds_to_tell(&spread(deviation * 0.674_5), 0.02, 40);
        assert_eq!(
            [required(0.01), required(0.02), required(0.03), required(0.1)],
            [Some(6), Some(6), Some(9), None]
        );
        assert_eq!(rounds_to_tell(&[1.3], 0.02, 40), None);
        assert_eq!(rounds_to_tell(&[1.0, 1.0, 1.0], 0.02, 40), Some(6));
    }
}
