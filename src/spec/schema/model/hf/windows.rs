//! Attention windows: which blocks attend to a window and which to the full context.

use super::fields::ConfigFields;

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// The keys of `[model.transformer]` about windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Windows {
    pub(super) window: Option<usize>,
    pub(super) global_every: Option<usize>,
    pub(super) global_first: Option<usize>,
}

/// For each block whether it attends to a window, if the configuration lists it.
pub(super) fn listed(fields: &ConfigFields, layers: usize) -> Option<Vec<bool>> {
    let words = fields.words("layer_types")?;
    let known = words.len() == layers && words.iter().all(|word| [SLIDING, FULL].contains(&word.as_str()));
    if !known {
        let expected = format!("a list of \"{SLIDING}\" and \"{FULL}\", one for each of the {layers} layers");
        fields.unsupported("layer_types", &expected);
        return None;
    }
    Some(words.iter().map(|word| word == SLIDING).collect())
}

/// The keys for blocks of which each attends to the window or not. An error unless every n-th block, from some block on,
/// and no other attends to the full context.
pub(super) fn regular(fields: &ConfigFields, field: &str, window: Option<usize>, slides: &[bool]) -> Windows {
    if !slides.contains(&true) {
        return Windows::default();
    }
    if window.is_none() {
        fields.missing("sliding_window");
    }
    if !slides.contains(&false) {
        return Windows { window, ..Windows::default() };
    }
    let first = 1 + slides.iter().position(|slides| !slides).unwrap_or(0);
    let fits = |every: &usize| {
        slides
            .iter()
            .zip(1..)
            .all(|(slides, number): (_, usize)| *slides != (number % every == first % every))
    };
    match (first.max(2)..=slides.len()).find(fits) {
        Some(every) => {
            let global_first = Some(first).filter(|first| *first != every);
            Windows { window, global_every: Some(every), global_first }
        }
        None => {
            fields.unsupported(field, "full attention in every n-th block and windows in all others");
            Windows::default()
        }
    }
}
