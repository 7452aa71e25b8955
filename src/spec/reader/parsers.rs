//! Parsers of the values of keys.

use std::marker::PhantomData;
use std::ops::Bound::{self, Excluded, Included};
use std::ops::{RangeBounds as _, RangeInclusive};
use std::str::FromStr;

use super::declare::{KeywordEnum, Writable};
use super::forms::{Form, NOT_EMPTY};
use super::keys::{ValueParser, join};
use super::list::List;
use super::tree::{Value, quoted};
use base::rates::{BytesPerSecond, FlopsPerSecond};
use base::units::Bytes;

/// An integer in a range, as u64.
pub(crate) struct U64Range(pub(crate) RangeInclusive<u64>);

/// An integer in a range, as usize.
pub(crate) struct UsizeRange(pub(crate) RangeInclusive<usize>);

/// A number between two bounds; `expected` describes it in error messages.
pub(crate) struct FloatRange {
    pub(crate) bounds: (Bound<f64>, Bound<f64>),
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
    pattern: fn() -> String,
    rate: PhantomData<T>,
}

pub(crate) const BYTE_RATE: RateWithUnit<BytesPerSecond> = RateWithUnit {
    expected: "a rate with its unit, such as \"25 GB/s\" (10^9 bytes per second)",
    pattern: BytesPerSecond::pattern,
    rate: PhantomData,
};
pub(crate) const FLOP_RATE: RateWithUnit<FlopsPerSecond> = RateWithUnit {
    expected: "a rate with its unit, such as \"90 GFLOP/s\"",
    pattern: FlopsPerSecond::pattern,
    rate: PhantomData,
};

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

/// Half a unit in the last place of 1 as an f32.
pub(crate) const HALF_ULP: f64 = f32::EPSILON as f64 / 2.0;
/// The largest number that rounds to 0 in f32: 2^-150, half of the smallest f32.
const ROUNDS_TO_0: f64 = f64::from_bits((1023 - 150) << 52);
/// The smallest number that rounds to infinity in f32: 2^103 is half a unit in the last place of the largest f32.
pub(crate) const ROUNDS_TO_INFINITY: f64 = f32::MAX as f64 + f64::from_bits((1023 + 103) << 52);
/// The smallest number that rounds to 1 in f32.
pub(crate) const ROUNDS_TO_1: f64 = 1.0 - HALF_ULP / 2.0;

/// Devices store these numbers in f32, where they must not become 0 or infinite.
pub(crate) const POSITIVE: FloatRange = FloatRange {
    bounds: (Excluded(ROUNDS_TO_0), Excluded(ROUNDS_TO_INFINITY)),
    expected: "a number above 0 that an f32 can hold",
};
pub(crate) const NOT_NEGATIVE: FloatRange = FloatRange {
    bounds: (Included(0.0), Excluded(ROUNDS_TO_INFINITY)),
    expected: "a number of at least 0 that an f32 can hold",
};
/// Decay rates of moments. Numbers that round to 1 in f32 are excluded: such a moment would never decay.
pub(crate) const DECAY_RATE: FloatRange = FloatRange {
    bounds: (Included(0.0), Excluded(ROUNDS_TO_1)),
    expected: "a number from 0 to below 1 that does not round to 1 in f32",
};
pub(crate) const SHARE: FloatRange =
    FloatRange { bounds: (Excluded(0.0), Included(1.0)), expected: "a number above 0 and up to 1" };
pub(crate) const SHARE_OR_NONE: FloatRange =
    FloatRange { bounds: (Included(0.0), Included(1.0)), expected: "a number from 0 to 1" };

/// A loss scale, its backoff and its growth factor: devices store them in f32, where they must not become 0, 1 or
/// infinite.
pub(crate) const SCALE: FloatRange =
    FloatRange { bounds: POSITIVE.bounds, expected: "a number above 0 and up to 3.4e38" };
pub(crate) const BELOW_ONE: FloatRange = FloatRange {
    bounds: (Excluded(ROUNDS_TO_0), Excluded(ROUNDS_TO_1)),
    expected: "a number between 0 and 1 that rounds to neither in f32",
};
pub(crate) const ABOVE_ONE: FloatRange = FloatRange {
    bounds: (Excluded(1.0 + HALF_ULP), Included(65536.0)),
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::Boolean]
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::Integer(self.0.clone())]
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::Integer(*self.0.start() as u64..=*self.0.end() as u64)]
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
        self.contains(number).then_some(number)
    }

    fn expected(&self) -> String {
        self.expected.to_string()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::Number(self.bounds)]
    }
}

impl FloatRange {
    pub(crate) fn contains(&self, number: f64) -> bool {
        self.bounds.contains(&number)
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::words(&self.keywords())]
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::matching(NOT_EMPTY.to_owned())]
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::matching(Bytes::positive_pattern())]
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::matching(Bytes::pattern()), Form::Integer(0..=Bytes::MOST.0)]
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

    fn forms(&self) -> Vec<Form> {
        vec![Form::matching((self.pattern)())]
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

    fn forms(&self) -> Vec<Form> {
        let number = "(0|[1-9][0-9]*)";
        vec![Form::matching(format!("^{number}\\.{number}$"))]
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

impl Writable for SizeWithUnit {
    fn text(&self, value: &Bytes) -> String {
        quoted(&value.exact())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds of numbers that devices store in f32.
    #[test]
    fn bounds_follow_the_rounding_to_f32() {
        let numbers = [ROUNDS_TO_0, ROUNDS_TO_INFINITY, ROUNDS_TO_1, 1.0 + HALF_ULP, 0.0, 1.0];
        for number in numbers.into_iter().flat_map(|number| [number.next_down(), number, number.next_up()]) {
            let rounded = number as f32;
            assert_eq!(POSITIVE.contains(number), rounded > 0.0 && rounded.is_finite(), "{number:e}");
            assert_eq!(NOT_NEGATIVE.contains(number), number >= 0.0 && rounded.is_finite(), "{number:e}");
            assert_eq!(DECAY_RATE.contains(number), number >= 0.0 && rounded < 1.0, "{number:e}");
            assert_eq!(BELOW_ONE.contains(number), rounded > 0.0 && rounded < 1.0, "{number:e}");
            assert_eq!(ABOVE_ONE.contains(number), rounded > 1.0 && number <= 65536.0, "{number:e}");
        }
    }
}
