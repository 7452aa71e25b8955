//! Forecasts the memory of many configurations: each is predicted once, and those of one structure share a compilation.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::{Compiler, InfeasibleBudget, ParetoFronts, fits};
use base::parallel;
use compile::{RecomputePlan, Violation};
use device::Target;
use graph::Graphs;
use memory::{Prediction, RunSchedule, predict};
use spec::{MemoryKey, Recompute, RunConfig};

/// Configurations that one thread predicts in a row: many, since each chunk begins with a compilation, but few enough
/// to keep all threads busy.
const CHUNK: usize = 128;

/// Serialised parts of a configuration, as a key of maps.
type ConfigKey = String;

/// A request for a forecast.
pub(super) struct ForecastRequest<'a> {
    pub(super) config: &'a RunConfig,
    /// Whether to search for the largest micro-batch.
    pub(super) fits: bool,
    /// The strategy's name, for errors.
    pub(super) strategy: &'a str,
}

/// The predicted memory of a configuration.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    pub(super) prediction: Prediction,
    /// The largest micro-batch that fits, 0 if none does; `None` if it was not requested or is unknown.
    pub(super) fits: Option<usize>,
    /// The recompute budget, if it is infeasible.
    pub(super) infeasible: Option<InfeasibleBudget>,
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
    /// Slices of each loss.
    slices: Vec<usize>,
    /// Whether each offloadable value is large enough to be offloaded.
    spilled: Vec<bool>,
    recompute_plan: RecomputePlan,
}

/// The requested forecasts.
pub(super) struct Forecasts<'a> {
    target: &'a Target,
    forecasts: HashMap<ConfigKey, Forecast>,
    pareto_fronts: Arc<ParetoFronts>,
    /// By structure and choices of two configurations: whether their programs are equal.
    equal_programs: Mutex<HashMap<[(Structure, ConfigKey); 2], bool>>,
}

