//! Searches combinations of memory choices for the fastest that fit.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::remedies::ChangedKey;
use super::{Compiler, DeviceRates, fits};
use base::parallel;
use compile::Violation;
use device::Target;
use memory::{RunSchedule, StepWork, predict};
use pytorch::{Fit, Machine};
use spec::{RunConfig, Update};

/// Combinations that are examined at a time, fastest first.
const CHUNK: usize = 16;

/// The results that are kept during the search: one that is useless beside a later one may leave its place.
const KEPT: usize = 64;

/// Further numbers of micro-batches that are tried where the first does not fit.
const TRIED: usize = 4;

/// The most combinations.
const MOST: usize = 1 << 14;

/// Combinations of choices: at most one of each group, without or with all of `undo`. Returns also the groups that are left
/// out because there are too many.
pub fn combinations<'g>(
    undo: &[ChangedKey],
    groups: &'g [Vec<ChangedKey>],
) -> (Vec<Vec<ChangedKey>>, &'g [Vec<ChangedKey>]) {
    let mut all: Vec<Vec<ChangedKey>> = vec![Vec::new()];
    if !undo.is_empty() {
        all.push(undo.to_vec());
    }
    let mut used = 0;
    for group in groups {
        let with = |choice: &ChangedKey| {
            all.iter()
                .map(|keys| [keys.as_slice(), std::slice::from_ref(choice)].concat())
                .collect::<Vec<_>>()
        };
        let with: Vec<Vec<ChangedKey>> = group.iter().flat_map(with).collect();
        if all.len() + with.len() > MOST {
            break;
        }
        all.extend(with);
        used += 1;
    }
    (all, &groups[used..])
}

/// The tables of strategies with these keys and, if given, this number of micro-batches; named by their index.
pub fn tables(combinations: &[Vec<ChangedKey>], accumulate: Option<usize>) -> String {
    let mut out = String::new();
    for (index, keys) in combinations.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "[strategies.{index}]");
        if let Some(number) = accumulate {
            let _ = writeln!(out, "accumulate = {number}");
        }
        for key in keys {
            let _ = writeln!(out, "{}", key.lines().join("\n"));
        }
    }
    out
}

/// What decides: the memory of a target, in this program or in PyTorch; and the rates of the target.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    pub target: &'a Target,
    pub rates: &'a DeviceRates,
    /// PyTorch's card, if its memory decides.
    pub machine: Option<Machine>,
    /// The unchanged run.
    pub own: &'a RunConfig,
    /// Whether the batch may be split into another number of micro-batches.
    pub may_split: bool,
    /// The number of results.
    pub top: usize,
}

/// A combination to try.
#[derive(Clone, Debug)]
pub struct Trial {
    pub keys: Vec<ChangedKey>,
    pub config: RunConfig,
}

/// A run that fits.
#[derive(Clone, Debug)]
pub struct Found {
    pub keys: Vec<ChangedKey>,
    /// With the smallest number of micro-batches that fits.
    pub config: RunConfig,
    /// Estimated.
    pub step_ms: f64,
    /// Peak of live bytes (PyTorch: allocated bytes).
    pub peak: u64,
    /// Bytes in host memory (PyTorch: managed memory).
    pub host: u64,
}

impl Found {
    /// Estimated milliseconds for each token.
    pub fn token_ms(&self) -> f64 {
        self.step_ms / tokens(&self.config)
    }
}

/// A combination with its estimated time.
#[derive(Clone, Debug)]
pub struct Timed {
    trial: Trial,
    /// For each token, at the largest micro-batch.
    token_ms: f64,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct SearchResults {
    /// The fastest first.
    pub found: Vec<Found>,
    /// The number of combinations whose memory was searched.
    pub examined: usize,
}

/// Estimates this close are no difference.
const SAME_TIME: f64 = 1.005;

impl Search<'_> {
    /// Estimates each run with the whole batch as one micro-batch, the fastest first. Runs with equal memory choices are
    /// tried once, with the fewest keys; those without known rates are left out.
    ///
    /// # Errors
    /// A violation of a program's invariants: a mistake in a pass.
    pub fn estimate(&self, mut trials: Vec<Trial>) -> Result<Vec<Timed>, Violation> {
        trials.sort_by_key(|trial| trial.keys.len());
        let mut known = BTreeSet::new();
        trials.retain(|trial| known.insert(trial.config.memory_key()));
        let timed = parallel::map(trials, |trial| {
            let whole = match self.may_split {
                true => with_micro_batches(&trial.config, 1),
                false => trial.config.clone(),
            };
            let step_ms = self.step_ms(&mut Compiler::new(self.target), &whole)?;
            Ok(step_ms.map(|ms| Timed { trial, token_ms: ms / tokens(&whole) }))
        });
        let mut timed: Vec<Timed> =
            timed.into_iter().collect::<Result<Vec<_>, Violation>>()?.into_iter().flatten().collect();
        timed.sort_by(|one, other| one.token_ms.total_cmp(&other.token_ms));
        Ok(timed)
    }

    /// The fastest runs that fit. Combinations are examined by their time, which is the least for any number of
    /// micro-batches, until no further one can be faster.
    ///
    /// # Errors
    /// As from `estimate`.
    pub fn run(&self, timed: &[Timed]) -> Result<SearchResults, Violation> {
        let mut results = SearchResults::default();
        let own_micro_batches = self.own.micro_batches();
        for chunk in timed.chunks(CHUNK) {
            let slowest = results.found.get(self.top.saturating_sub(1));
            if slowest.is_some_and(|slowest| slowest.token_ms() <= chunk[0].token_ms) {
                break;
            }
            results.examined += chunk.len();
            let found =
                parallel::map(chunk.iter().collect(), |timed: &Timed| self.fitted(timed.trial.clone()));
            results.found.extend(found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten());
            results.found = without_useless_keys(results.found, own_micro_batches);
            results.found.truncate(KEPT.max(self.top));
        }
        results.found.truncate(self.top);
        Ok(results)
    }

