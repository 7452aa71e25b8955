//! What configurations say of activations.

use super::fields::{Fields, Mistake};
use crate::model::MlpActivation;
use ops::Activation;

/// The activation that a field names, which the family has by itself or as a gate.
pub(super) fn read(
    fields: &Fields,
    field: &str,
    default: &str,
    of: fn(Activation) -> MlpActivation,
) -> Result<MlpActivation, Mistake> {
    let names = |function: Activation| {
        function.definition().hugging_face.iter().map(move |name| (*name, of(function)))
    };
    let known: Vec<(&str, MlpActivation)> = Activation::ALL.into_iter().flat_map(names).collect();
    fields.one_of(field, default, &known)
}
