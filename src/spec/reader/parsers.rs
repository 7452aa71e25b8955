//! Parsers of the values of keys.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::declare::{KeywordEnum, Writable};
use super::keys::{ValueParser, join};
use super::list::List;
use super::tree::{Value, quoted};
use base::rates::{BytesPerSecond, FlopsPerSecond};
use base::units::Bytes;

/// An integer in a range, as u64.
pub(crate) struct U64Range(pub(crate) RangeInclusive<u64>);

/// An integer in a range, as usize.
pub(crate) struct UsizeRange(pub(crate) RangeInclusive<usize>);

/// A number that satisfies a condition; `expected` describes it in error messages.
pub(crate) struct FloatRange {
    pub(crate) holds: fn(f64) -> bool,
    pub(crate) expected: &'static str,
}

/// A keyword of an enum.
pub(crate) struct Keyword<T>(PhantomData<T>);

pub(crate) const fn keyword<T>() -> Keyword<T> {
    Keyword(PhantomData)
}

/// `true` or `false`.
pub(crate) struct Boolean;

/// A non-empty string.
pub(crate) struct NonEmptyText;

/// Names of a model's layers, or patterns of names. Checked once the model is built.
pub(crate) const LAYERS: List<NonEmptyText> = List {
    of: "layers",
    example: "[\"embedding\"]",
    may_be_empty: true,
    may_repeat: false,
    element: NonEmptyText,
};

/// Names of values of a model's forward pass, or patterns of names.
pub(crate) const VALUES: List<NonEmptyText> = List {
    of: "values",
    example: "[\"logits\"]",
    may_be_empty: true,
    may_repeat: false,
    element: NonEmptyText,
};

/// A size in bytes, with its unit: "24 GiB".
pub(crate) struct SizeWithUnit;

/// A size in bytes, with its unit or as a plain number, that satisfies a condition; `expected` describes it in error
/// messages.
pub(crate) struct ByteSize {
    pub(crate) holds: fn(u64) -> bool,
    pub(crate) expected: &'static str,
}

/// A rate with its unit.
pub(crate) struct RateWithUnit<T> {
    expected: &'static str,
    rate: PhantomData<T>,
}

pub(crate) const BYTE_RATE: RateWithUnit<BytesPerSecond> = RateWithUnit {
    expected: "a rate with its unit, such as \"25 GB/s\" (10^9 bytes per second)",
    rate: PhantomData,
};
pub(crate) const FLOP_RATE: RateWithUnit<FlopsPerSecond> =
    RateWithUnit { expected: "a rate with its unit, such as \"90 GFLOP/s\"", rate: PhantomData };

/// The compute capability of a GPU: "9.0".
pub(crate) struct ComputeCapability;

/// Bounds that keep products of sizes within 64 bits; no machine comes near them.
pub(crate) const DIMENSION: UsizeRange = UsizeRange(1..=1 << 24);
pub(crate) const STEPS: UsizeRange = UsizeRange(1..=1 << 17);
pub(crate) const STEPS_OR_NONE: UsizeRange = UsizeRange(0..=1 << 17);
/// Steps of a training, which may be longer than the measured part.
pub(crate) const LONG: UsizeRange = UsizeRange(1..=1 << 32);
pub(crate) const LONG_OR_NONE: UsizeRange = UsizeRange(0..=1 << 32);
/// The non-negative integers of TOML.
pub(crate) const SEED: U64Range = U64Range(0..=i64::MAX as u64);

/// Devices store these numbers in f32, where they must not become 0 or infinite.
pub(crate) const POSITIVE: FloatRange = FloatRange {
    holds: |number| number as f32 > 0.0 && (number as f32).is_finite(),
    expected: "a number above 0 that an f32 can hold",
};
pub(crate) const NOT_NEGATIVE: FloatRange = FloatRange {
    holds: |number| number >= 0.0 && (number as f32).is_finite(),
    expected: "a number of at least 0 that an f32 can hold",
};
/// Decay rates of moments. Numbers that round to 1 in f32 are excluded: such a moment would never decay.
pub(crate) const DECAY_RATE: FloatRange = FloatRange {
    holds: |number| number >= 0.0 && (number as f32) < 1.0,
    expected: "a number from 0 to below 1 that does not round to 1 in f32",
};
pub(crate) const SHARE: FloatRange =
    FloatRange { holds: |number| number > 0.0 && number <= 1.0, expected: "a number above 0 and up to 1" };
pub(crate) const SHARE_OR_NONE: FloatRange =
    FloatRange { holds: |number| (0.0..=1.0).contains(&number), expected: "a number from 0 to 1" };

/// A loss scale, its backoff and its growth factor: devices store them in f32, where they must not become 0, 1 or
/// infinite.
pub(crate) const SCALE: FloatRange = FloatRange {
    holds: |number| number as f32 > 0.0 && (number as f32).is_finite(),
    expected: "a number above 0 and up to 3.4e38",
};
pub(crate) const BELOW_ONE: FloatRange = FloatRange {
    holds: |number| number as f32 > 0.0 && (number as f32) < 1.0,
    expected: "a number between 0 and 1 that rounds to neither in f32",
};
pub(crate) const ABOVE_ONE: FloatRange = FloatRange {
    holds: |number| number as f32 > 1.0 && number as f32 <= 65536.0,
    expected: "a number above 1 and up to 65536",
};

