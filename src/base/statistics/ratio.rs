//! How many times another quantity is one that was measured beside it, round by round, and whether that can be told
//! from once.

use super::{Interval, median, median_interval, typical_deviation};

/// How sure a statement about one comparison is.
const CONFIDENCE: f64 = 0.95;
/// With fewer rounds than this no interval of ranks is that sure: 2 * 0.5^5 is more than 5 %.
pub const FEWEST_ROUNDS: usize = 6;
/// What fewer rounds than that can tell apart: all of them differ by more than any two modes of a machine do.
pub const BY_FAR: f64 = 2.0;
/// Less than this is no difference that anybody could use, however sure it is.
const NEGLIGIBLE: f64 = 0.005;

/// What the data say of two quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Nothing: there are too few rounds.
    Unknown,
    /// That they show none.
    None,
    Less,
    More,
}

/// The median of the ratios of several rounds. What hits both quantities of a round alike, such as drift, is in neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    /// Holds the median of all rounds there could be, whatever their distribution, in 95 of 100 such intervals. Few rounds
    /// have none.
    pub interval: Option<Interval>,
    pub difference: Difference,
}

impl Ratio {
    /// From one ratio for each round. `looks` counts how often it was looked at whether these are enough: each of the looks
    /// has its share of the chance to be wrong. `None` without rounds.
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

    /// A ratio of quantities that were not measured side by side: nothing is known of how sure it is.
    pub fn unpaired(median: f64) -> Ratio {
        Ratio { median, interval: None, difference: Difference::Unknown }
    }

    /// Half the width of the interval over the median: 0.02 reads as "give or take 2 %".
    pub fn half_width(&self) -> Option<f64> {
        self.interval.map(|interval| interval.half_width() / self.median)
    }
}

/// The numbers of rounds after which it is looked at whether they are enough, where there may be `most`.
pub fn looks(most: usize) -> Vec<usize> {
    const FIRST: usize = 8;
    const STEP: usize = 4;
    (FIRST..most).step_by(STEP).chain([most]).collect()
}

/// How many rounds would tell a difference such as these show, in 9 of 10 cases, by how far the rounds lie apart; one of less than
/// `least` is not looked for. `None` where one round shows no spread, or more than `most` rounds were needed.
pub fn rounds_to_tell(rounds: &[f64], least: f64, most: usize) -> Option<usize> {
    if rounds.len() < 2 {
        return None;
    }
    let logarithms: Vec<f64> = rounds.iter().map(|ratio| ratio.ln()).collect();
    let spread = typical_deviation(&logarithms)?;
    let difference = median(&logarithms)?.abs().max((1.0 + least).ln());
    // The share of rounds that point the other way. The logistic distribution is the normal one to 1 %, with longer tails.
    let contrary = 1.0 / (1.0 + (1.702 * difference / spread).exp());
    (FEWEST_ROUNDS..=most).find(|rounds| chance_to_tell(*rounds, contrary) >= 0.9)
}

/// That of `rounds`, of which each points the other way by chance `contrary`, no more do than an interval leaves out.
fn chance_to_tell(rounds: usize, contrary: f64) -> f64 {
    let values: Vec<f64> = (0..rounds).map(|at| at as f64).collect();
    let Some(interval) = median_interval(&values, CONFIDENCE) else { return 0.0 };
    let left_out = interval.low as usize;
    let mut term = (1.0 - contrary).powi(rounds as i32);
    let mut sum = term;
    for count in 1..=left_out {
        term *= (rounds - count + 1) as f64 / count as f64 * contrary / (1.0 - contrary);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rounds_tell_apart_what_differs_by_far() {
        let difference = |rounds: &[f64]| Ratio::of(rounds, 1).unwrap().difference;
        assert_eq!(difference(&[1.79]), Difference::Unknown);
        assert_eq!(difference(&[2.01]), Difference::More);
        assert_eq!(difference(&[0.49, 0.4, 0.3, 0.2, 0.49]), Difference::Less);
        assert_eq!(difference(&[0.49, 0.51]), Difference::Unknown);
        assert_eq!(Ratio::of(&[], 1), None);
    }

    #[test]
    fn an_interval_that_holds_one_shows_no_difference() {
        let of = |rounds: &[f64]| Ratio::of(rounds, 1).unwrap();
        // All of six have to agree, and nine of ten.
        assert_eq!(of(&[1.1, 1.2, 1.1, 1.3, 1.2, 1.1]).difference, Difference::More);
        assert_eq!(of(&[1.1, 1.2, 1.1, 1.3, 1.2, 0.9]).difference, Difference::None);
        let nine = [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 1.1];
        assert_eq!(of(&nine).difference, Difference::Less);
        assert_eq!(of(&[&nine[1..], &[1.1]].concat()).difference, Difference::None);
        assert_eq!(of(&[1.004; 6]).difference, Difference::None, "sure, and of no use");
        let ratio = of(&[0.9, 1.0, 1.0, 1.0, 1.0, 1.2]);
        assert!((ratio.half_width().unwrap() - 0.15).abs() < 1e-12, "{ratio:?}");
        assert_eq!(of(&[1.0; 5]).half_width(), None);
    }

    #[test]
    fn who_looks_often_has_to_see_more() {
        assert_eq!(looks(20), [8, 12, 16, 20]);
        assert_eq!(looks(10), [8, 10]);
        assert_eq!(looks(8), [8]);
        // Ten rounds with one against nine: 97.9 % sure, which is enough for one look or two, and not for three.
        let rounds = [1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 0.9];
        let after = |looks| Ratio::of(&rounds, looks).unwrap().difference;
        assert_eq!([after(1), after(2), after(3)], [Difference::More, Difference::More, Difference::None]);
    }

    #[test]
    fn the_number_of_rounds_follows_from_their_spread() {
        // With a spread of 3 %, a difference of 5 % shows in 90.8 % of ten rounds.
        let spread = |by: f64| [1.05 * (-by).exp(), 1.05, 1.05 * by.exp()];
        assert!((chance_to_tell(10, 0.0519) - 0.908).abs() < 1e-3, "{}", chance_to_tell(10, 0.0519));
        let of = |deviation: f64| rounds_to_tell(&spread(deviation * 0.674_5), 0.02, 40);
        assert_eq!([of(0.01), of(0.02), of(0.03), of(0.1)], [Some(6), Some(6), Some(9), None]);
        assert_eq!(rounds_to_tell(&[1.3], 0.02, 40), None);
        assert_eq!(rounds_to_tell(&[1.0, 1.0, 1.0], 0.02, 40), Some(6));
    }
}
