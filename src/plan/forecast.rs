//! The memory of many configurations, each predicted once, those of one structure with one program.

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
use spec::{MemoryPart, Recompute, RunConfig};

/// Configurations that one thread predicts one after the other: many, since each chunk begins with a compilation, and few,
/// so that all threads have something to do.
const CHUNK: usize = 128;

/// Says equal things of configurations whose memory is equal.
type Key = String;

/// A forecast that is wanted.
pub(super) struct Wanted<'a> {
    pub(super) config: &'a RunConfig,
    /// With the largest micro-batch.
    pub(super) fits: bool,
    /// Whose it is, for messages.
    pub(super) strategy: &'a str,
}

/// A configuration's memory.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    pub(super) prediction: Prediction,
    /// The largest micro-batch that the target's memory allows, 0 if none does; `None` if that was not asked for.
    pub(super) fits: Option<usize>,
    /// The memory budget that no choice of what is computed again meets.
    pub(super) unmet: Option<InfeasibleBudget>,
    structure: Structure,
}

impl Forecast {
    /// What is computed again.
    pub(super) fn recompute_plan(&self) -> &RecomputePlan {
        &self.structure.recompute_plan
    }
}

/// Equal for configurations whose graphs, and what code they are computed by, differ in sizes alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Structure {
    graph: usize,
    /// In how many slices each loss is computed.
    slices: Vec<usize>,
    /// Which values are large enough to leave the device.
    spilled: Vec<bool>,
    /// What is computed again.
    recompute_plan: RecomputePlan,
}

/// All that was asked for.
pub(super) struct Forecasts<'a> {
    target: &'a Target,
    known: HashMap<Key, Forecast>,
    frontiers: Arc<ParetoFronts>,
    /// By the structures of two configurations and what each chooses: whether their programs are equal.
    same: Mutex<HashMap<[(Structure, Key); 2], bool>>,
}

impl<'a> Forecasts<'a> {
    /// Fails with the strategy for which a program broke an invariant.
    pub(super) fn new<'q>(
        wanted: impl IntoIterator<Item = Wanted<'q>>,
        target: &'a Target,
    ) -> Result<Forecasts<'a>, (String, Violation)> {
        let mut distinct: HashMap<Key, Wanted<'q>> = HashMap::new();
        for wanted in wanted {
            match distinct.entry(memory_key(wanted.config)) {
                Entry::Occupied(known) => known.into_mut().fits |= wanted.fits,
                Entry::Vacant(place) => drop(place.insert(wanted)),
            }
        }
        let mut by_structure: BTreeMap<Key, Vec<(Key, Wanted<'q>)>> = BTreeMap::new();
        for (memory, wanted) in distinct {
            // Where the last micro-batch is smaller, there are more sections.
            let structure = key(&(wanted.config.choices(), wanted.config.tail().is_some()));
            by_structure.entry(structure).or_default().push((memory, wanted));
        }
        let mut chunks = Vec::new();
        for mut wanted in by_structure.into_values() {
            // Configurations of one model stay together, and those that differ in batch alone have one answer to
            // what fits.
            wanted.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut wanted = wanted.into_iter().peekable();
            while wanted.peek().is_some() {
                chunks.push(wanted.by_ref().take(CHUNK).collect::<Vec<_>>());
            }
        }
        let structures = Structures::default();
        let frontiers = Arc::new(ParetoFronts::default());
        let compiler = || Compiler::sharing(target, Arc::clone(&frontiers));
        // Before the chunks, which have the same ones to look for: each search takes all threads.
        for (_, Wanted { config, strategy, .. }) in chunks.iter().flatten() {
            if let Recompute::Budget(_) = config.strategy.recompute {
                compiler().frontier(config).map_err(|violation| ((*strategy).to_owned(), violation))?;
            }
        }
        let known = parallel::map(chunks, |chunk| predict_chunk(chunk, compiler(), target, &structures));
        let known = known.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        Ok(Forecasts { target, known, frontiers, same: Mutex::default() })
    }

    /// Panics if it was not asked for.
    pub(super) fn of(&self, config: &RunConfig) -> &Forecast {
        &self.known[&memory_key(config)]
    }

    /// Whether two configurations that were asked for compile to the same program with the same ledger. Where a cache is emptied
    /// that gives nothing back, what is predicted of it is the same.
    pub(super) fn same(&self, config: &RunConfig, other: &RunConfig) -> Result<bool, Violation> {
        if config.micro_batches() != other.micro_batches()
            || self.of(config).prediction != self.of(other).prediction
        {
            return Ok(false);
        }
        let keys = [config, other].map(|of| (self.of(of).structure.clone(), key(&of.choices())));
        let known = self.same.lock().unwrap_or_else(PoisonError::into_inner).get(&keys).copied();
        if let Some(same) = known {
            return Ok(same);
        }
        // Values say what they are like at all sizes, so programs of as many slices that are equal at some are equal at all.
        let mut compilers = [(); 2].map(|()| Compiler::sharing(self.target, Arc::clone(&self.frontiers)));
        let [one, two] = &mut compilers;
        let same = one.compile(config)?.program.equal_except_empty_cache(&two.compile(other)?.program);
        self.same.lock().unwrap_or_else(PoisonError::into_inner).insert(keys, same);
        Ok(same)
    }
}

