//! Forecasts the memory of many configurations: each is predicted once, and those of one structure share a compilation.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::fits::{self, LargestMicroBatch};
use super::torch::{TorchForecast, TorchForecaster};
use super::{Compiler, ParetoFronts};
use base::parallel;
use compile::{RecomputePlan, Violation};
use device::Target;
use graph::Graphs;
use memory::{Prediction, RunSchedule, predict};
use pytorch::NotCovered;
use spec::{MemoryKey, PlanKeys, ProgramKey, Recompute, RunConfig};

/// Configurations that one thread predicts in a row: many, since each chunk begins with a compilation, but few enough
/// to keep all threads busy.
const CHUNK: usize = 128;

/// A request for a forecast.
pub(super) struct ForecastRequest<'a> {
    pub(super) config: &'a RunConfig,
    /// Whether to search for the largest micro-batch that fits.
    pub(super) wants_largest_micro_batch: bool,
    /// The strategy's name, for errors.
    pub(super) strategy: &'a str,
}

/// The predicted memory of a configuration.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    pub(super) prediction: Prediction,
    /// The largest micro-batch that fits; `None` if it was not requested or is unknown.
    pub(super) largest: Option<LargestMicroBatch>,
    /// PyTorch's memory, or why it is not predicted; `None` if the target is not a known card.
    pub(super) torch: Option<Result<TorchForecast, NotCovered>>,
    structure: Structure,
}

impl Forecast {
    pub(super) fn recompute_plan(&self) -> &RecomputePlan {
        &self.structure.recompute_plan
    }
}

/// The structure of a program: equal for configurations whose graphs and code differ only in sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Structure {
    graph: usize,
    /// The group of the configuration.
    group: usize,
    /// Slices of each loss.
    slices: Vec<usize>,
    /// Whether each offloadable value is large enough to be offloaded.
    is_offloaded: Vec<bool>,
    recompute_plan: RecomputePlan,
}

/// The requested forecasts.
pub(super) struct Forecasts<'a> {
    target: &'a Target,
    forecasts: BTreeMap<MemoryKey, Forecast>,
    pareto_fronts: Arc<ParetoFronts>,
    /// By the structures of two configurations: whether their programs are equal.
    equal_programs: Mutex<HashMap<[Structure; 2], bool>>,
}

impl<'a> Forecasts<'a> {
    /// Computes all forecasts. Fails with the strategy whose program violates an invariant.
    pub(super) fn new<'q>(
        requests: impl IntoIterator<Item = ForecastRequest<'q>>,
        target: &'a Target,
        plan_keys: PlanKeys,
        pareto_fronts: Arc<ParetoFronts>,
    ) -> Result<Forecasts<'a>, (String, Violation)> {
        let mut distinct: BTreeMap<MemoryKey, ForecastRequest<'q>> = BTreeMap::new();
        for request in requests {
            match distinct.entry(request.config.memory_key()) {
                Entry::Occupied(entry) => {
                    entry.into_mut().wants_largest_micro_batch |= request.wants_largest_micro_batch
                }
                Entry::Vacant(entry) => drop(entry.insert(request)),
            }
        }
        // In the order of memory keys: configurations of one model stay together, and those that differ only in batch
        // size, which have the same largest micro-batch. A smaller last micro-batch has a section of its own.
        let mut groups: BTreeMap<(ProgramKey, bool), Vec<(MemoryKey, ForecastRequest<'q>)>> = BTreeMap::new();
        for (key, request) in distinct {
            let group = (key.program.clone(), request.config.of_rank(0).tail().is_some());
            groups.entry(group).or_default().push((key, request));
        }
        let mut chunks = Vec::new();
        for (group, requests) in groups.into_values().enumerate() {
            let mut requests = requests.into_iter().peekable();
            while requests.peek().is_some() {
                chunks.push((group, requests.by_ref().take(CHUNK).collect::<Vec<_>>()));
            }
        }
        let structures = Structures::default();
        let compiler = || Compiler::sharing(target, Arc::clone(&pareto_fronts));
        // Before the chunks, many of which need the same Pareto fronts: each search uses all threads.
        for (_, ForecastRequest { config, strategy, .. }) in chunks.iter().flat_map(|(_, requests)| requests)
        {
            if let Recompute::Budget(_) = config.strategy.recompute {
                compiler().pareto_front(config).map_err(|violation| ((*strategy).to_owned(), violation))?;
            }
        }
        let forecasts = parallel::map(chunks, |chunk| {
            predict_chunk(chunk, compiler(), TorchForecaster::of(target, plan_keys), target, &structures)
        });
        let forecasts = forecasts.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        Ok(Forecasts { target, forecasts, pareto_fronts, equal_programs: Mutex::default() })
    }

    /// The forecast of a configuration. Panics if it was not requested.
    pub(super) fn of(&self, config: &RunConfig) -> &Forecast {
        &self.forecasts[&config.memory_key()]
    }

    /// Whether two requested configurations compile to the same program with the same ledger. Cache emptying that
    /// returns nothing is ignored.
    pub(super) fn compile_equally(&self, config: &RunConfig, other: &RunConfig) -> Result<bool, Violation> {
        if config.of_rank(0).micro_batches() != other.of_rank(0).micro_batches()
            || self.of(config).prediction != self.of(other).prediction
        {
            return Ok(false);
        }
        let structures = [config, other].map(|config| self.of(config).structure.clone());
        let cached =
            self.equal_programs.lock().unwrap_or_else(PoisonError::into_inner).get(&structures).copied();
        if let Some(are_equal) = cached {
            return Ok(are_equal);
        }
        // Values declare their shapes at any size: programs with equal slices that are equal at one size are equal at
        // all.
        let mut compilers = [(); 2].map(|()| Compiler::sharing(self.target, Arc::clone(&self.pareto_fronts)));
        let [one, two] = &mut compilers;
        let are_equal = one.compile(config)?.program.equal_except_empty_cache(&two.compile(other)?.program);
        self.equal_programs.lock().unwrap_or_else(PoisonError::into_inner).insert(structures, are_equal);
        Ok(are_equal)
    }
}

