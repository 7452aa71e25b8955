//! The reference of keys, from their declarations.

use super::ablation::Ablation;
use super::data::Data;
use super::model::{Model, shorthand};
use super::resolved::{Evaluation, Measure, Train};
use super::strategy::Strategy;
use super::{plan, repeats};
use crate::reader::declare::{KeyCodec as _, KeyTable as _};
use crate::reader::forms::{Form, NOT_EMPTY};
use crate::reader::parsers::{BYTE_RATE, Keyword, NonEmptyText, SizeWithUnit, keyword};
use crate::reader::paths::file_path;
use crate::reader::reference::{Accepts, DeclaredKey, lines};
use device::DeviceKind;

/// A key as users read about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReference {
    /// `train.optimizer.adamw.lr`; keys of a strategy are under `strategies.NAME`.
    pub path: String,
    pub doc: String,
    pub accepts: String,
    pub default: Option<String>,
}

impl KeyReference {
    /// What it is, the values that it accepts, and its default.
    pub fn lines(&self) -> Vec<String> {
        lines(&self.doc, &self.accepts, self.default.as_deref())
    }
}

/// All declared keys of an experiment, in their order.
pub fn key_reference() -> Vec<KeyReference> {
    let mut all = Vec::new();
    list("", file(), &mut all);
    for table in run_in_file().into_iter().chain([target(), plan()]) {
        list(&format!("{}.", table.key), table.accepts.keys, &mut all);
    }
    list("strategies.NAME.", strategy(), &mut all);
    list("sweep.ablate.", Ablation::reference(), &mut all);
    all
}

fn list(prefix: &str, keys: Vec<DeclaredKey>, all: &mut Vec<KeyReference>) {
    for DeclaredKey { key, doc, accepts: Accepts { text, forms: _, keys }, default } in keys {
        let path = format!("{prefix}{key}");
        all.push(KeyReference { path: path.clone(), doc, accepts: text, default });
        list(&format!("{path}."), keys, all);
    }
}

/// The tables of a run; `model` has short notations in files only.
pub(crate) fn run(model: Accepts) -> Vec<DeclaredKey> {
    let table = |key, doc: &str, accepts, default| DeclaredKey::new(key, doc.trim(), accepts, default);
    let measure = [Measure::reference(), vec![repeats::reference()]].concat();
    vec![
        table("model", "The model: one table with its sizes.", model, None),
        table("data", "The data set: one table with its files.", Accepts::one_of::<Data>(), None),
        table("train", Train::DOC, Accepts::table::<Train>(), None),
        table("evaluation", Evaluation::DOC, Accepts::table::<Evaluation>(), Some("no evaluation")),
        table("measure", Measure::DOC, Accepts::table_of_keys(measure), Some("its defaults")),
    ]
}

/// The tables of a run as a file has them.
pub(crate) fn run_in_file() -> Vec<DeclaredKey> {
    run(shorthand(Accepts::one_of::<Model>()))
}

/// `[target]`, which is read by hand.
pub(crate) fn target() -> DeclaredKey {
    let key = |key, doc, accepts| DeclaredKey::new(key, doc, accepts, Some("the machine's"));
    let keys = vec![
        key(
            "memory",
            "Memory limit of the device. A run fails where a device of this size would.",
            Accepts::parsed(&SizeWithUnit),
        ),
        key("host_memory", "Memory limit of the host.", Accepts::parsed(&SizeWithUnit)),
        key(
            "link",
            "Rate of the link between a card and its host, per direction, for time estimates.",
            Accepts::parsed(&BYTE_RATE),
        ),
    ];
    let doc = "Limits of the machine. The command line wins.";
    DeclaredKey::new("target", doc, Accepts::table_of_keys(keys), Some("no limits"))
}

pub(crate) fn plan() -> DeclaredKey {
    let doc = "The figures that `plan` and `explain` show.";
    DeclaredKey::new("plan", doc, Accepts::table_of_keys(plan::reference()), Some("its defaults"))
}

/// The keys of a strategy and of `[defaults]`.
pub(crate) fn strategy() -> Vec<DeclaredKey> {
    Strategy::reference()
}

/// The keys at the top of a file, which are read by hand.
pub(crate) fn file() -> Vec<DeclaredKey> {
    let requires: Keyword<DeviceKind> = keyword();
    let name = Form::Text { pattern: NOT_EMPTY.to_owned(), refused: Some(NOT_A_NAME.to_owned()) };
    let key = |key, doc, accepts, default| DeclaredKey::new(key, doc, accepts, Some(default));
    vec![
        key(
            "name",
            "Name of the experiment and of its result files.",
            Accepts::value("a text without `/`", vec![name]),
            "the file's name",
        ),
        key(
            "extends",
            "The experiment file that this one changes.",
            file_path("base.toml").accepts(),
            "none",
        ),
        key(
            "baseline",
            "The strategy that is the denominator of ratios.",
            Accepts::parsed(&NonEmptyText),
            "the first",
        ),
        key(
            "requires",
            "The kind of device without which the experiment is skipped.",
            Accepts::parsed(&requires),
            "any",
        ),
    ]
}

/// Names that are no names of files.
const NOT_A_NAME: &str = r"^\.|[/\\\x00-\x1f]";