impl ValueParser for Boolean {
    type Output = bool;

    fn parse(&self, value: &Value) -> Option<bool> {
        match value {
            Value::Boolean(flag) => Some(*flag),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "true or false".to_string()
    }

    /// False, even if the default is true.
    fn off(&self) -> Option<bool> {
        Some(false)
    }
}

impl ValueParser for U64Range {
    type Output = u64;

    fn parse(&self, value: &Value) -> Option<u64> {
        let Value::Integer(integer) = value else { return None };
        u64::try_from(*integer).ok().filter(|number| self.0.contains(number))
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

impl ValueParser for UsizeRange {
    type Output = usize;

    fn parse(&self, value: &Value) -> Option<usize> {
        let Value::Integer(integer) = value else { return None };
        usize::try_from(*integer).ok().filter(|number| self.0.contains(number))
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

impl ValueParser for FloatRange {
    type Output = f64;

    fn parse(&self, value: &Value) -> Option<f64> {
        let number = match value {
            Value::Integer(integer) => *integer as f64,
            Value::Float(float) => *float,
            _ => return None,
        };
        (self.holds)(number).then_some(number)
    }

    fn expected(&self) -> String {
        self.expected.to_string()
    }
}

impl<T: KeywordEnum> ValueParser for Keyword<T> {
    type Output = T;

    fn parse(&self, value: &Value) -> Option<T> {
        let Value::Text(text) = value else { return None };
        T::ALL.iter().copied().find(|meaning| meaning.keyword() == text)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = self.keywords().into_iter().map(quoted).collect();
        join(&words, "or")
    }

    fn keywords(&self) -> Vec<&'static str> {
        T::ALL.iter().map(|meaning| meaning.keyword()).collect()
    }
}

impl ValueParser for NonEmptyText {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        match value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "non-empty text in quotes".to_string()
    }
}

impl ValueParser for SizeWithUnit {
    type Output = Bytes;

    fn parse(&self, value: &Value) -> Option<Bytes> {
        match value {
            Value::Text(text) => text.parse().ok().filter(|bytes: &Bytes| bytes.0 > 0),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "a size with its unit, such as \"24 GiB\" (2^30 bytes) or \"24 GB\" (10^9 bytes)".to_string()
    }
}

impl ValueParser for ByteSize {
    type Output = Bytes;

    fn parse(&self, value: &Value) -> Option<Bytes> {
        let bytes = match value {
            Value::Text(text) => text.parse().ok()?,
            Value::Integer(integer) => Bytes(u64::try_from(*integer).ok()?),
            _ => return None,
        };
        (bytes <= Bytes::MOST && (self.holds)(bytes.0)).then_some(bytes)
    }

    fn expected(&self) -> String {
        format!(
            "{}, such as \"24 GiB\" (2^30 bytes), \"24 GB\" (10^9 bytes) or a number of bytes",
            self.expected
        )
    }
}

impl<T: FromStr> ValueParser for RateWithUnit<T> {
    type Output = T;

    fn parse(&self, value: &Value) -> Option<T> {
        match value {
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        self.expected.to_owned()
    }

    fn meant(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        let per_second = Value::Text(format!("{}/s", text.trim()));
        self.parse(&per_second).map(|_| per_second.to_string())
    }
}

impl ValueParser for ComputeCapability {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        let (major, minor) = text.split_once('.')?;
        let number = |digits: &str| digits.parse().ok().filter(|number: &u32| number.to_string() == digits);
        number(major)?;
        number(minor)?;
        Some(text.clone())
    }

    fn expected(&self) -> String {
        "a compute capability in quotes, such as \"8.6\"".to_owned()
    }

    fn meant(&self, value: &Value) -> Option<String> {
        let Value::Float(number) = value else { return None };
        self.parse(&Value::Text(format!("{number:?}"))).map(|text| quoted(&text))
    }
}

impl Writable for Boolean {
    fn text(&self, value: &bool) -> String {
        value.to_string()
    }
}

impl Writable for U64Range {
    fn text(&self, value: &u64) -> String {
        value.to_string()
    }
}

impl Writable for UsizeRange {
    fn text(&self, value: &usize) -> String {
        value.to_string()
    }
}

impl Writable for FloatRange {
    /// The shortest text that reads back as the same number.
    fn text(&self, value: &f64) -> String {
        format!("{value:?}")
    }
}

impl Writable for NonEmptyText {
    fn text(&self, value: &String) -> String {
        quoted(value)
    }
}

impl<T: KeywordEnum> Writable for Keyword<T> {
    fn text(&self, value: &T) -> String {
        quoted(value.keyword())
    }
}
