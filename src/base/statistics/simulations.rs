//! Simulated sweeps with known speeds on several kinds of machines: the rate of wrong conclusions.

use super::{Difference, FEWEST_ROUNDS, Ratio, looks, median, order};

/// Marsaglia's xorshift64*, for reproducible tests.
struct Random(u64);

impl Random {
    /// In 0..1.
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// The logarithm of a process's relative speed, given the number of processes that ran before it.
type Machine = fn(&mut Random, usize) -> f64;

/// Normal variation of 3 % per process.
const NORMAL: Machine = |random, _| 0.03 * random.normal();
/// 1 % slower with each process, with a recovery every 37 processes.
const DRIFTING: Machine = |random, before| 0.005 * random.normal() - 0.01 * (before % 37) as f64;
/// Three of ten processes are slower by a factor of 1.79.
const TWO_MODES: Machine =
    |random, _| 0.01 * random.normal() - if random.uniform() < 0.3 { 1.79_f64.ln() } else { 0.0 };
/// Cauchy variation, which has no mean: one of ten processes is off by more than 12 %.
const HEAVY_TAILED: Machine =
    |random, _| (0.02 * (std::f64::consts::PI * (random.uniform() - 0.5)).tan()).clamp(-0.6, 0.6);

const MACHINES: [(&str, Machine); 4] =
    [("normal", NORMAL), ("drifting", DRIFTING), ("two modes", TWO_MODES), ("heavy tails", HEAVY_TAILED)];

/// The ratios of the other runs to the first run, for each round. `speeds` are the true speeds.
fn sweep(random: &mut Random, machine: Machine, speeds: &[f64], rounds: usize) -> Vec<Vec<f64>> {
    let mut ratios = vec![Vec::new(); speeds.len() - 1];
    for round in 1..=rounds {
        let mut measured = vec![0.0; speeds.len()];
        for (position, run) in order(round, speeds.len()).into_iter().enumerate() {
            let before = (round - 1) * speeds.len() + position;
            measured[run] = speeds[run] * machine(random, before).exp();
        }
        for (ratios, speed) in ratios.iter_mut().zip(&measured[1..]) {
            ratios.push(speed / measured[0]);
        }
    }
    ratios
}

/// The share of comparisons with the first run for which `holds` is true, over `sweeps` sweeps.
fn share(
    machine: Machine,
    speeds: &[f64],
    rounds: usize,
    sweeps: u64,
    holds: impl Fn(&[f64]) -> bool,
) -> f64 {
    let random = &mut Random(0x9e37_79b9_7f4a_7c15 ^ rounds as u64);
    let mut found = 0;
    for _ in 0..sweeps {
        found += sweep(random, machine, speeds, rounds).iter().filter(|ratios| holds(ratios)).count();
    }
    found as f64 / (sweeps as f64 * (speeds.len() - 1) as f64)
}

fn difference(ratios: &[f64]) -> Difference {
    Ratio::of(ratios, 1).unwrap().difference
}

#[test]
fn equal_runs_differ_in_at_most_five_percent_of_comparisons() {
    for (name, machine) in MACHINES {
        for rounds in 1..=20 {
            let claims = |ratios: &[f64]| matches!(difference(ratios), Difference::Less | Difference::More);
            let wrong = share(machine, &[1.0; 4], rounds, 4000, claims);
            assert!(wrong <= 0.05, "{name}, {rounds} rounds: {wrong}");
            // Also checks that a conclusion is reached once there are enough rounds.
            let unknown = share(machine, &[1.0; 4], rounds, 10, |r| difference(r) == Difference::Unknown);
            assert_eq!(unknown, f64::from(rounds < FEWEST_ROUNDS), "{name}, {rounds} rounds");
        }
    }
}

#[test]
fn ten_rounds_detect_five_percent_difference() {
    // A ratio combines the variation of two processes.
    let paired: Machine = |random, _| 0.03 / std::f64::consts::SQRT_2 * random.normal();
    let found = share(paired, &[1.0, 1.05], 10, 20_000, |ratios| difference(ratios) == Difference::More);
    assert!(found >= 0.9, "{found}");
    let found =
        share(paired, &[1.0, 1.0 / 1.05], 10, 20_000, |ratios| difference(ratios) == Difference::Less);
    assert!(found >= 0.9, "{found}");
}

#[test]
fn interval_coverage_is_as_stated() {
    let different_machines: Machine = |random, before| {
        if before.is_multiple_of(2) { TWO_MODES(random, 0) } else { NORMAL(random, 0) }
    };
    for (name, machine) in [NORMAL, TWO_MODES, HEAVY_TAILED]
        .map(|machine| ("alike", machine))
        .into_iter()
        .chain([("unlike", different_machines)])
    {
        // Two runs in a fixed order, so that the differing one is always the same.
        let random = &mut Random(7);
        let mut ratio = || 1.1 * (machine(random, 1) - machine(random, 0)).exp();
        let all: Vec<f64> = (0..200_001).map(|_| ratio()).collect();
        let median = median(&all).unwrap();
        for rounds in FEWEST_ROUNDS..=20 {
            let holds = |rounds: &[f64]| {
                let interval = Ratio::of(rounds, 1).unwrap().interval.unwrap();
                (interval.low..=interval.high).contains(&median)
            };
            let sample = all.chunks_exact(rounds).take(9000);
            let held = sample.clone().filter(|rounds| holds(rounds)).count() as f64 / sample.count() as f64;
            assert!(held >= 0.945, "{name}, {rounds} rounds: {held}");
        }
    }
}

/// Adds rounds until the interval is narrow enough, at most 20.
fn stopped(ratios: &[f64]) -> Ratio {
    let looks = looks(20);
    let at = |rounds: &usize| Ratio::of(&ratios[..*rounds], looks.len()).unwrap();
    let is_narrow = |ratio: &Ratio| ratio.half_width().is_some_and(|half| half <= 0.02);
    looks.iter().map(at).find(is_narrow).unwrap_or_else(|| at(&20))
}

#[test]
fn early_stopping_keeps_the_error_rate() {
    let claims = |ratios: &[f64]| matches!(stopped(ratios).difference, Difference::Less | Difference::More);
    for (name, machine) in MACHINES {
        let wrong = share(machine, &[1.0; 4], 20, 4000, claims);
        assert!(wrong <= 0.05, "{name}: {wrong}");
        let found = share(machine, &[1.0, 1.1], 20, 1000, claims);
        assert!(name == "two modes" || found > 0.8, "{name}: {found}");
    }
    // The worst case: the interval is narrow only if almost all rounds agree by chance.
    let random = &mut Random(1);
    let mut round =
        || (0.03 + 0.001 * random.normal()).exp().powi(if random.uniform() < 0.5 { 1 } else { -1 });
    let wrong = (0..20_000).filter(|_| claims(&[(); 20].map(|()| round()))).count();
    assert!(wrong <= 1000, "{wrong} of 20000");
}
