//! A serde deserializer for one CSV cell: text, or a missing value if it is empty.
//!
//! The `csv` crate deserializes structs as well, but its errors do not report the column, nor a missing column, in a
//! form that a program can use.

use std::fmt;

use base::units::{Bytes, numbers};
use serde::de::value::StrDeserializer;
use serde::de::{self, IntoDeserializer, Visitor};

/// An invalid record.
#[derive(Debug, PartialEq)]
pub(super) enum CellError {
    /// A required column is missing.
    Missing(&'static str),
    Problem(String),
}

impl fmt::Display for CellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CellError::Missing(column) => write!(f, "the column `{column}` is missing"),
            CellError::Problem(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for CellError {}

impl de::Error for CellError {
    fn custom<T: fmt::Display>(message: T) -> CellError {
        CellError::Problem(message.to_string())
    }

    fn missing_field(field: &'static str) -> CellError {
        CellError::Missing(field)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Cell<'a>(pub(super) &'a str);

impl<'a> IntoDeserializer<'a, CellError> for Cell<'a> {
    type Deserializer = Cell<'a>;

    fn into_deserializer(self) -> Cell<'a> {
        self
    }
}

impl Cell<'_> {
    /// What to write for a number with a decimal comma, separators of thousands or a unit of size.
    fn advice<T: std::str::FromStr>(&self) -> String {
        let size = self.0.parse().ok().or_else(|| Bytes::meant(self.0)?.parse().ok());
        let size = size.map(|Bytes(bytes)| bytes.to_string());
        let numbers = numbers(self.0);
        let texts = numbers.iter().map(f64::to_string);
        let written: Vec<String> =
            size.into_iter().chain(texts).filter(|text| text.parse::<T>().is_ok()).collect();
        match (written.as_slice(), numbers.first()) {
            ([], None) => String::new(),
            ([], Some(number)) if number.to_string() != self.0 => format!("; it means {number}"),
            ([], Some(_)) => String::new(),
            (written, _) => format!("; write {}", written.join(" or ")),
        }
    }

    fn parse<T: std::str::FromStr>(&self, expected: &str) -> Result<T, CellError> {
        let problem = || CellError::Problem(format!("`{}` is not {expected}{}", self.0, self.advice::<T>()));
        self.0.parse().map_err(|_| problem())
    }
}

impl<'de> de::Deserializer<'de> for Cell<'de> {
    type Error = CellError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CellError> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CellError> {
        if self.0.is_empty() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CellError> {
        visitor.visit_bool(self.parse("true or false")?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CellError> {
        visitor.visit_u64(self.parse("a whole number")?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CellError> {
        visitor.visit_f64(self.parse("a number")?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CellError> {
        StrDeserializer::new(self.0).deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
