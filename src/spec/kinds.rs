//! What keys take.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use super::declare::{Words, Writable};
use super::reader::{Kind, join};
use super::tree::{Value, quoted};
use base::units::Bytes;
use device::{OLDEST_CARD, Version};

/// A whole number in a range.
pub(crate) struct Whole(pub(crate) RangeInclusive<u64>);

/// A count in a range.
pub(crate) struct Count(pub(crate) RangeInclusive<usize>);

/// A number with a condition on it, in words.
pub(crate) struct Number {
    pub(crate) holds: fn(f64) -> bool,
    pub(crate) expected: &'static str,
}

/// A word out of those of an enum.
pub(crate) struct Word<T>(PhantomData<T>);

pub(crate) const fn word<T>() -> Word<T> {
    Word(PhantomData)
}

/// True or false.
pub(crate) struct Flag;

/// Any text but the empty one.
pub(crate) struct Text;

/// A list of texts, none of them empty, and an example of one.
pub(crate) struct Texts {
    pub(crate) of: &'static str,
    pub(crate) example: &'static str,
}

/// Names of a model's layers, and patterns of names. Which there are is known once the model is.
pub(crate) const LAYERS: Texts = Texts { of: "layers", example: "embedding" };

/// Names of values of a model's forward pass, and patterns of names.
pub(crate) const VALUES: Texts = Texts { of: "values", example: "logits" };

/// A size in bytes, with its unit.
pub(crate) struct Size;

/// A size in bytes, with its unit or as a plain number, with a condition on it, in words.
pub(crate) struct Amount {
    pub(crate) holds: fn(u64) -> bool,
    pub(crate) expected: &'static str,
}

/// A card's compute capability: `9.0`.
pub(crate) struct Capability;

/// Bounds that keep products of sizes within 64 bits; no machine comes near them.
pub(crate) const DIMENSION: Count = Count(1..=1 << 24);
pub(crate) const STEPS: Count = Count(1..=1 << 17);
pub(crate) const STEPS_OR_NONE: Count = Count(0..=1 << 17);
/// Of a training that may be longer than what is measured of it.
pub(crate) const LONG: Count = Count(1..=1 << 32);
pub(crate) const LONG_OR_NONE: Count = Count(0..=1 << 32);
/// What TOML integers reach.
pub(crate) const SEED: Whole = Whole(0..=i64::MAX as u64);

/// What devices have in f32, where it must not become 0 or infinite.
pub(crate) const POSITIVE: Number = Number {
    holds: |number| number as f32 > 0.0 && (number as f32).is_finite(),
    expected: "a number above 0 that an f32 can hold",
};
pub(crate) const NOT_NEGATIVE: Number = Number {
    holds: |number| number >= 0.0 && (number as f32).is_finite(),
    expected: "a number of at least 0 that an f32 can hold",
};
/// Of moments that decay: 1, which numbers near it are in f32, would never forget.
pub(crate) const DECAY_RATE: Number = Number {
    holds: |number| number >= 0.0 && (number as f32) < 1.0,
    expected: "a number from 0 to below 1 that an f32 tells from 1",
};
pub(crate) const SHARE: Number =
    Number { holds: |number| number > 0.0 && number <= 1.0, expected: "a number above 0 and up to 1" };
pub(crate) const SHARE_OR_NONE: Number =
    Number { holds: |number| (0.0..=1.0).contains(&number), expected: "a number from 0 to 1" };

/// A scale, what shrinks it, and what grows it: devices have them in f32, where they must not become 0, 1 or infinite.
pub(crate) const SCALE: Number = Number {
    holds: |number| number as f32 > 0.0 && (number as f32).is_finite(),
    expected: "a number above 0 and up to 3.4e38",
};
pub(crate) const BELOW_ONE: Number = Number {
    holds: |number| number as f32 > 0.0 && (number as f32) < 1.0,
    expected: "a number between 0 and 1 that an f32 tells from both",
};
pub(crate) const ABOVE_ONE: Number = Number {
    holds: |number| number as f32 > 1.0 && number as f32 <= 65536.0,
    expected: "a number above 1 and up to 65536",
};