    /// The run with the smallest number of micro-batches that fits, if any does.
    fn fitted(&self, trial: Trial) -> Result<Option<Found>, Violation> {
        let Trial { keys, config } = trial;
        if !self.may_split {
            return if self.fits(&config)? { self.found(keys, config) } else { Ok(None) };
        }
        let whole = with_micro_batches(&config, 1);
        if self.fits(&whole)? {
            return self.found(keys, whole);
        }
        let batch = config.train.batch_size;
        if config.strategy.update == Update::InBackward || batch == 1 {
            return Ok(None);
        }
        // Several micro-batches keep gradients that one does not.
        let split = with_micro_batches(&config, 2);
        let largest = match self.machine {
            Some(machine) => machine.largest_micro_batch(&split).unwrap_or(0),
            None => fits::largest(&mut Compiler::new(self.target), &split, self.target)?.micro_batch,
        };
        if largest == 0 {
            return Ok(None);
        }
        // The search assumes equal micro-batches, and memory does not always grow with them.
        let fewest = batch.div_ceil(largest).max(2);
        for number in fewest..=batch.min(fewest + TRIED) {
            let config = with_micro_batches(&config, number);
            if self.fits(&config)? {
                return self.found(keys, config);
            }
        }
        Ok(None)
    }

    /// Whether a run fits.
    ///
    /// # Errors
    /// As from `estimate`.
    pub fn fits(&self, config: &RunConfig) -> Result<bool, Violation> {
        if let Some(machine) = self.machine {
            return Ok(machine.run(config).is_ok_and(|run| !matches!(run.forecast().fit, Fit::Refused(_))));
        }
        let mut compiler = Compiler::new(self.target);
        let program = &compiler.compile(config)?.program;
        Ok(predict(program, self.target, RunSchedule::of(config)).out_of_memory.is_none())
    }

    /// A run as it is, if it is predicted and its time is known.
    ///
    /// # Errors
    /// As from `estimate`.
    pub fn found(&self, keys: Vec<ChangedKey>, config: RunConfig) -> Result<Option<Found>, Violation> {
        let mut compiler = Compiler::new(self.target);
        let Some(step_ms) = self.step_ms(&mut compiler, &config)? else { return Ok(None) };
        let memory = match self.machine {
            Some(machine) => {
                machine.run(&config).ok().map(|run| (run.forecast().peak().allocated, run.managed()))
            }
            None => {
                let program = &compiler.compile(&config)?.program;
                let prediction = predict(program, self.target, RunSchedule::of(&config));
                Some((prediction.device.steady_peak().live.total(), prediction.host.reserved_peak))
            }
        };
        Ok(memory.map(|(peak, host)| Found { keys, config, step_ms, peak, host }))
    }

    /// The estimated milliseconds of a step, if rates are known.
    fn step_ms(&self, compiler: &mut Compiler<'_>, config: &RunConfig) -> Result<Option<f64>, Violation> {
        let work = StepWork::of(&compiler.compile_work(config)?.program);
        Ok(self.rates.step_ms(&work, config, self.target).ok())
    }
}

/// Sorts the runs by time and drops those with useless keys. A key is useless if a run without it is as fast and has the same
/// batch, and its number of micro-batches is at most this run's or equals the unchanged run's.
fn without_useless_keys(mut found: Vec<Found>, own_micro_batches: usize) -> Vec<Found> {
    found.sort_by(|one, other| {
        // Times within `SAME_TIME` are equal.
        let rounded = |found: &Found| (found.token_ms().ln() / SAME_TIME.ln()).round();
        let by_time = rounded(one).total_cmp(&rounded(other));
        by_time.then(one.keys.len().cmp(&other.keys.len())).then(one.peak.cmp(&other.peak))
    });
    let is_useful = |run: &Found| {
        !found.iter().any(|other| {
            other.keys.len() < run.keys.len()
                && other.keys.iter().all(|key| run.keys.contains(key))
                && tokens(&other.config) == tokens(&run.config)
                && (other.config.micro_batches() <= run.config.micro_batches()
                    || other.config.micro_batches() == own_micro_batches)
                && other.token_ms() <= SAME_TIME * run.token_ms()
        })
    };
    found.iter().filter(|run| is_useful(run)).cloned().collect()
}

/// The smallest memory with which a run fits a target, in this program or in PyTorch, the device's context included. `None`
/// if PyTorch's memory is not predicted.
///
/// # Errors
/// As from `Search::estimate`.
pub fn sufficient_memory(
    config: &RunConfig,
    target: &Target,
    machine: Option<Machine>,
) -> Result<Option<u64>, Violation> {
    let needed = match machine {
        Some(machine) => machine.run(config).ok().map(|run| run.smallest_memory()),
        None => {
            let boundless = target.boundless();
            let mut compiler = Compiler::new(target);
            let program = &compiler.compile(config)?.program;
            Some(predict(program, &boundless, RunSchedule::of(config)).device.reserved_peak)
        }
    };
    Ok(needed.map(|needed| needed + target.of_rank(config.ranks()).context.0))
}

/// The tokens of a batch; samples, if the model has no tokens.
fn tokens(config: &RunConfig) -> f64 {
    (config.train.batch_size * config.sample().positions().unwrap_or(1)) as f64
}

/// A run with another number of micro-batches.
pub fn with_micro_batches(config: &RunConfig, number: usize) -> RunConfig {
    let mut config = config.clone();
    config.strategy.accumulate = number;
    config
}
