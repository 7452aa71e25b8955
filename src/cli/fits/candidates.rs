//! The combinations of remedies on one target, and the best of them.

use std::cmp::Ordering;

use ::plan::{Combination, DeviceRates, Plan, PlannedRun, sufficient_memory, torch_machine};
use base::parallel;
use pytorch::Fit;
use spec::RunConfig;

/// Whose memory decides what fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    Runner,
    Pytorch,
}

/// The memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// Peak of live bytes (PyTorch: allocated bytes).
    pub(super) peak: u64,
    /// Whether the run fits, with its own micro-batch.
    pub(super) fits: bool,
    /// The largest micro-batch that fits; `None` without a memory limit, or if it is not predicted.
    pub(super) largest: Option<usize>,
}

impl Need {
    /// Whether the run fits with some micro-batch: accumulation allows any batch.
    pub(super) fn trains(&self) -> bool {
        self.largest.map_or(self.fits, |largest| largest > 0)
    }
}

/// A combination with its predictions.
pub(super) struct Candidate<'a> {
    pub(super) combination: &'a Combination,
    pub(super) run: &'a PlannedRun,
    pub(super) config: &'a RunConfig,
    pub(super) ours: Need,
    /// PyTorch's memory, or the reason why it is not predicted. `None` if the target is not a known card.
    pub(super) torch: Option<Result<Need, &'a str>>,
    /// Estimated tokens per second with the largest micro-batch, if any fits.
    pub(super) speed: Option<f64>,
}

impl Candidate<'_> {
    /// PyTorch's memory, if it is predicted.
    pub(super) fn torch_need(&self) -> Option<Need> {
        self.torch.as_ref()?.as_ref().ok().copied()
    }

    /// The memory that decides.
    pub(super) fn need(&self, decider: Decider) -> Option<Need> {
        match decider {
            Decider::Runner => Some(self.ours),
            Decider::Pytorch => self.torch_need(),
        }
    }
}

/// All combinations on one target.
pub(super) struct Candidates<'a> {
    pub(super) plan: &'a Plan,
    pub(super) decider: Decider,
    pub(super) all: Vec<Candidate<'a>>,
    /// Combinations that are no valid run, with the reasons.
    pub(super) invalid: Vec<(&'a Combination, &'a str)>,
}

/// The best candidate of some.
pub(super) struct Best<'c, 'a> {
    /// The fastest that fits, or else the one with the lowest peak.
    pub(super) candidate: &'c Candidate<'a>,
    pub(super) fits: bool,
}

/// Ratios of speeds and of peaks above this do not decide: the simpler combination is better.
const SAME: f64 = 0.97;

