//! PyTorch's memory of the runs of a plan.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use device::{DeviceKind, Pool, Target};
use pytorch::{Card, CardMemory, Forecast, Machine, NotCovered, ScriptPrediction};
use spec::{Framework, MemoryKey, PlanKeys, RunConfig};

/// PyTorch's memory of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchForecast {
    pub memory: Forecast,
    /// The largest micro-batch that fits, 0 if none does; `None` if it was not requested or memory is unlimited.
    pub largest_micro_batch: Option<usize>,
    /// The smallest memory that suffices. Only where PyTorch's figures are shown: it takes many replays.
    pub smallest_memory: Option<u64>,
    /// Strategy keys that do not change the script. Only where PyTorch's figures are shown.
    pub no_effect: Vec<String>,
}

/// The card of a target as PyTorch uses it. `None` if the target is not a known card.
pub fn torch_machine(target: &Target, keys: PlanKeys) -> Option<Machine> {
    let card = Card::named(&target.name).filter(|_| target.kind == DeviceKind::Cuda)?;
    let PlanKeys { torch_version: version, torch_options: options, alloc_conf, .. } = keys;
    Some(Machine { card, version, memory: card_memory(target), options, alloc_conf })
}

/// The memory of a target, if it is limited.
fn card_memory(target: &Target) -> Option<CardMemory> {
    let memory = CardMemory { available: target.available_at(Pool::Device), total: target.memory.0 };
    target.limits(Pool::Device).then_some(memory)
}

/// Forecasts PyTorch's memory on one card.
pub(super) struct TorchForecaster {
    machine: Machine,
    target: Target,
    framework: Framework,
    /// By configuration without its batch size.
    largest: BTreeMap<MemoryKey, Option<usize>>,
}

impl TorchForecaster {
    /// `None` if the target is not a known card.
    pub(super) fn of(target: &Target, keys: PlanKeys) -> Option<TorchForecaster> {
        let (machine, target) = (torch_machine(target, keys)?, target.clone());
        Some(TorchForecaster { machine, target, framework: keys.framework, largest: BTreeMap::new() })
    }

    pub(super) fn forecast(
        &mut self,
        config: &RunConfig,
        key: &MemoryKey,
        wants_largest_micro_batch: bool,
    ) -> Result<TorchForecast, NotCovered> {
        let memory = card_memory(&self.target.of_rank(config.ranks()));
        let machine = Machine { memory, ..self.machine };
        let run = machine.run(config)?;
        let largest_micro_batch = match wants_largest_micro_batch {
            false => None,
            true => {
                let key = MemoryKey { batch_size: config.strategy.accumulate, ..key.clone() };
                match self.largest.entry(key) {
                    Entry::Occupied(entry) => *entry.get(),
                    Entry::Vacant(entry) => *entry.insert(machine.largest_micro_batch(config)),
                }
            }
        };
        let smallest_memory = match self.framework {
            Framework::Pytorch if wants_largest_micro_batch => Some(run.smallest_memory()),
            _ => None,
        };
        Ok(TorchForecast {
            memory: run.forecast(),
            largest_micro_batch,
            smallest_memory,
            no_effect: Vec::new(),
        })
    }
}

/// Whether two runs have the same PyTorch script.
pub(super) fn have_same_script(target: &Target, one: &RunConfig, two: &RunConfig) -> bool {
    let script = |config| {
        let machine = torch_machine(target, PlanKeys::default())?;
        pytorch::script(config, machine.card, machine.options, &ScriptPrediction::default()).ok()
    };
    script(one).is_some_and(|script_of_one| script(two) == Some(script_of_one))
}
