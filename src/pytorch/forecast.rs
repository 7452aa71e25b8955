//! The memory that PyTorch takes for a run, and the largest micro-batch that fits.

use crate::allocator::Usage;
use crate::card::Card;
use crate::coverage::NotCovered;
use crate::optimizer::Implementation;
use crate::program::sequence;
use crate::replay::{Peaks, replay};
use crate::sequence::{Phase, Purpose};
use base::search;
use spec::{RunConfig, Train};

/// The largest micro-batch that the search considers.
const LARGEST_BATCH: usize = 1 << 20;

/// A card, with the memory that PyTorch's allocator may request of it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub card: Card,
    pub memory: Option<u64>,
    pub implementation: Implementation,
}

/// PyTorch's memory of a run on an unlimited card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The peaks of the first step: `torch.cuda.max_memory_allocated()` and `max_memory_reserved()`.
    pub first_step: Usage,
    /// The peaks of all later steps.
    pub later_steps: Usage,
    /// What lives at the peak, by purpose, in requested bytes; and the phase of the peak.
    pub at_peak: [(Purpose, u64); Purpose::ALL.len()],
    pub phase: Phase,
    /// Whether the run fits into the card's memory; `OnlyByRetrying` if cached memory must be returned first.
    pub fit: Fit,
}

impl Forecast {
    /// The peaks of the run: the first step may need more than later ones.
    pub fn peak(&self) -> Usage {
        Usage {
            allocated: self.first_step.allocated.max(self.later_steps.allocated),
            reserved: self.first_step.reserved.max(self.later_steps.reserved),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Fits,
    OnlyByRetrying,
    /// Bytes by which the first refused request exceeds the memory.
    Short(u64),
}

impl Machine {
    /// Predicts a run.
    ///
    /// # Errors
    /// The run is not covered.
    pub fn forecast(&self, config: &RunConfig) -> Result<Forecast, NotCovered> {
        let sequence = sequence(config, self.card, self.implementation)?;
        let Ok(peaks) = replay(&sequence, None) else { unreachable!("there is no limit") };
        let [first_step, later_steps] = steps(&peaks);
        let fit = match self.memory {
            Some(memory) if peaks.whole.reserved > memory => match replay(&sequence, Some(memory)) {
                Ok(_) => Fit::OnlyByRetrying,
                Err((_, error)) => Fit::Short(error.short),
            },
            _ => Fit::Fits,
        };
        let (at_peak, phase) = (sequence.live_after(peaks.at), sequence.phase_of(peaks.at));
        Ok(Forecast { first_step, later_steps, at_peak, phase, fit })
    }

    /// The largest micro-batch that fits, for batches that it divides.
    ///
    /// # Errors
    /// The run is not covered.
    pub fn largest_micro_batch(&self, config: &RunConfig) -> Result<Option<usize>, NotCovered> {
        let Some(memory) = self.memory else { return Ok(None) };
        let run = |micro_batch: usize| {
            let batch_size = micro_batch * config.strategy.accumulate;
            RunConfig { train: Train { batch_size, ..config.train.clone() }, ..config.clone() }
        };
        let allocated = |micro_batch| {
            let sequence = sequence(&run(micro_batch), self.card, self.implementation)?;
            Ok(replay(&sequence, None).map_or(u64::MAX, |peaks| peaks.whole.allocated))
        };
        // The peak is nearly linear in the micro-batch.
        let (one, two) = (allocated(1)?, allocated(2)?);
        let guess = 1 + memory.saturating_sub(one) / two.saturating_sub(one).max(1);
        let fits = |micro_batch| {
            let sequence = sequence(&run(micro_batch), self.card, self.implementation)?;
            Ok(replay(&sequence, Some(memory)).is_ok())
        };
        search::largest(LARGEST_BATCH, guess.min(LARGEST_BATCH as u64) as usize, fits).map(Some)
    }
}

/// The peaks of the first step, and of the others.
fn steps(peaks: &Peaks) -> [Usage; 2] {
    let (first, others) = peaks.steps.split_first().expect("a program has steps");
    let steady = others.iter().fold(Usage::default(), |peak, step| Usage {
        allocated: peak.allocated.max(step.allocated),
        reserved: peak.reserved.max(step.reserved),
    });
    [*first, steady]
}
