//! The memory of many configurations, each predicted once, those of one structure with one program.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::fits;
use crate::compile::{Template, Violation, compile, memory_part, structure};
use crate::device::Target;
use crate::memory::{Prediction, predict};
use crate::spec::RunConfig;

/// Configurations that one thread predicts in a row: many, since each row begins with a compilation, and few, so
/// that all threads have something to do.
const ROW: usize = 128;

/// Says equal things of configurations whose memory is equal.
type Key = String;

/// A configuration whose memory is asked for.
pub(super) struct Question<'a> {
    pub(super) config: &'a RunConfig,
    /// Whether the largest micro-batch is asked for too.
    pub(super) fits: bool,
    /// Who asks, for messages.
    pub(super) strategy: &'a str,
}

/// A configuration's memory.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    pub(super) prediction: Prediction,
    /// The largest micro-batch that the target's memory allows, if that was asked for and one does.
    pub(super) fits: Option<usize>,
}

/// All that was asked for.
pub(super) struct Forecasts<'a> {
    target: &'a Target,
    known: HashMap<Key, Forecast>,
    /// By the structures of two configurations: whether their programs are equal.
    same: Mutex<HashMap<[Key; 2], bool>>,
}

impl<'a> Forecasts<'a> {
    /// Fails with the strategy for which a program broke an invariant.
    pub(super) fn new<'q>(
        questions: impl IntoIterator<Item = Question<'q>>,
        target: &'a Target,
    ) -> Result<Forecasts<'a>, (String, Violation)> {
        let mut distinct: HashMap<Key, Question<'q>> = HashMap::new();
        for question in questions {
            match distinct.entry(memory_key(question.config)) {
                Entry::Occupied(known) => known.into_mut().fits |= question.fits,
                Entry::Vacant(place) => drop(place.insert(question)),
            }
        }
        let mut structures: BTreeMap<Key, Vec<(Key, Question<'q>)>> = BTreeMap::new();
        for (key, question) in distinct {
            structures.entry(structure_key(question.config)).or_default().push((key, question));
        }
        let mut rows = Vec::new();
        for mut questions in structures.into_values() {
            // Configurations that differ in batch alone stay together, and have one answer to what fits.
            questions.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut questions = questions.into_iter().peekable();
            while questions.peek().is_some() {
                rows.push(questions.by_ref().take(ROW).collect::<Vec<_>>());
            }
        }
        let known: Result<Vec<_>, _> = rows.into_par_iter().map(|row| answer(row, target)).collect();
        let known = known?.into_iter().flatten().collect();
        Ok(Forecasts { target, known, same: Mutex::default() })
    }

    /// Panics if it was not asked for.
    pub(super) fn of(&self, config: &RunConfig) -> &Forecast {
        &self.known[&memory_key(config)]
    }

    /// Whether two configurations that were asked for compile to the same program with the same ledger.
    pub(super) fn same(&self, config: &RunConfig, other: &RunConfig) -> Result<bool, Violation> {
        if config.strategy.accumulate != other.strategy.accumulate
            || self.of(config).prediction != self.of(other).prediction
        {
            return Ok(false);
        }
        let keys = [structure_key(config), structure_key(other)];
        let known = self.same.lock().unwrap_or_else(PoisonError::into_inner).get(&keys).copied();
        if let Some(same) = known {
            return Ok(same);
        }
        // Sizes follow from the configuration: programs of one structure are equal at all sizes.
        let same = compile(&structure(config), self.target)? == compile(&structure(other), self.target)?;
        self.same.lock().unwrap_or_else(PoisonError::into_inner).insert(keys, same);
        Ok(same)
    }
}

/// Predicts configurations of one structure.
fn answer(
    row: Vec<(Key, Question<'_>)>,
    target: &Target,
) -> Result<Vec<(Key, Forecast)>, (String, Violation)> {
    let mut template: Option<Template<'_>> = None;
    let mut fits_by_key: HashMap<Key, Option<usize>> = HashMap::new();
    let mut answers = Vec::with_capacity(row.len());
    for (key, Question { config, fits, strategy }) in row {
        let blame = |violation| (strategy.to_owned(), violation);
        let template = match &mut template {
            Some(template) => template,
            None => template.insert(Template::new(config, target).map_err(blame)?),
        };
        template.resize(config).map_err(blame)?;
        let prediction = predict(template.program(), target);
        let fits = match fits.then(|| fits_by_key.entry(batchless_key(config))) {
            None => None,
            Some(Entry::Occupied(known)) => *known.get(),
            Some(Entry::Vacant(place)) => {
                *place.insert(fits::largest(template, config, target).map_err(blame)?)
            }
        };
        answers.push((key, Forecast { prediction, fits }));
    }
    Ok(answers)
}

fn memory_key(config: &RunConfig) -> Key {
    key(&memory_part(config))
}

fn structure_key(config: &RunConfig) -> Key {
    key(&structure(config))
}

/// Equal for configurations that differ in batch size alone.
fn batchless_key(config: &RunConfig) -> Key {
    let mut part = memory_part(config);
    part.train.batch_size = config.strategy.accumulate;
    key(&part)
}

fn key(part: &RunConfig) -> Key {
    serde_json::to_string(part).expect("plain data always serialises")
}