impl<'a> Candidates<'a> {
    pub(super) fn of(
        plan: &'a Plan,
        combinations: &'a [Combination],
        rates: &DeviceRates,
        decider: Decider,
    ) -> Candidates<'a> {
        let mut invalid = Vec::new();
        let mut valid = Vec::new();
        for (combination, run) in combinations.iter().zip(&plan.runs) {
            match (&run.config, &run.prediction) {
                (Ok(config), Some(prediction)) => valid.push((combination, run, config, prediction)),
                (Ok(_), None) => {}
                (Err(reason), _) => invalid.push((combination, reason.as_str())),
            }
        }
        let all = parallel::map(valid, |(combination, run, config, prediction)| {
            let ours = Need {
                peak: prediction.device.steady_peak().live.total(),
                fits: prediction.out_of_memory.is_none(),
                largest: run.fits_micro_batch.filter(|_| plan.target.memory.0 < u64::MAX),
            };
            let torch = run.torch.as_ref().map(|torch| match torch {
                Ok(torch) => Ok(Need {
                    peak: torch.memory.peak().allocated,
                    fits: !matches!(torch.memory.fit, Fit::Refused(_)),
                    largest: torch.largest_micro_batch,
                }),
                Err(reason) => Err(reason.as_str()),
            });
            let candidate = Candidate { combination, run, config, ours, torch, speed: None };
            let largest =
                candidate.need(decider).and_then(|need| need.largest).filter(|largest| *largest > 0);
            // PyTorch's paged states move to the card for the update, here they stay on the host.
            let is_alike = decider == Decider::Runner || !config.strategy.offload.optimizer;
            let speed = largest
                .filter(|_| is_alike)
                .and_then(|largest| rates.tokens_per_s(config, largest, &plan.target));
            Candidate { speed, ..candidate }
        });
        Candidates { plan, decider, all, invalid }
    }

    /// Each remedy by itself.
    pub(super) fn alone(&self) -> impl Iterator<Item = &Candidate<'a>> {
        self.all.iter().filter(|candidate| candidate.combination.is_alone())
    }

    /// The combinations of several remedies that are best for each training: the fastest that fits, and the one with the
    /// lowest peak.
    pub(super) fn best(&self) -> Vec<&Candidate<'a>> {
        let mut best: Vec<&Candidate<'a>> = Vec::new();
        for training in self.alone().filter(|one| one.combination.choices.len() == 1) {
            let training = training.combination.training();
            let of = self.all.iter().filter(|candidate| candidate.combination.training() == training);
            let peak = |one: &Candidate<'a>| one.need(self.decider).map_or(0, |need| need.peak) as f64;
            let fastest = self.best_of(of.clone()).map(|best| best.candidate);
            let is_smaller = |smallest: &&Candidate<'a>| {
                fastest.is_none_or(|fastest| peak(smallest) < SAME * peak(fastest))
            };
            for candidate in fastest.into_iter().chain(self.smallest(of).filter(is_smaller)) {
                let is_known = best.iter().any(|known| known.combination == candidate.combination);
                if !is_known && !candidate.combination.is_alone() {
                    best.push(candidate);
                }
            }
        }
        best
    }

    /// The best combination of each training.
    pub(super) fn best_of_each_training(&self) -> impl Iterator<Item = &Candidate<'a>> {
        let trainings = self.alone().filter(|one| one.combination.choices.len() == 1);
        trainings.filter_map(|one| {
            let training = one.combination.training();
            let of = self.all.iter().filter(move |candidate| candidate.combination.training() == training);
            self.best_of(of).map(|best| best.candidate)
        })
    }

    /// The simplest candidate whose peak is, nearly, the lowest.
    fn smallest<'c>(&self, of: impl Iterator<Item = &'c Candidate<'a>> + Clone) -> Option<&'c Candidate<'a>>
    where
        'a: 'c,
    {
        let peak = |one: &&Candidate<'a>| one.need(self.decider).map(|need| need.peak);
        let lowest = of.clone().filter_map(|one| peak(&one)).min()?;
        let nearly = |one: &&Candidate<'a>| peak(one).is_some_and(|peak| peak as f64 * SAME <= lowest as f64);
        of.filter(nearly).min_by_key(|one| (one.combination.choices.len(), peak(one)))
    }

    /// The simplest of the fastest candidates that fit with some micro-batch; else the one with the lowest peak. `None` if none
    /// is predicted.
    pub(super) fn best_of<'c>(
        &self,
        of: impl Iterator<Item = &'c Candidate<'a>> + Clone,
    ) -> Option<Best<'c, 'a>>
    where
        'a: 'c,
    {
        let fits =
            |candidate: &&Candidate<'a>| candidate.need(self.decider).is_some_and(|need| need.trains());
        let fastest = of.clone().filter(fits).filter_map(|one| one.speed).max_by(f64::total_cmp);
        let nearly = |one: &&Candidate<'a>| one.speed >= fastest.map(|fastest| SAME * fastest);
        let simplest = |one: &&Candidate<'a>, other: &&Candidate<'a>| {
            let by_choices = one.combination.choices.len().cmp(&other.combination.choices.len());
            by_choices.then_with(|| other.speed.partial_cmp(&one.speed).unwrap_or(Ordering::Equal))
        };
        if let Some(candidate) = of.clone().filter(fits).filter(nearly).min_by(simplest) {
            return Some(Best { candidate, fits: true });
        }
        self.smallest(of).map(|candidate| Best { candidate, fits: false })
    }

    /// The smallest memory with which a candidate fits, the device's context included.
    pub(super) fn sufficient_memory(&self, candidate: &Candidate<'a>) -> Option<u64> {
        let machine = match self.decider {
            Decider::Runner => None,
            Decider::Pytorch => Some(torch_machine(&self.plan.target, self.plan.keys)?),
        };
        sufficient_memory(candidate.config, &self.plan.target, machine).ok()?
    }

    /// The combinations in the tables.
    pub(super) fn shown(&self) -> impl Iterator<Item = &'a Combination> {
        let alone = self.alone().map(|candidate| candidate.combination);
        let best = self.best().into_iter().map(|candidate| candidate.combination);
        alone.chain(best)
    }
}