impl Kind for Flag {
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

    /// Whatever is true where nothing is said.
    fn off(&self) -> Option<bool> {
        Some(false)
    }
}

impl Kind for Whole {
    type Output = u64;

    fn parse(&self, value: &Value) -> Option<u64> {
        let Value::Integer(integer) = value else { return None };
        u64::try_from(*integer).ok().filter(|number| self.0.contains(number))
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

impl Kind for Count {
    type Output = usize;

    fn parse(&self, value: &Value) -> Option<usize> {
        let Value::Integer(integer) = value else { return None };
        usize::try_from(*integer).ok().filter(|number| self.0.contains(number))
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

impl Kind for Number {
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

impl<T: Words> Kind for Word<T> {
    type Output = T;

    fn parse(&self, value: &Value) -> Option<T> {
        let Value::Text(text) = value else { return None };
        T::ALL.iter().copied().find(|meaning| meaning.word() == text)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = self.words().into_iter().map(quoted).collect();
        join(&words, "or")
    }

    fn words(&self) -> Vec<&'static str> {
        T::ALL.iter().map(|meaning| meaning.word()).collect()
    }

    fn later_words(&self) -> &'static [&'static str] {
        T::LATER
    }
}

impl Kind for Text {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        match value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "text in quotes".to_string()
    }
}

impl Kind for Texts {
    type Output = Vec<String>;

    fn parse(&self, value: &Value) -> Option<Vec<String>> {
        let Value::List(nodes) = value else { return None };
        nodes.iter().map(|node| Text.parse(&node.value)).collect()
    }

    fn expected(&self) -> String {
        format!("a list of {}, such as [{}]", self.of, quoted(self.example))
    }
}

impl Kind for Size {
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

impl Kind for Amount {
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
        format!("{}, as \"24 GiB\" (2^30 bytes), \"24 GB\" (10^9 bytes) or a number of bytes", self.expected)
    }

    fn meant(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = if digits { text.parse().ok()? } else { return None };
        self.parse(&Value::Integer(bytes)).map(|bytes| bytes.0.to_string())
    }
}

impl Kind for Capability {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        let (major, minor) = text.split_once('.')?;
        let number = |digits: &str| digits.parse().ok().filter(|number: &u32| number.to_string() == digits);
        let version = Version { major: number(major)?, minor: number(minor)? };
        (version >= OLDEST_CARD).then(|| text.clone())
    }

    fn expected(&self) -> String {
        format!("a compute capability of at least {OLDEST_CARD}, which kernels need, in quotes")
    }

    fn meant(&self, value: &Value) -> Option<String> {
        let Value::Float(number) = value else { return None };
        self.parse(&Value::Text(format!("{number:?}"))).map(|text| quoted(&text))
    }
}

impl Writable for Flag {
    fn text(&self, value: &bool) -> String {
        value.to_string()
    }
}

impl Writable for Whole {
    fn text(&self, value: &u64) -> String {
        value.to_string()
    }
}

impl Writable for Count {
    fn text(&self, value: &usize) -> String {
        value.to_string()
    }
}

impl Writable for Number {
    /// Exact.
    fn text(&self, value: &f64) -> String {
        format!("{value:?}")
    }
}

impl Writable for Text {
    fn text(&self, value: &String) -> String {
        quoted(value)
    }
}

impl Writable for Texts {
    fn text(&self, value: &Vec<String>) -> String {
        let texts: Vec<String> = value.iter().map(|text| quoted(text)).collect();
        format!("[{}]", texts.join(", "))
    }
}

impl<T: Words> Writable for Word<T> {
    fn text(&self, value: &T) -> String {
        quoted(value.word())
    }
}
