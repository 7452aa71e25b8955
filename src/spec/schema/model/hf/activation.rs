//! Activations of configurations.

use super::fields::ConfigFields;
use crate::schema::model::MlpActivation;
use ops::Activation;

/// The activation in a field; `of` makes it elementwise or a gate, as the family uses it.
pub(super) fn read(
    fields: &ConfigFields,
    field: &str,
    default: &str,
    of: fn(Activation) -> MlpActivation,
) -> MlpActivation {
    let names = |function: Activation| {
        function.definition().hugging_face.iter().map(move |name| (*name, of(function)))
    };
    let known: Vec<(&str, MlpActivation)> = Activation::ALL.into_iter().flat_map(names).collect();
    fields.one_of(field, default, &known).unwrap_or(of(Activation::GeluTanh))
}
