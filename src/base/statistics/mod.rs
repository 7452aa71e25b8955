//! Medians, quantiles, confidence intervals, and comparison of quantities measured in alternating rounds. No
//! distribution is assumed: step times have a long right tail, and processes run at one of several speeds.

mod ratio;
mod rounds;
#[cfg(test)]
mod simulations;

pub use ratio::{BY_FAR, Difference, FEWEST_ROUNDS, Ratio, looks, rounds_to_tell};
pub use rounds::order;

/// A confidence interval of the population median, with its coverage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// The probability that the interval contains the median, for any distribution. With too few values for the
    /// requested confidence, the interval is their whole range and the coverage is lower.
    pub coverage: f64,
}

impl Interval {
    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// The quantile `q` in 0..=1, by linear interpolation between the two closest ranks: `q` = 0 is the smallest
/// value, 1 the largest, and value `i` of `n` in order (from 0) is the quantile `i / (n - 1)`. This is the
/// default of NumPy and R (type 7 of Hyndman and Fan 1996). `None` without values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let sorted = sorted(values);
    let last = sorted.len().checked_sub(1)?;
    let rank = q.clamp(0.0, 1.0) * last as f64;
    let (below, fraction) = (rank.floor() as usize, rank.fract());
    let above = (below + 1).min(last);
    // Not `a + (b - a) * f`: that may miss `b` by rounding, and is NaN between equal infinities.
    if fraction == 0.0 || sorted[below] == sorted[above] {
        return Some(sorted[below]);
    }
    Some(sorted[below] * (1.0 - fraction) + sorted[above] * fraction)
}

/// The middle value, or the mean of the two middle ones. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// A confidence interval of the median from the ranks alone: the number of values below the median is
/// binomial with p = 1/2, so the `k`-th smallest and the `k`-th largest value enclose the median with
/// probability 1 - 2 P(B < k). The interval is the narrowest such pair that reaches `confidence`, which takes six values
/// for 0.95. `None` without values.
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let sorted = sorted(values);
    let n = sorted.len();
    if n == 0 {
        return None;
    }
    // P(B = 0) of large n is too small for a float; its logarithm is not.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut outside = log_term.exp();
    let mut cut = 0; // values excluded at each end
    let mut coverage = 1.0 - 2.0 * outside;
    while 2 * (cut + 1) < n {
        log_term += ((n - cut) as f64 / (cut + 1) as f64).ln();
        outside += log_term.exp();
        if 1.0 - 2.0 * outside < confidence {
            break;
        }
        cut += 1;
        coverage = 1.0 - 2.0 * outside;
    }
    Some(Interval { low: sorted[cut], high: sorted[n - 1 - cut], coverage })
}

/// The indices of outliers: modified z-score above 3.5 (Iglewicz and Hoaglin 1993), based on the median absolute
/// deviation. If that is zero because more than half of the values are equal, the mean absolute deviation is used.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    const THRESHOLD: f64 = 3.5;
    let Some((center, scale)) = median(values).zip(typical_deviation(values)) else { return Vec::new() };
    (0..values.len()).filter(|at| (values[*at] - center).abs() > THRESHOLD * scale).collect()
}

/// A robust scale estimate: the standard deviation for normally distributed values, insensitive to outliers. `None`
/// without values.
fn typical_deviation(values: &[f64]) -> Option<f64> {
    let center = median(values)?;
    let deviations: Vec<f64> = values.iter().map(|value| (value - center).abs()).collect();
    let typical = median(&deviations)?;
    let mean = deviations.iter().sum::<f64>() / deviations.len() as f64;
    Some(if typical > 0.0 { typical / 0.674_5 } else { mean * 1.253_314 })
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_ranks() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.5), Some(2.5));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        // rank 0.9 * 3 = 2.7
        assert!((quantile(&values, 0.9).unwrap() - 3.7).abs() < 1e-12);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[5.0, 1.0, 9.0]), Some(5.0));
        assert_eq!(median(&[7.0]), Some(7.0));
    }

    #[test]
    fn median_intervals_match_published_tables() {
        // Published tables (Conover, Practical Nonparametric Statistics): n = 10 takes the 2nd and 9th value
        // (97.9 %), n = 20 the 6th and 15th (95.9 %), n = 50 the 18th and 33rd (96.7 %).
        for (n, low, coverage) in
            [(6, 1, 0.969), (9, 2, 0.961), (10, 2, 0.979), (20, 6, 0.959), (50, 18, 0.967)]
        {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let interval = median_interval(&values, 0.95).unwrap();
            assert_eq!((interval.low, interval.high), (f64::from(low), f64::from(n + 1 - low)), "n = {n}");
            assert!((interval.coverage - coverage).abs() < 5e-4, "n = {n}: {}", interval.coverage);
        }
    }

    #[test]
    fn few_values_give_their_range_with_lower_coverage() {
        let interval = median_interval(&[3.0, 1.0, 2.0, 5.0, 4.0], 0.95).unwrap();
        assert_eq!((interval.low, interval.high, interval.coverage), (1.0, 5.0, 0.9375));
        assert_eq!(median_interval(&[2.0], 0.95).unwrap().half_width(), 0.0);
        assert_eq!(median_interval(&[], 0.95), None);
    }

    #[test]
    fn intervals_of_many_values_match_the_normal_approximation() {
        let values: Vec<f64> = (0..10_000).map(f64::from).collect();
        let interval = median_interval(&values, 0.95).unwrap();
        // 1.96 * sqrt(n) / 2 = 98 ranks on each side
        assert!((interval.half_width() - 98.0).abs() <= 2.0, "{interval:?}");
        assert!(interval.coverage >= 0.95);
    }

    #[test]
    fn outliers_are_far_from_the_rest() {
        // median 10, deviations 0 1 1 0 2 90, their median 1: z of 100 is 0.6745 * 90
        assert_eq!(outliers(&[10.0, 9.0, 11.0, 10.0, 12.0, 100.0]), [5]);
        assert_eq!(outliers(&[1.0, 2.0, 3.0, 4.0]), Vec::<usize>::new());
        assert_eq!(outliers(&[5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 9.0]), [9]);
        assert_eq!(outliers(&[5.0, 5.0, 5.0]), Vec::<usize>::new());
        assert_eq!(outliers(&[]), Vec::<usize>::new());
    }
}
