//! One field of a JSON object. Other fields are skipped, not stored: a line may be long.

use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Maximum number of fields in an error's help.
const MOST_NAMED: usize = 8;

/// Returns the text of a field, or an error message with its help.
pub(super) fn read(line: &[u8], field: &str) -> Result<String, (String, String)> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let fields = json.deserialize_map(FieldVisitor { field });
    let fields = fields.and_then(|fields| json.end().map(|()| fields)).map_err(|error| {
        let help =
            "each line must be an object such as {\"text\": \"...\"}; without jsonl, a file is one text";
        (format!("it is not a JSON object: {error}"), help.to_owned())
    })?;
    let help = match fields.texts.as_slice() {
        [] => "use a field that has text in every line".to_owned(),
        texts => format!("its fields with text are `{}`", texts.join("`, `")),
    };
    match fields.found {
        Some(FieldValue::Text(text)) => Ok(text),
        Some(FieldValue::Other(kind)) => Err((format!("its `{field}` is {kind}, not text"), help)),
        None => Err((format!("it has no field `{field}`"), help)),
    }
}

struct Fields {
    found: Option<FieldValue>,
    /// Names of other fields that have text.
    texts: Vec<String>,
}

/// The value of a field; of other values than text, the kind.
enum FieldValue {
    Text(String),
    Other(&'static str),
}

struct FieldVisitor<'a> {
    field: &'a str,
}

impl<'de> Visitor<'de> for FieldVisitor<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields { found: None, texts: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            if name == self.field {
                fields.found = Some(map.next_value_seed(ValueVisitor { keep: true })?);
            } else if fields.texts.len() < MOST_NAMED {
                if let FieldValue::Text(_) = map.next_value_seed(ValueVisitor { keep: false })? {
                    fields.texts.push(name);
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        fields.texts.sort();
        Ok(fields)
    }
}

/// Reads a value; without `keep`, its text is empty.
struct ValueVisitor {
    keep: bool,
}

impl<'de> serde::de::DeserializeSeed<'de> for ValueVisitor {
    type Value = FieldValue;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<FieldValue, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(if self.keep { text.to_owned() } else { String::new() }))
    }

    fn visit_unit<E: Error>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("null"))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("true or false"))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("a number"))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("a number"))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("a number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FieldValue, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldValue, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Other("an object"))
    }
}