impl<'a> Forecasts<'a> {
    /// Computes all forecasts. Fails with the strategy whose program violates an invariant.
    pub(super) fn new<'q>(
        requests: impl IntoIterator<Item = ForecastRequest<'q>>,
        target: &'a Target,
    ) -> Result<Forecasts<'a>, (String, Violation)> {
        let mut distinct: HashMap<ConfigKey, ForecastRequest<'q>> = HashMap::new();
        for request in requests {
            match distinct.entry(memory_key(request.config)) {
                Entry::Occupied(entry) => entry.into_mut().fits |= request.fits,
                Entry::Vacant(entry) => drop(entry.insert(request)),
            }
        }
        let mut by_choices: BTreeMap<ConfigKey, Vec<(ConfigKey, ForecastRequest<'q>)>> = BTreeMap::new();
        for (memory, request) in distinct {
            // A smaller last micro-batch has a section of its own.
            let choices = key(&(request.config.choices(), request.config.tail().is_some()));
            by_choices.entry(choices).or_default().push((memory, request));
        }
        let mut chunks = Vec::new();
        for mut requests in by_choices.into_values() {
            // Configurations of one model stay together. Those that differ only in batch size have the same largest
            // micro-batch.
            requests.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut requests = requests.into_iter().peekable();
            while requests.peek().is_some() {
                chunks.push(requests.by_ref().take(CHUNK).collect::<Vec<_>>());
            }
        }
        let structures = Structures::default();
        let pareto_fronts = Arc::new(ParetoFronts::default());
        let compiler = || Compiler::sharing(target, Arc::clone(&pareto_fronts));
        // Before the chunks, many of which need the same Pareto fronts: each search uses all threads.
        for (_, ForecastRequest { config, strategy, .. }) in chunks.iter().flatten() {
            if let Recompute::Budget(_) = config.strategy.recompute {
                compiler().pareto_front(config).map_err(|violation| ((*strategy).to_owned(), violation))?;
            }
        }
        let forecasts = parallel::map(chunks, |chunk| predict_chunk(chunk, compiler(), target, &structures));
        let forecasts = forecasts.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        Ok(Forecasts { target, forecasts, pareto_fronts, equal_programs: Mutex::default() })
    }

    /// The forecast of a configuration. Panics if it was not requested.
    pub(super) fn of(&self, config: &RunConfig) -> &Forecast {
        &self.forecasts[&memory_key(config)]
    }

    /// Whether two requested configurations compile to the same program with the same ledger. Cache emptying that
    /// returns nothing is ignored.
    pub(super) fn compile_equally(&self, config: &RunConfig, other: &RunConfig) -> Result<bool, Violation> {
        if config.micro_batches() != other.micro_batches()
            || self.of(config).prediction != self.of(other).prediction
        {
            return Ok(false);
        }
        let keys = [config, other].map(|of| (self.of(of).structure.clone(), key(&of.choices())));
        let cached = self.equal_programs.lock().unwrap_or_else(PoisonError::into_inner).get(&keys).copied();
        if let Some(same) = cached {
            return Ok(same);
        }
        // Values declare their shapes at any size: programs with equal slices that are equal at one size are equal at
        // all.
        let mut compilers = [(); 2].map(|()| Compiler::sharing(self.target, Arc::clone(&self.pareto_fronts)));
        let [one, two] = &mut compilers;
        let same = one.compile(config)?.program.equal_except_empty_cache(&two.compile(other)?.program);
        self.equal_programs.lock().unwrap_or_else(PoisonError::into_inner).insert(keys, same);
        Ok(same)
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

/// Predicts configurations with equal choices. Consecutive ones of one structure share a compilation.
fn predict_chunk(
    chunk: Vec<(ConfigKey, ForecastRequest<'_>)>,
    mut compiler: Compiler<'_>,
    target: &Target,
    structures: &Structures,
) -> Result<Vec<(ConfigKey, Forecast)>, (String, Violation)> {
    let mut fits_by_key: HashMap<ConfigKey, usize> = HashMap::new();
    let mut forecasts = Vec::with_capacity(chunk.len());
    for (memory, ForecastRequest { config, fits, strategy }) in chunk {
        let with_strategy = |violation| (strategy.to_owned(), violation);
        let (compiled, infeasible) = compiler.compile_within_budget(config).map_err(with_strategy)?;
        let recompute_plan = compiled.recompute_plan.clone();
        let prediction = predict(&compiled.program, target, RunSchedule::of(config));
        let slices = compiled.program.loss_slices.iter().map(|sliced| sliced.count).collect();
        let spilled = compiled.program.offloadable.iter().map(|value| value.is_offloaded).collect();
        let graph = structures.number(&compiled.graphs);
        let structure = Structure { graph, slices, spilled, recompute_plan };
        // A leak into a cache is predicted by simulating every step: too slow for the search over batches.
        let is_predictable = !(config.strategy.leak.is_some() && config.strategy.allocator.is_caching());
        let fits = match (fits && is_predictable).then(|| fits_by_key.entry(fits_key(config))) {
            None => None,
            Some(Entry::Occupied(entry)) => Some(*entry.get()),
            Some(Entry::Vacant(entry)) => {
                Some(*entry.insert(fits::largest(&mut compiler, config, target).map_err(with_strategy)?))
            }
        };
        forecasts.push((memory, Forecast { prediction, fits, infeasible, structure }));
    }
    Ok(forecasts)
}

fn memory_key(config: &RunConfig) -> ConfigKey {
    key(&config.memory_part())
}

/// Equal for configurations with the same largest micro-batch: those that differ only in batch size, unless that
/// decides their recompute plan.
fn fits_key(config: &RunConfig) -> ConfigKey {
    if let Recompute::Budget(_) = config.strategy.recompute {
        return memory_key(config);
    }
    key(&MemoryKey { batch_size: config.strategy.accumulate, ..config.memory_part() })
}

fn key(part: &impl Serialize) -> ConfigKey {
    serde_json::to_string(part).expect("plain data always serialises")
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
        let requests =
            configs.iter().map(|config| ForecastRequest { config, fits: false, strategy: "sliced" });
        let target = target();
        let forecasts = Forecasts::new(requests, &target).unwrap();
        let [one, many, more] = configs.each_ref().map(|config| forecasts.of(config).structure.clone());
        assert_ne!(one, many);
        assert_eq!(many, more);
    }
}
