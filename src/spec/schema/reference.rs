//! The reference of keys, from their declarations.

use super::ablation::Ablation;
use super::data::Data;
use super::model::Model;
use super::resolved::{Evaluation, Measure, Train};
use super::strategy::Strategy;
use super::{plan, repeats};
use crate::reader::declare::KeyTable;
use crate::reader::reference::{Accepts, DeclaredKey};

/// A key as users read about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReference {
    /// `train.optimizer.adamw.lr`; keys of a strategy are under `strategies.NAME`.
    pub path: String,
    pub doc: String,
    pub accepts: String,
    pub default: Option<String>,
}

/// All declared keys of an experiment's tables, in their order.
pub fn key_reference() -> Vec<KeyReference> {
    let mut all = Vec::new();
    list("model", Accepts::one_of::<Model>().keys, &mut all);
    list("data", Accepts::one_of::<Data>().keys, &mut all);
    list("train", Train::reference(), &mut all);
    list("evaluation", Evaluation::reference(), &mut all);
    list("measure", Measure::reference(), &mut all);
    list("measure", vec![repeats::reference()], &mut all);
    list("plan", plan::reference(), &mut all);
    list("strategies.NAME", Strategy::reference(), &mut all);
    list("sweep.ablate", Ablation::reference(), &mut all);
    all
}

fn list(table: &str, keys: Vec<DeclaredKey>, all: &mut Vec<KeyReference>) {
    for DeclaredKey { key, doc, accepts: Accepts { text, keys }, default } in keys {
        let path = format!("{table}.{key}");
        all.push(KeyReference { path: path.clone(), doc, accepts: text, default });
        list(&path, keys, all);
    }
}
