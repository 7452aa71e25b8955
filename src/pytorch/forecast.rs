//! The memory that PyTorch takes for a run, and the largest micro-batch that fits.

use crate::allocator::{CardMemory, OutOfMemory, Usage};
use crate::card::Card;
use crate::coverage::{self, NotCovered};
use crate::peak::{self, LivePeak};
use crate::program::{sequence, shortened_sequence};
use crate::replay::{Peaks, replay};
use crate::rules;
use crate::sequence::{Phase, Purpose, Sequence};
use base::search;
use spec::{AllocConf, RunConfig, TorchOptions, TorchVersion, Train};

/// The largest micro-batch that the search considers.
const LARGEST_BATCH: usize = 1 << 20;

/// The unit of segments and pages: memory between two multiples is never used.
const UNIT: u64 = 2 << 20;

/// A card, with the memory that PyTorch's allocator may request of it and the allocator's settings.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub card: Card,
    pub version: TorchVersion,
    /// Without a limit, memory has no end.
    pub memory: Option<CardMemory>,
    pub options: TorchOptions,
    pub alloc_conf: AllocConf,
}

/// PyTorch's memory of a run on an unlimited card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The peaks of the first step: `torch.cuda.max_memory_allocated()` and `max_memory_reserved()`.
    pub first_step: Usage,
    /// The peaks of all later steps.
    pub later_steps: Usage,
    /// The peaks by phase, of all steps.
    pub phases: Vec<(Phase, Usage)>,
    /// What lives at the peak, by purpose, in requested bytes; and the phase of the peak.
    pub at_peak: [(Purpose, u64); Purpose::ALL.len()],
    pub phase: Phase,
    /// Whether the run fits into the card's memory; `OnlyByRetrying` if cached memory must be returned first.
    pub fit: Fit,
}

impl Forecast {
    /// The peaks of the run: the first step may need more than later ones.
    pub fn peak(&self) -> Usage {
        self.first_step.or_higher(self.later_steps)
    }

    /// The peaks of a phase, if the program has it.
    pub fn phase_peak(&self, phase: Phase) -> Option<Usage> {
        self.phases.iter().find(|(known, _)| *known == phase).map(|(_, usage)| *usage)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Fits,
    OnlyByRetrying,
    Refused(Refusal),
}

/// The first request that the card's memory has no room for, even after all cached memory was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Bytes by which it exceeds the memory.
    pub short: u64,
    /// The training step, from 1; 0 before the first.
    pub step: usize,
    pub phase: Phase,
    pub purpose: Purpose,
}

/// A run's sequence, and its peaks on an unlimited card.
pub struct TorchRun<'a> {
    machine: &'a Machine,
    config: &'a RunConfig,
    sequence: Sequence,
    peaks: Peaks,
}

impl TorchRun<'_> {
    pub fn forecast(&self) -> Forecast {
        let (sequence, peaks) = (&self.sequence, &self.peaks);
        let [first_step, later_steps] = steps(peaks);
        let fit = match self.machine.memory {
            Some(memory) if peaks.whole.reserved > memory.available => {
                match self.machine.replay(sequence, memory) {
                    Ok(_) => Fit::OnlyByRetrying,
                    Err((at, error)) => Fit::Refused(Refusal {
                        short: error.short,
                        step: sequence.step_of(at),
                        phase: sequence.phase_of(at),
                        purpose: sequence.purpose_of(at),
                    }),
                }
            }
            _ => Fit::Fits,
        };
        let (at_peak, phase) = (sequence.live_after(peaks.at), sequence.phase_of(peaks.at));
        Forecast { first_step, later_steps, phases: peaks.phases.clone(), at_peak, phase, fit }
    }

    /// Bytes of managed memory: paged optimizer states. They are part of no peak.
    pub fn managed(&self) -> u64 {
        self.sequence.managed
    }

    /// The requests that live at the peak.
    pub fn live_at_peak(&self) -> LivePeak {
        let at = self.peaks.at;
        let (groups, phase) = (self.sequence.live_groups_after(at), self.sequence.phase_of(at));
        LivePeak { groups, phase, logits: peak::logits(&self.config.of_rank(0)) }
    }

    /// The smallest memory that suffices, if cached memory is returned when needed. With less by one unit, the run fails.
    pub fn smallest_memory(&self) -> u64 {
        let peak = self.peaks.whole;
        let outside = self.machine.memory.map_or(0, |memory| memory.total.saturating_sub(memory.available));
        let suffices = |units: u64| {
            let available = units * UNIT;
            let memory = CardMemory { available, total: available + outside };
            self.machine.replay(&self.sequence, memory).is_ok()
        };
        let (mut fails, mut fits) = (peak.allocated / UNIT, peak.reserved.div_ceil(UNIT));
        if suffices(fails) {
            return fails * UNIT;
        }
        while fails + 1 < fits {
            let probe = fails.midpoint(fits);
            *if suffices(probe) { &mut fits } else { &mut fails } = probe;
        }
        fits * UNIT
    }
}

