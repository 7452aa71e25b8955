//! Attention windows: which blocks attend to a window and which to the full context.

use super::fields::{ConfigError, ConfigFields};

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// For each block whether it attends to a window, if the configuration lists it.
pub(super) fn listed(fields: &ConfigFields, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(words) = fields.strings("layer_types")? else { return Ok(None) };
    let known = words.len() == layers && words.iter().all(|word| [SLIDING, FULL].contains(&word.as_str()));
    if !known {
        let expected = format!("a list of \"{SLIDING}\" and \"{FULL}\", one for each of the {layers} layers");
        return Err(fields.unsupported("layer_types", &expected));
    }
    Ok(Some(words.iter().map(|word| word == SLIDING).collect()))
}

/// `window` and `global_every`, given for each block whether it attends to the window. Fails unless every n-th block,
/// and no other, attends to the full context.
pub(super) fn regular(
    fields: &ConfigFields,
    field: &str,
    window: Option<usize>,
    slides: &[bool],
) -> Result<(Option<usize>, Option<usize>), ConfigError> {
    if !slides.contains(&true) {
        return Ok((None, None));
    }
    let Some(window) = window else { return Err(fields.missing("sliding_window")) };
    if !slides.contains(&false) {
        return Ok((Some(window), None));
    }
    let fits = |every: &usize| {
        slides.iter().zip(1..).all(|(slides, number): (_, usize)| *slides != number.is_multiple_of(*every))
    };
    let every = (2..=slides.len()).find(fits);
    let expected = "full attention in every n-th block and windows in all others";
    every.map(|every| (Some(window), Some(every))).ok_or_else(|| fields.unsupported(field, expected))
}
