//! Sets of keywords.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use super::declare::KeywordEnum;
use super::tree::quoted;

/// A set of values of a keyword enum of at most 32 values.
pub struct KeywordSet<T>(u32, PhantomData<T>);

impl<T: KeywordEnum> KeywordSet<T> {
    pub fn contains(self, word: T) -> bool {
        T::ALL.iter().position(|known| *known == word).is_some_and(|index| self.0 >> index & 1 == 1)
    }

    /// In the order of the enum.
    pub fn iter(self) -> impl Iterator<Item = T> {
        T::ALL.iter().copied().filter(move |word| self.contains(*word))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl<T: KeywordEnum> FromIterator<T> for KeywordSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(words: I) -> KeywordSet<T> {
        let bit = |word: T| T::ALL.iter().position(|known| *known == word).map_or(0, |index| 1 << index);
        KeywordSet(words.into_iter().fold(0, |bits, word| bits | bit(word)), PhantomData)
    }
}

impl<T> Clone for KeywordSet<T> {
    fn clone(&self) -> KeywordSet<T> {
        *self
    }
}

impl<T> Copy for KeywordSet<T> {}

impl<T> PartialEq for KeywordSet<T> {
    fn eq(&self, other: &KeywordSet<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for KeywordSet<T> {}

impl<T> PartialOrd for KeywordSet<T> {
    fn partial_cmp(&self, other: &KeywordSet<T>) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl<T> Hash for KeywordSet<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T: KeywordEnum> fmt::Debug for KeywordSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(KeywordEnum::keyword)).finish()
    }
}

/// As a list in TOML.
impl<T: KeywordEnum> fmt::Display for KeywordSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.iter().map(|word| quoted(word.keyword())).collect();
        write!(f, "[{}]", words.join(", "))
    }
}
