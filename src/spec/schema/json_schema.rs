//! JSON Schemas of experiment and target files, from the declarations of their keys.

use serde_json::{Map, Value, json};

use super::ablation::Ablation;
use super::key::STRATEGY;
use super::model::Model;
use super::reference::{file, plan, run, run_in_file, strategy, target};
use super::resolved::Task;
use super::target::reference as target_file;
use crate::reader::declare::{KeyTable as _, KeywordEnum as _};
use crate::reader::forms::{Form, closed, merged};
use crate::reader::reference::{Accepts, DeclaredKey};
use device::DeviceKind;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaKind {
    Experiment,
    /// A file that others extend: it may lack keys that they need.
    Base,
    Target,
}

/// The JSON Schema of a kind of file. Draft 7: the version that TOML editors support.
pub fn json_schema(kind: SchemaKind) -> Value {
    let (title, schema) = match kind {
        SchemaKind::Experiment => ("Experiment", merged([experiment(), needed()])),
        SchemaKind::Base => ("File that experiments extend", experiment()),
        SchemaKind::Target => ("Target file", target_files()),
    };
    let title = format!("{title} of runner {}", env!("CARGO_PKG_VERSION"));
    merged([json!({ "$schema": "http://json-schema.org/draft-07/schema#", "title": title }), schema])
}

/// Properties by their exact names, and by regular expressions.
#[derive(Clone, Default)]
struct Names {
    exact: Map<String, Value>,
    patterns: Map<String, Value>,
}

impl Names {
    fn table(self) -> Value {
        merged([json!({ "type": "object" }), self.keywords()])
    }

    /// Keywords for a table with no other keys.
    fn keywords(self) -> Value {
        let patterns = match self.patterns.is_empty() {
            true => json!({}),
            false => json!({ "patternProperties": self.patterns }),
        };
        merged([closed(self.exact), patterns])
    }

    /// The names below a key.
    fn below(&mut self, key: &str, names: Names) {
        self.exact.extend(names.exact.into_iter().map(|(name, schema)| (format!("{key}.{name}"), schema)));
        let pattern = |(name, schema): (String, Value)| (format!(r"^{key}\.{}", &name[1..]), schema);
        self.patterns.extend(names.patterns.into_iter().map(pattern));
    }
}

/// Schemas by name, to which others refer. The schema of a key has its full name.
#[derive(Default)]
struct Definitions(Map<String, Value>);

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/definitions/{name}") })
}

/// How tables of settings have the value of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    Value,
    /// A list of values.
    Axis,
}

impl Definitions {
    fn define(&mut self, name: String, schema: Value) -> Value {
        let reference = reference(&name);
        self.0.insert(name, schema);
        reference
    }

    /// Defines keys and those below them, as their own tables have them.
    fn properties(&mut self, prefix: &str, keys: &[DeclaredKey]) -> Map<String, Value> {
        let mut properties = Map::new();
        for key in keys {
            let name = format!("{prefix}{}", key.key);
            let below = self.properties(&format!("{name}."), &key.accepts.keys);
            let schema = key.schema(&key.accepts.table_of(below));
            properties.insert(key.key.to_owned(), self.define(name, schema));
        }
        properties
    }

    /// All names that keys and those below them have in a table of settings: nested, quoted, or both. The keys are
    /// defined; for axes, their settings are, too.
    fn names(&mut self, prefix: &str, keys: &[DeclaredKey], notation: Notation) -> Names {
        let mut names = Names::default();
        for key in keys {
            let path = format!("{prefix}{}", key.key);
            let is = |wanted: fn(&Form) -> bool| key.accepts.forms.iter().any(wanted);
            let is_table = is(|form| matches!(form, Form::Table | Form::OneOf));
            let is_map = is(|form| matches!(form, Form::ByName(_)));
            let below = match is_table {
                true => self.names(&format!("{path}."), &key.accepts.keys, notation),
                false => Names::default(),
            };
            let of_settings = format!("set:{path}");
            let value = match (is_table, notation) {
                (false, _) => reference(&path),
                (true, Notation::Axis) => reference(&of_settings),
                (true, Notation::Value) => {
                    let table = merged([below.clone().keywords(), key.accepts.one_variant()]);
                    self.define(of_settings, key.schema(&table))
                }
            };
            let value = match notation {
                Notation::Value => value,
                Notation::Axis => {
                    let list = json!({ "type": "array", "minItems": 1, "items": value });
                    let nested = is_map.then(|| json!({ "type": "object" }));
                    let nested = nested.or_else(|| is_table.then(|| below.clone().table()));
                    self.define(format!("axis:{path}"), or_off(list, nested))
                }
            };
            names.exact.insert(key.key.to_owned(), value);
            if is_map {
                // Names of layers, which may have dots.
                names.patterns.insert(format!(r"^{}\.", key.key), json!(true));
            }
            names.below(key.key, below);
        }
        names
    }

