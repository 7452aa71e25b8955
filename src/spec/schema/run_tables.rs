//! The tables of a run.

use super::data::Data;
use super::key::{Key, STRATEGY};
use super::model::Model;
use super::optimizer::Optimizer;
use super::repeats::Repeats;
use super::resolved::{Evaluation, Measure, RunConfig, Task, Train};
use super::settings::Setting;
use super::strategy::Strategy;
use crate::reader::declare::{ChoiceTable as _, KeyTable, KeywordEnum as _, one_of};
use crate::reader::keys::{Keys, Reader};
use crate::reader::tree::{Node, Table, Value};

/// The tables that every file may have. Each is `None` if something in it is wrong or missing.
pub(crate) struct RunTables {
    model: Option<Model>,
    data: Option<Data>,
    train: Option<Train>,
    evaluation: Option<Option<Evaluation>>,
    measure: Option<Measure>,
    pub(crate) repeats: Option<Repeats>,
}

/// Reads one run, whose strategy keys are in the table `strategy`.
pub(crate) fn read_run(reader: &Reader<'_>, tree: &Table) -> Option<RunConfig> {
    let mut keys = reader.keys(tree, "", "the experiment");
    let tables = read_tables(&mut keys);
    let empty = Table::default();
    let mut own =
        keys.table(STRATEGY, "", "the strategy").unwrap_or_else(|| reader.keys(&empty, "", "the strategy"));
    let strategy = Strategy::read(&mut own);
    own.finish();
    keys.finish();
    Some(RunConfig {
        model: tables.model?,
        data: tables.data?,
        train: tables.train?,
        evaluation: tables.evaluation?,
        measure: tables.measure?,
        strategy: strategy?,
        data_len: None,
        lengths: None,
        all_packed: None,
    })
}

/// Inference needs no optimizer: a run without one gets AdamW, which changes nothing.
pub(crate) fn complete_inference(tree: &mut Table) {
    let Some(what) = tree.find("measure.what") else { return };
    let is_inference = matches!(&what.node.value, Value::Text(word) if word == Task::Inference.keyword());
    let is_missing = match tree.find(Optimizer::PATH) {
        None => true,
        Some(entry) => matches!(&entry.node.value, Value::Text(word) if word == "off"),
    };
    if is_inference && is_missing && tree.find("train").is_some_and(|train| train.node.table().is_some()) {
        let node = Node { value: Value::Float(1e-3), span: what.span() };
        let key = Key::new(&format!("{}.adamw.lr", Optimizer::PATH));
        tree.set(&Setting { key, key_span: what.span(), node });
    }
}

pub(crate) fn read_tables(keys: &mut Keys<'_>) -> RunTables {
    let model = keys.key("model", None, one_of());
    let data = keys.key("data", None, one_of());
    let train = keys.required_table("train", "train", "[train]").and_then(read_table);
    let evaluation = match keys.table("evaluation", "evaluation", "[evaluation]") {
        Some(keys) => read_table(keys).map(Some),
        None => Some(None),
    };
    let (measure, repeats) = match keys.table("measure", "measure", "[measure]") {
        Some(keys) => measure(keys),
        None => (Some(Measure::default()), Some(Repeats::Times(1))),
    };
    RunTables { model, data, train, evaluation, measure, repeats }
}

/// Reads a table and reports unknown keys.
fn read_table<S: KeyTable>(mut keys: Keys<'_>) -> Option<S> {
    let table = S::read(&mut keys);
    keys.finish();
    table
}

fn measure(mut keys: Keys<'_>) -> (Option<Measure>, Option<Repeats>) {
    let measure = Measure::read(&mut keys);
    let repeats = Repeats::read(&mut keys);
    keys.finish();
    (measure, repeats)
}