impl Machine {
    /// Predicts a run.
    ///
    /// # Errors
    /// The run is not covered.
    pub fn run<'a>(&'a self, config: &'a RunConfig) -> Result<TorchRun<'a>, NotCovered> {
        let sequence = self.sequence(config)?;
        let peaks = self.unlimited(&sequence);
        Ok(TorchRun { machine: self, config, sequence, peaks })
    }

    /// Whether a run may be predicted, without predicting it: its operations are not checked.
    pub fn may_cover(&self, config: &RunConfig) -> bool {
        coverage::check(config, &self.card, self.options).is_ok()
    }

    /// The largest micro-batch that fits, for batches that it divides; `None` without a limit, or if some micro-batch that
    /// the search needs is not covered.
    pub fn largest_micro_batch(&self, config: &RunConfig) -> Option<usize> {
        self.largest_covered(config, self.memory?).ok()
    }

    fn largest_covered(&self, config: &RunConfig, memory: CardMemory) -> Result<usize, NotCovered> {
        // With lengths that vary, each sample counts as the longest of the data.
        let config = &config.at_longest();
        let run = |micro_batch: usize| {
            let batch_size = micro_batch * config.strategy.accumulate * config.ranks();
            RunConfig { train: Train { batch_size, ..config.train.clone() }, ..config.clone() }
        };
        let sequence = |micro_batch: usize| {
            rules::of(self.version).check_settings(self.alloc_conf)?;
            shortened_sequence(&run(micro_batch), self.card, self.version, self.options)
        };
        let allocated = |micro_batch| Ok(self.unlimited(&sequence(micro_batch)?).whole.allocated);
        // The peak is nearly linear in the micro-batch.
        let (one, two) = (allocated(1)?, allocated(2)?);
        let guess = 1 + memory.available.saturating_sub(one) / two.saturating_sub(one).max(1);
        let fits = |micro_batch| Ok(self.replay(&sequence(micro_batch)?, memory).is_ok());
        search::largest(LARGEST_BATCH, guess.min(LARGEST_BATCH as u64) as usize, fits)
    }

    /// A run's allocator calls.
    ///
    /// # Errors
    /// The run is not covered.
    pub fn sequence(&self, config: &RunConfig) -> Result<Sequence, NotCovered> {
        rules::of(self.version).check_settings(self.alloc_conf)?;
        sequence(config, self.card, self.version, self.options)
    }

    fn replay(&self, sequence: &Sequence, memory: CardMemory) -> Result<Peaks, (usize, OutOfMemory)> {
        replay(sequence, Some(memory), self.alloc_conf)
    }

    fn unlimited(&self, sequence: &Sequence) -> Peaks {
        let Ok(peaks) = replay(sequence, None, self.alloc_conf) else { unreachable!("there is no limit") };
        peaks
    }
}

/// The peaks of the first step, and of the others.
fn steps(peaks: &Peaks) -> [Usage; 2] {
    let (first, others) = peaks.steps.split_first().expect("a program has steps");
    let later = others.iter().fold(Usage::default(), |peak, step| peak.or_higher(*step));
    [*first, later]
}