    /// The tables whose keys are settings of a run.
    fn settings(&mut self) {
        // `measure.repeats` belongs to no single run.
        let of_run = |mut key: DeclaredKey| {
            key.accepts = if key.key == "measure" { key.accepts.without("repeats") } else { key.accepts };
            key
        };
        let own = DeclaredKey::new(
            STRATEGY,
            "Keys of the strategy.",
            Accepts::table_of_keys(strategy()),
            Some("none"),
        );
        let run: Vec<DeclaredKey> =
            run(Accepts::one_of::<Model>()).into_iter().map(of_run).chain([own]).collect();
        let [set, axes] = [Notation::Value, Notation::Axis].map(|notation| {
            let mut names = self.names("", &run, notation);
            // Keys of the strategy have short names, too.
            let short = self.names("strategy.", &strategy(), notation);
            names.exact.extend(short.exact);
            names.patterns.extend(short.patterns);
            names
        });
        let mut case = set.clone();
        let pattern = json!({ "description": "A strategy's name, or a pattern of names.", "type": "string" });
        let nested = case.exact.get(STRATEGY).cloned().unwrap_or_default();
        case.exact.insert(STRATEGY.to_owned(), json!({ "anyOf": [pattern, nested] }));
        for (name, names) in [("set", set), ("axes", axes), ("case", case)] {
            self.define(name.to_owned(), names.table());
        }
        // Values of an axis differ; axes may be nested in tables.
        let distinct = json!({ "uniqueItems": true, "additionalProperties": reference("distinct") });
        self.define("distinct".to_owned(), distinct);
    }
}

impl DeclaredKey {
    /// The schema of its values, with its documentation. `table`: keywords for its table.
    fn schema(&self, table: &Value) -> Value {
        self.described(self.accepts.schema(self.default.is_some(), table))
    }
}

impl Accepts {
    /// Keywords for a table of settings of a choice: two variants exclude each other.
    fn one_variant(&self) -> Value {
        if !self.is_one_of() || self.keys.len() < 2 {
            return json!({});
        }
        let pair = |(index, key): (usize, &DeclaredKey)| {
            self.keys[..index]
                .iter()
                .map(|other| json!({ "required": [other.key, key.key] }))
                .collect::<Vec<_>>()
        };
        let pairs: Vec<Value> = self.keys.iter().enumerate().flat_map(pair).collect();
        json!({ "not": { "type": "object", "anyOf": pairs } })
    }
}

/// These values, or "off". Types differ, so that keywords do not meet.
fn or_off(schema: Value, other: Option<Value>) -> Value {
    let types: Vec<Value> =
        [Some(&schema), other.as_ref()].into_iter().flatten().map(|one| one["type"].clone()).collect();
    let types: Vec<Value> = types.into_iter().chain([json!("string")]).collect();
    merged([schema, other.unwrap_or_default(), json!({ "type": types, "pattern": "^off$" })])
}

