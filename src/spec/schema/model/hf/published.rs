//! Built-in configurations of published models, in place of a `config.json`.

use serde_json::{Map, Value};

use super::fields::ConfigError;
use super::{Described, Hf, ModelFamily, describe};
use crate::reader::declare::KeywordEnum;
use crate::reader::hints::nearest;
use crate::schema::model::Model;

/// The published configurations: the fields that change the computation.
const PUBLISHED: &str = include_str!("published.json");

struct Published {
    name: String,
    config: Map<String, Value>,
}

/// A built-in configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltInModel {
    /// Its name for `model.hf`.
    pub name: String,
    pub family: ModelFamily,
    /// The model at its full context, with its dropout.
    pub model: Model,
}

/// All built-in configurations.
///
/// # Errors
/// The first that is invalid.
pub fn built_in_models() -> Result<Vec<BuiltInModel>, String> {
    let model = |Published { name, config }: Published| {
        let model_type = config.get("model_type").and_then(Value::as_str);
        let is_family = |family: &&ModelFamily| Some(family.keyword()) == model_type;
        let family = *ModelFamily::ALL.iter().find(is_family).ok_or("an unknown family")?;
        let messages = |errors: Vec<ConfigError>| {
            errors.into_iter().map(|error| error.message).collect::<Vec<_>>().join("; ")
        };
        let Described { model, .. } = describe(&config, &Hf::default()).map_err(messages)?;
        Ok(BuiltInModel { name, family, model: Model::Transformer(model) })
    };
    published().into_iter().map(model).collect()
}

/// The configuration of this name, as JSON.
pub(super) fn find(name: &str) -> Option<String> {
    published()
        .into_iter()
        .find(|published| published.name == name)
        .map(|published| Value::Object(published.config).to_string())
}

/// The hint for a name that no built-in configuration has.
pub(super) fn near(name: &str) -> String {
    let known = published();
    let known: Vec<&str> = known.iter().map(|published| published.name.as_str()).collect();
    let near = nearest(&name.to_lowercase(), &known).map(|near| format!("did you mean \"{near}\"? "));
    format!("{}`runner models` lists the names; a folder is written as ./{name}", near.unwrap_or_default())
}

fn published() -> Vec<Published> {
    let models: Vec<Value> = serde_json::from_str(PUBLISHED).unwrap_or_default();
    let published = |model: Value| {
        let name = model.get("name")?.as_str()?.to_owned();
        Some(Published { name, config: model.get("config")?.as_object()?.clone() })
    };
    models.into_iter().filter_map(published).collect()
}
