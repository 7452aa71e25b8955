//! The tables that make a run.

use super::data::Data;
use super::declare::{Section, one_of};
use super::key::STRATEGY;
use super::model::Model;
use super::reader::{Keys, Reader};
use super::repeats::Repeats;
use super::resolved::{Evaluation, Measure, RunConfig, Train};
use super::strategy::Strategy;
use super::tree::Table;

/// The tables that every file may have. Each is `None` where something in it is wrong or missing.
pub(crate) struct Sections {
    model: Option<Model>,
    data: Option<Data>,
    train: Option<Train>,
    evaluation: Option<Option<Evaluation>>,
    measure: Option<Measure>,
    pub(crate) repeats: Option<Repeats>,
}

/// Reads one run, whose strategy keys are in a table of their own.
pub(crate) fn run(reader: &Reader<'_>, tree: &Table) -> Option<RunConfig> {
    let mut keys = reader.keys(tree, "", "the experiment");
    let sections = sections(&mut keys);
    let none = Table::default();
    let mut own =
        keys.table(STRATEGY, "", "the strategy").unwrap_or_else(|| reader.keys(&none, "", "the strategy"));
    let strategy = Strategy::read(&mut own);
    own.finish();
    keys.finish();
    Some(RunConfig {
        model: sections.model?,
        data: sections.data?,
        train: sections.train?,
        evaluation: sections.evaluation?,
        measure: sections.measure?,
        strategy: strategy?,
        tokens: None,
    })
}

pub(crate) fn sections(keys: &mut Keys<'_>) -> Sections {
    let model = keys.key("model", None, one_of());
    let data = keys.key("data", None, one_of());
    let train = keys.required_table("train", "train", "[train]").and_then(whole);
    let evaluation = match keys.table("evaluation", "evaluation", "[evaluation]") {
        Some(keys) => whole(keys).map(Some),
        None => Some(None),
    };
    let (measure, repeats) = match keys.table("measure", "measure", "[measure]") {
        Some(keys) => measure(keys),
        None => (Some(Measure::default()), Some(Repeats::Times(1))),
    };
    Sections { model, data, train, evaluation, measure, repeats }
}

/// A table with its own keys and no others.
fn whole<S: Section>(mut keys: Keys<'_>) -> Option<S> {
    let section = S::read(&mut keys);
    keys.finish();
    section
}

fn measure(mut keys: Keys<'_>) -> (Option<Measure>, Option<Repeats>) {
    let measure = Measure::read(&mut keys);
    let repeats = Repeats::read(&mut keys);
    keys.finish();
    (measure, repeats)
}