fn experiment() -> Value {
    let mut definitions = Definitions::default();
    let own = [file(), run_in_file(), vec![target(), plan()]].concat();
    let mut properties = definitions.properties("", &own);
    let mut keys = definitions.properties("strategy.", &strategy());
    definitions.settings();

    let described = |doc: &str, schema: Value| merged([json!({ "description": doc }), schema]);
    let table = |properties: Map<String, Value>| merged([json!({ "type": "object" }), closed(properties)]);
    let tables = |doc: &str, item: Value| {
        described(
            doc,
            or_off(json!({ "type": "array", "items": merged([json!({ "minProperties": 1 }), item]) }), None),
        )
    };
    let all =
        |names: &[&str]| json!({ "allOf": names.iter().map(|name| reference(name)).collect::<Vec<_>>() });
    let grid = |doc: &str| described(doc, all(&["axes", "distinct"]));
    let add = |to: &mut Map<String, Value>, key: &str, schema: Value| to.insert(key.to_owned(), schema);

    let defaults = or_off(table(keys.clone()), None);
    add(&mut properties, "defaults", described("Keys of all strategies.", defaults));
    let extends = json!({ "type": "string", "minLength": 1 });
    add(&mut keys, "extends", described("The strategy that this one changes.", extends));
    add(&mut keys, "set", described("Other keys of the run that this strategy changes.", all(&["set"])));
    add(&mut keys, "sweep", grid("Values of keys: a strategy for each combination."));
    let strategies = json!({
        "type": "object",
        "propertyNames": { "pattern": r"^[^\x00-\x1f]+$" },
        "additionalProperties": described("A strategy.", table(keys)),
    });
    let doc = "The strategies, in the order of tables of results.";
    add(&mut properties, "strategies", described(doc, or_off(strategies, None)));

    let mut sweep = Map::new();
    add(&mut sweep, "grid", grid("Values of keys: a run for each combination."));
    add(&mut sweep, "zip", tables("Lists of equal length, whose values are taken together.", all(&["axes"])));
    add(
        &mut sweep,
        "include",
        tables("More points, for all strategies or for those that match.", all(&["case"])),
    );
    add(&mut sweep, "exclude", tables("Points that are left out.", all(&["case"])));
    let ablate = definitions.properties("sweep.ablate.", &Ablation::reference());
    add(&mut sweep, "ablate", described(Ablation::DOC, or_off(table(ablate), None)));
    let doc = "Values of keys: a run for each point and strategy.";
    add(&mut properties, "sweep", described(doc, or_off(table(sweep), None)));
    merged([table(properties), json!({ "definitions": definitions.0 })])
}

/// The keys that an experiment needs. No condition applies where a file, a strategy or a sweep may supply them.
fn needed() -> Value {
    let any = |keys: &[&str]| {
        let required: Vec<Value> = keys.iter().map(|key| json!({ "required": [key] })).collect();
        json!({ "not": { "anyOf": required } })
    };
    let strategies = |schema: Value| json!({ "strategies": { "additionalProperties": schema } });
    let inference = json!({ "what": { "not": { "const": Task::Inference.keyword() } } });
    let trains = json!({ "measure": { "properties": inference } });
    let run = Accepts::table_of_keys(run_in_file()).required();
    let strategy = Accepts::table_of_keys(strategy()).required();
    let of_run = merged([strategies(any(&["set", "sweep"])), trains]);
    let of_strategies = strategies(any(&["extends", "set", "sweep"]));
    json!({ "allOf": [
        {
            "if": any(&["extends"]),
            "then": { "required": ["strategies"], "properties": { "strategies": { "minProperties": 1 } } },
        },
        { "if": merged([any(&["extends", "sweep"]), json!({ "properties": of_run })]), "then": run },
        {
            "if": merged([any(&["extends", "defaults", "sweep"]), json!({ "properties": of_strategies })]),
            "then": { "properties": strategies(strategy) },
        },
    ] })
}

fn target_files() -> Value {
    let accepts = Accepts::table_of_keys(target_file());
    let own = |key: &DeclaredKey| (key.key.to_owned(), key.schema(&json!({})));
    let properties = accepts.keys.iter().map(own).collect();
    let needs_threads = json!({
        "if": { "properties": { "kind": { "const": DeviceKind::Cpu.keyword() } } },
        "then": { "required": ["threads"] },
    });
    merged([json!({ "type": "object" }), closed(properties), accepts.required(), needs_threads])
}
