//! JSON as Python writes it.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The numbers that Python writes although JSON has no form for them.
const NOT_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses an object. Infinities and NaN become words, so that a field that is read as a number refuses them.
///
/// # Errors
/// The text is not a JSON object.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(&quoted(text)) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("it is JSON, but not an object".to_owned()),
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

/// The text with quotes around infinities and NaN outside of strings. Lines stay.
fn quoted(text: &str) -> Cow<'_, str> {
    if !NOT_FINITE.iter().any(|word| text.contains(word)) {
        return Cow::Borrowed(text);
    }
    let (mut quoted, mut rest, mut in_string) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        let word = NOT_FINITE.iter().find(|word| !in_string && rest.starts_with(**word));
        let length = match word {
            Some(word) => word.len(),
            // An escaped character does not end a string.
            None if in_string && c == '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            None => c.len_utf8(),
        };
        in_string ^= c == '"';
        let mark = if word.is_some() { "\"" } else { "" };
        quoted.extend([mark, &rest[..length], mark]);
        rest = &rest[length..];
    }
    Cow::Owned(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_become_words() {
        let map =
            object("{\"a\": NaN, \"b\": [-Infinity,Infinity], \"\\\"NaN\": \"Infinity \\\\\", \"ü\": 1}");
        let expected = serde_json::json!({
            "a": "NaN", "b": ["-Infinity", "Infinity"], "\"NaN": "Infinity \\", "ü": 1,
        });
        assert_eq!(map.map(Value::Object), Ok(expected));
        assert!(object("{\"a\": Nan}").unwrap_err().starts_with("it is not JSON"));
    }
}
