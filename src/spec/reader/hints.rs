//! Hints for invalid values and misspelt names.

use super::keys::join;
use super::tree::{Table, TableEntry, Value};
use base::brief;
use ops::Activation;

pub(crate) const NOT_YET: &str = "is not supported by this version of runner";

/// Keywords, and their names in other tools.
const OTHER_KEYWORDS: &[(&str, &[&str])] = &[
    ("fp32", &["32", "32-true", "f32", "float", "float32", "full", "single", "torch.float32"]),
    ("tf32", &["tfloat32"]),
    ("bf16", &["bf16-mixed", "bfloat16", "mixed_bfloat16", "torch.bfloat16"]),
    ("fp16", &["16", "16-mixed", "f16", "float16", "half", "mixed_float16", "torch.float16"]),
    ("block", &["all", "blocks", "full", "layer", "layers"]),
    ("none", &["no", "off"]),
    ("cuda", &["gpu", "nvidia"]),
    ("nf4", &["4bit", "fp4", "int4", "normalfloat4"]),
    ("int8", &["8bit", "i8"]),
    ("layer", &["layer_norm", "layernorm"]),
    ("rms", &["rms_norm", "rmsnorm"]),
    ("rotary", &["rope", "rotary_embedding"]),
    ("learned", &["absolute", "embedding"]),
    ("8bit", &["8-bit", "i8", "int8", "u8", "uint8"]),
];

/// Keys by which other formats select a variant.
const VARIANT_KEYS: [&str; 4] = ["type", "kind", "name", "class"];

/// The keyword that an invalid value probably means.
pub(super) fn nearest_keyword(value: &Value, words: &[&'static str]) -> Option<&'static str> {
    match value {
        Value::Text(text) => other_keyword(text, words).or_else(|| nearest(text, words)),
        Value::Integer(number) => other_keyword(&number.to_string(), words),
        // A boolean for a choice with "none": false means "none", true the first other keyword.
        Value::Boolean(on) if words.contains(&"none") => {
            words.iter().copied().find(|word| (*word != "none") == *on)
        }
        _ => None,
    }
}

/// The keyword that is called so in other tools.
pub(crate) fn other_keyword(text: &str, words: &[&'static str]) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let other = OTHER_KEYWORDS.iter().copied().chain(activation_names());
    let mut other = other.filter(|(_, others)| others.contains(&lower.as_str()));
    other.find_map(|(word, _)| words.iter().copied().find(|known| *known == word))
}

/// The keywords of activations, and their names in other tools.
fn activation_names() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let definitions = Activation::ALL.into_iter().map(Activation::definition);
    definitions
        .flat_map(|function| [function.hugging_face, function.elsewhere].map(|names| (function.word, names)))
}

/// Whether a value probably means "off".
pub(super) fn means_off(value: &Value) -> bool {
    match value {
        Value::Integer(0) | Value::Boolean(false) => true,
        Value::Float(number) => *number == 0.0,
        Value::Text(text) => ["none", "null", "no", "false", "disabled", ""].contains(&text.as_str()),
        _ => false,
    }
}

/// The key that selects a variant, as in `[model] type = "transformer"`, and the hint.
pub(super) fn variant_named_by_key<'a>(
    table: &'a Table,
    places: &[(&str, &'static str)],
) -> Option<(&'a TableEntry, String)> {
    let named = |entry: &&TableEntry| {
        VARIANT_KEYS.contains(&entry.key.as_str()) && matches!(entry.node.value, Value::Text(_))
    };
    let entry = table.entries.iter().find(named)?;
    let Value::Text(text) = &entry.node.value else { return None };
    let meant = places.iter().filter(|(name, _)| name == text);
    let mut headers: Vec<String> = meant.map(|(_, place)| (*place).to_owned()).collect();
    if headers.is_empty() {
        headers = places.iter().map(|(_, place)| (*place).to_owned()).collect();
    }
    Some((entry, format!("write {} on a line of its own, and its keys below it", join(&headers, "or"))))
}

/// The nearest known name, if it is near enough. Long names match nothing: a comparison takes time and memory
/// proportional to the product of the lengths.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    const LONGEST: usize = 100;
    let distance = |known: &str| strsim::damerau_levenshtein(name, known);
    let comparable = known.iter().copied().filter(|known| name.len().max(known.len()) <= LONGEST);
    let near = comparable.min_by_key(|known| distance(known))?;
    (distance(near) <= 1 + near.len() / 4).then_some(near)
}

/// The hint for a name that is not near to a known one: the most similar three, those with a word in common first.
pub(crate) fn similar(name: &str, known: &[&str]) -> String {
    const MOST: usize = 3;
    let name = plain(brief::line(name).as_ref());
    let shares_word = |known: &str| known.split('_').any(|word| name.split('_').any(|own| own == word));
    let mut all = known.to_vec();
    all.sort_by_cached_key(|known| (!shares_word(known), strsim::damerau_levenshtein(&name, known)));
    match all.len() {
        ..=MOST => format!("use {}", list(&all)),
        _ => format!("the most similar keys are {}", list(&all[..MOST])),
    }
}

/// A name as in the tables of other names.
pub(crate) fn plain(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// `a`, `b` or `c`
pub(crate) fn list<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    join(&quoted, "or")
}