/// The distinct graphs so far, ignoring sizes.
#[derive(Default)]
struct Structures(Mutex<Vec<Graphs>>);

impl Structures {
    fn number(&self, graphs: &Graphs) -> usize {
        let mut graphs_so_far = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        graphs_so_far.iter().position(|other| other.same_structure(graphs)).unwrap_or_else(|| {
            graphs_so_far.push(graphs.clone());
            graphs_so_far.len() - 1
        })
    }
}

/// Predicts configurations of one group. Consecutive ones of one structure share a compilation.
fn predict_chunk(
    (group, requests): (usize, Vec<(MemoryKey, ForecastRequest<'_>)>),
    mut compiler: Compiler<'_>,
    mut torch: Option<TorchForecaster>,
    target: &Target,
    structures: &Structures,
) -> Result<Vec<(MemoryKey, Forecast)>, (String, Violation)> {
    let mut known: BTreeMap<MemoryKey, LargestMicroBatch> = BTreeMap::new();
    let mut forecasts = Vec::with_capacity(requests.len());
    for (key, ForecastRequest { config, wants_largest_micro_batch, strategy }) in requests {
        let with_strategy = |violation| (strategy.to_owned(), violation);
        let compiled = compiler.compile(config).map_err(with_strategy)?;
        let recompute_plan = compiled.recompute_plan.clone();
        // Each rank's device has its own memory.
        let own = &target.of_rank(config.ranks());
        let prediction = predict(&compiled.program, own, RunSchedule::of(config));
        let slices = compiled.program.loss_slices.iter().map(|sliced| sliced.count).collect();
        let is_offloaded = compiled.program.offloadable.iter().map(|value| value.is_offloaded).collect();
        let graph = structures.number(&compiled.graphs);
        let structure = Structure { graph, group, slices, is_offloaded, recompute_plan };
        // A leak into a cache is predicted by simulating every step: too slow for the search over batches.
        let is_predictable = !(config.strategy.leak.is_some() && config.strategy.allocator.is_caching());
        let entry = (wants_largest_micro_batch && is_predictable)
            .then(|| known.entry(largest_micro_batch_key(config)));
        let largest = match entry {
            None => None,
            Some(Entry::Occupied(entry)) => Some(entry.get().clone()),
            Some(Entry::Vacant(entry)) => {
                let largest = fits::largest(&mut compiler, config, own).map_err(with_strategy)?;
                Some(entry.insert(largest).clone())
            }
        };
        let torch = torch.as_mut().map(|torch| torch.forecast(config, &key, wants_largest_micro_batch));
        forecasts.push((key, Forecast { prediction, largest, torch, structure }));
    }
    Ok(forecasts)
}

/// Equal for configurations with the same largest micro-batch: those that differ only in batch size, unless that
/// decides their recompute plan.
fn largest_micro_batch_key(config: &RunConfig) -> MemoryKey {
    let key = config.memory_key();
    match config.strategy.recompute {
        Recompute::Budget(_) => key,
        _ => MemoryKey { batch_size: config.strategy.accumulate, ..key },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::{reshaped, small, target};

    /// A loss of one row cannot be sliced: such a run has another structure than one with more rows.
    #[test]
    fn number_of_slices_is_part_of_the_structure() {
        let config = |context: usize| {
            let mut config = small();
            config.strategy.loss_chunks = 7;
            config.train.batch_size = 1;
            reshaped(config, |model| model.context = context)
        };
        let configs = [1, 16, 17].map(config);
        let requests = configs.iter().map(|config| ForecastRequest {
            config,
            wants_largest_micro_batch: false,
            strategy: "sliced",
        });
        let target = target();
        let forecasts = Forecasts::new(requests, &target, PlanKeys::default(), Arc::default()).unwrap();
        let [one, many, more] = configs.each_ref().map(|config| forecasts.of(config).structure.clone());
        assert_ne!(one, many);
        assert_eq!(many, more);
    }
}
