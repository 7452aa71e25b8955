//! Which blocks see all and which a window: by a list of all blocks.

use super::fields::{Fields, Mistake};

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Whether each block sees a window alone, if that is listed.
pub(super) fn listed(fields: &Fields, layers: usize) -> Result<Option<Vec<bool>>, Mistake> {
    let Some(words) = fields.words("layer_types")? else { return Ok(None) };
    let known = words.len() == layers && words.iter().all(|word| [SLIDING, FULL].contains(&word.as_str()));
    if !known {
        let expected = format!("a list of \"{SLIDING}\" and \"{FULL}\", one for each of the {layers} layers");
        return Err(fields.refuse("layer_types", &expected));
    }
    Ok(Some(words.iter().map(|word| word == SLIDING).collect()))
}

/// `window` and `global_every` of blocks that each see so many positions alone, or all.
pub(super) fn regular(
    fields: &Fields,
    field: &str,
    window: Option<usize>,
    slides: &[bool],
) -> Result<(Option<usize>, Option<usize>), Mistake> {
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
    let expected = "blocks of which the last of so many sees all, and the others a window";
    every.map(|every| (Some(window), Some(every))).ok_or_else(|| fields.refuse(field, expected))
}
