//! A few words at a time, in no order.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use serde::{Serialize, Serializer};

use super::declare::{Words, Writable};
use super::reader::{Kind, join};
use super::tree::{Value, quoted};

/// Some of the values of an enum of words, of which there are 32 at the most.
pub struct WordSet<T>(u32, PhantomData<T>);

impl<T: Words> WordSet<T> {
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

impl<T: Words> FromIterator<T> for WordSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(words: I) -> WordSet<T> {
        let bit = |word: T| T::ALL.iter().position(|known| *known == word).map_or(0, |index| 1 << index);
        WordSet(words.into_iter().fold(0, |bits, word| bits | bit(word)), PhantomData)
    }
}

impl<T> Clone for WordSet<T> {
    fn clone(&self) -> WordSet<T> {
        *self
    }
}

impl<T> Copy for WordSet<T> {}

impl<T> PartialEq for WordSet<T> {
    fn eq(&self, other: &WordSet<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for WordSet<T> {}

impl<T> Hash for WordSet<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T: Words> fmt::Debug for WordSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Words::word)).finish()
    }
}

impl<T: Words> Serialize for WordSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Words::word))
    }
}

/// A list of words.
pub(crate) struct ListOf<T>(PhantomData<T>);

pub(crate) const fn list_of<T>() -> ListOf<T> {
    ListOf(PhantomData)
}

impl<T: Words> Kind for ListOf<T> {
    type Output = WordSet<T>;

    fn parse(&self, value: &Value) -> Option<WordSet<T>> {
        let Value::List(nodes) = value else { return None };
        let word = |value: &Value| match value {
            Value::Text(text) => T::ALL.iter().copied().find(|word| word.word() == text),
            _ => None,
        };
        nodes.iter().map(|node| word(&node.value)).collect()
    }

    fn expected(&self) -> String {
        let words: Vec<String> = T::ALL.iter().map(|word| quoted(word.word())).collect();
        format!("a list of any of {}", join(&words, "and"))
    }
}

impl<T: Words> Writable for ListOf<T> {
    fn text(&self, value: &WordSet<T>) -> String {
        let words: Vec<String> = value.iter().map(|word| quoted(word.word())).collect();
        format!("[{}]", words.join(", "))
    }
}
