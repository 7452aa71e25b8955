//! PyTorch's memory of the runs of a plan.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use device::{DeviceKind, Pool, Target};
use pytorch::{Card, Forecast, Implementation, Machine, NotCovered};
use spec::{MemoryKey, RunConfig};

/// PyTorch's memory of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchForecast {
    pub memory: Forecast,
    /// The largest micro-batch that fits, 0 if none does; `None` if it was not requested or memory is unlimited.
    pub largest_micro_batch: Option<usize>,
}

/// Forecasts PyTorch's memory on one card.
pub(super) struct TorchForecaster {
    machine: Machine,
    /// By configuration without its batch size.
    largest: BTreeMap<MemoryKey, Option<usize>>,
}

impl TorchForecaster {
    /// `None` if the target is not a known card.
    pub(super) fn of(target: &Target) -> Option<TorchForecaster> {
        let card = Card::named(&target.name).filter(|_| target.kind == DeviceKind::Cuda)?;
        let memory = target.limits(Pool::Device).then(|| target.available_at(Pool::Device));
        let machine = Machine { card, memory, implementation: Implementation::Fused };
        Some(TorchForecaster { machine, largest: BTreeMap::new() })
    }

    pub(super) fn forecast(
        &mut self,
        config: &RunConfig,
        key: &MemoryKey,
        wants_largest_micro_batch: bool,
    ) -> Result<TorchForecast, NotCovered> {
        let memory = self.machine.forecast(config)?;
        let largest_micro_batch = match wants_largest_micro_batch {
            false => None,
            true => {
                let key = MemoryKey { batch_size: config.strategy.accumulate, ..key.clone() };
                match self.largest.entry(key) {
                    Entry::Occupied(entry) => *entry.get(),
                    Entry::Vacant(entry) => *entry.insert(self.machine.largest_micro_batch(config)?),
                }
            }
        };
        Ok(TorchForecast { memory, largest_micro_batch })
    }
}
