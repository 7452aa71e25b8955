//! Hints for invalid values and misspelt names.

use super::keys::join;
use super::tree::{Table, TableEntry, Value};
use base::brief;
use base::units::{Bytes, numbers};
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

/// Values that a value of another notation may mean: a number in quotes, with a decimal comma or with separators of
/// thousands, a size with a unit of other letters, a boolean of Python.
pub(super) fn other_notation(value: &Value) -> Vec<Value> {
    /// Larger numbers are not whole numbers of a key.
    const LARGEST: f64 = (1u64 << 53) as f64;
    let numbers = match value {
        Value::Text(text) => numbers(text),
        Value::Float(number) => vec![*number],
        _ => Vec::new(),
    };
    let mut meant: Vec<Value> = Vec::new();
    for number in numbers {
        if number.fract() == 0.0 && number.abs() < LARGEST {
            meant.push(Value::Integer(number as i128));
        } else {
            meant.push(Value::Float(number));
        }
    }
    if let Value::Text(text) = value {
        meant.extend(Bytes::meant(text).map(Value::Text));
        match text.to_lowercase().as_str() {
            "true" | "yes" | "on" => meant.push(Value::Boolean(true)),
            "false" | "no" => meant.push(Value::Boolean(false)),
            _ => {}
        }
    }
    meant
}

/// `key = value`, for a line that is not TOML because of its value's notation: `lr = 0,1`, `lr: 0.1`, `bias = True`,
/// `precision = bf16`.
pub(super) fn other_line(line: &str) -> Option<String> {
    let is_assigned = line.contains('=');
    let by_space = || line.trim().split_once(' ').filter(|(_, value)| !value.contains(' '));
    let (key, value) = line.split_once(['=', ':']).or_else(by_space)?;
    let value = value.split('#').next()?.trim().trim_end_matches([';', ',']).trim_end();
    let is_key =
        |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let (key, is_plain) =
        (key.trim(), !value.is_empty() && !value.contains(['"', '\'', '[', ']', '{', '}', '=']));
    if !is_key(key) || !is_plain {
        return decimal_comma(line);
    }
    let text = Value::Text(value.to_owned());
    let values = match value {
        "None" | "none" | "null" | "nil" | "~" => vec![Value::Text("off".to_owned())],
        "true" | "false" => vec![Value::Boolean(value == "true")],
        _ => other_notation(&text),
    };
    let values = if values.is_empty() { vec![text] } else { values };
    if is_assigned && values.iter().any(|one| one.to_string() == value) {
        return None;
    }
    let lines: Vec<String> = values.iter().map(|value| format!("`{key} = {value}`")).collect();
    Some(join(&lines, "or"))
}

/// `0.1` for `= 0,1` within an inline table.
fn decimal_comma(line: &str) -> Option<String> {
    let end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    line.split('=').skip(1).map(str::trim_start).find_map(|value| {
        let (whole, rest) = value.split_at(end(value));
        let rest = rest.strip_prefix(',')?;
        let decimals = &rest[..end(rest)];
        (!whole.is_empty() && !decimals.is_empty()).then(|| format!("`{whole}.{decimals}`"))
    })
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

/// The hint for an unknown name without a near known one: the three most similar names, those with a word in common
/// first.
pub(crate) fn similar(name: &str, known: &[&str]) -> String {
    const MOST: usize = 3;
    let name = plain(brief::line(name).as_ref());
    let shares_word = |known: &str| known.split('_').any(|word| name.split('_').any(|own| own == word));
    let mut all = known.to_vec();
    all.sort_by_cached_key(|known| (!shares_word(known), strsim::damerau_levenshtein(&name, known)));
    match all.len() {
        ..=MOST => format!("use {}", list(&all)),
        _ => format!("the most similar names are {}", list(&all[..MOST])),
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