/// The graphs that were met, of those that differ in sizes alone one.
#[derive(Default)]
struct Structures(Mutex<Vec<Graphs>>);

impl Structures {
    fn number(&self, graphs: &Graphs) -> usize {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().position(|other| other.same_structure(graphs)).unwrap_or_else(|| {
            known.push(graphs.clone());
            known.len() - 1
        })
    }
}

/// Predicts configurations that choose the same, those of one structure one after the other with one compilation.
fn predict_chunk(
    chunk: Vec<(Key, Wanted<'_>)>,
    mut compiler: Compiler<'_>,
    target: &Target,
    structures: &Structures,
) -> Result<Vec<(Key, Forecast)>, (String, Violation)> {
    let mut fits_by_key: HashMap<Key, usize> = HashMap::new();
    let mut forecasts = Vec::with_capacity(chunk.len());
    for (memory, Wanted { config, fits, strategy }) in chunk {
        let blame = |violation| (strategy.to_owned(), violation);
        let (compiled, unmet) = compiler.compile_within_budget(config).map_err(blame)?;
        let recompute_plan = compiled.recompute_plan.clone();
        let prediction = predict(&compiled.program, target, RunSchedule::of(config));
        let slices = compiled.program.loss_slices.iter().map(|sliced| sliced.count).collect();
        let spilled = compiled.program.offloadable.iter().map(|value| value.is_offloaded).collect();
        let graph = structures.number(&compiled.graphs);
        let structure = Structure { graph, slices, spilled, recompute_plan };
        // What leaks in a cache is known of steps that are gone through, one by one: too many for every batch that may fit.
        let is_known = !(config.strategy.leak.is_some() && config.strategy.allocator.is_caching());
        let fits = match (fits && is_known).then(|| fits_by_key.entry(fits_key(config))) {
            None => None,
            Some(Entry::Occupied(known)) => Some(*known.get()),
            Some(Entry::Vacant(place)) => {
                Some(*place.insert(fits::largest(&mut compiler, config, target).map_err(blame)?))
            }
        };
        forecasts.push((memory, Forecast { prediction, fits, unmet, structure }));
    }
    Ok(forecasts)
}

fn memory_key(config: &RunConfig) -> Key {
    key(&config.memory_part())
}

/// Equal for configurations that have one answer to what fits: those that differ in batch size alone, unless that decides
/// what they compute again.
fn fits_key(config: &RunConfig) -> Key {
    if let Recompute::Budget(_) = config.strategy.recompute {
        return memory_key(config);
    }
    key(&MemoryPart { batch_size: config.strategy.accumulate, ..config.memory_part() })
}

fn key(part: &impl Serialize) -> Key {
    serde_json::to_string(part).expect("plain data always serialises")
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::{reshaped, small, target};

    /// One row cannot be cut: what is found out of such a run says nothing of one with more rows.
    #[test]
    fn runs_of_other_slices_are_of_another_structure() {
        let config = |context: usize| {
            let mut config = small();
            config.strategy.loss_chunks = 7;
            config.train.batch_size = 1;
            reshaped(config, |model| model.context = context)
        };
        let configs = [1, 16, 17].map(config);
        let wanted = configs.iter().map(|config| Wanted { config, fits: false, strategy: "sliced" });
        let target = target();
        let forecasts = Forecasts::new(wanted, &target).unwrap();
        let [one, many, more] = configs.each_ref().map(|config| forecasts.of(config).structure.clone());
        assert_ne!(one, many);
        assert_eq!(many, more);
    }
}
