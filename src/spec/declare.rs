//! How what `spec` knows is declared: once, in one place. A table of keys is a struct whose fields each say what they
//! take and what they are where nothing is said; a choice is an enum of such tables; words are an enum, too. Reading,
//! writing, defaults and the words of messages all follow from these declarations.

use std::marker::PhantomData;

use super::hints;
use super::reader::{Keys, Kind};
use super::tree::{Entry, Value};
use super::write::{Form, Lines};

/// A table of keys, as `section!` declares it.
pub(crate) trait Section: Sized {
    const KEYS: &'static [&'static str];

    /// Reads its own keys, leaving others to the caller.
    fn read(keys: &mut Keys<'_>) -> Option<Self>;

    fn write(&self, lines: &mut Lines);
}

/// A table that holds exactly one of several others, as `choice!` declares it.
pub(crate) trait Choice: Sized + 'static {
    /// Its name: `train.optimizer`.
    const PATH: &'static str;
    const PLACE: &'static str;
    const VARIANTS: &'static [Variant<Self>];
    /// Variants that the experiment file has words for, but not this version.
    const LATER: &'static [&'static str];

    /// Its variant, as a table of its own.
    fn table(&self, form: Form) -> String;
}

/// One of a choice.
pub(crate) struct Variant<T> {
    pub(crate) key: &'static str,
    /// Its full name, and what to call its table in messages.
    pub(crate) path: &'static str,
    pub(crate) place: &'static str,
    /// The keys of its table.
    pub(crate) keys: &'static [&'static str],
    pub(crate) read: fn(&mut Keys<'_>) -> Option<T>,
}

/// What a declared key takes: read from an experiment and written to one.
pub(crate) trait Declared {
    type Output: PartialEq;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Self::Output>;

    fn write(&self, key: &str, value: &Self::Output, lines: &mut Lines);

    /// How to write a key that is missing.
    fn example(&self, key: &str) -> String;

    /// What "off" stands for, where that is not the default.
    fn off(&self) -> Option<Self::Output> {
        None
    }
}

/// A kind of value that can be written, too.
pub(crate) trait Writable: Kind<Output: PartialEq> {
    /// As TOML writes it.
    fn text(&self, value: &Self::Output) -> String;
}

impl<K: Writable> Declared for K {
    type Output = K::Output;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<K::Output> {
        keys.parse(entry, self)
    }

    fn write(&self, key: &str, value: &K::Output, lines: &mut Lines) {
        lines.line(key, &self.text(value));
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = ..., which must be {}", self.expected())
    }

    fn off(&self) -> Option<K::Output> {
        Kind::off(self)
    }
}

/// What can be switched off.
pub(crate) struct Optional<K>(pub(crate) K);

impl<K: Declared> Declared for Optional<K> {
    type Output = Option<K::Output>;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Self::Output> {
        let read = self.0.read(keys, entry).map(Some);
        if read.is_none() && hints::is_like_off(&entry.node.value) {
            keys.reader().advise("\"off\" switches it off");
        }
        read
    }

    fn write(&self, key: &str, value: &Self::Output, lines: &mut Lines) {
        match value {
            Some(value) => self.0.write(key, value, lines),
            None => lines.line(key, "\"off\""),
        }
    }

    fn example(&self, key: &str) -> String {
        self.0.example(key)
    }

    fn off(&self) -> Option<Self::Output> {
        Some(None)
    }
}

/// A table of keys that is written on the line of its own key.
pub(crate) struct Inline<T> {
    key: &'static str,
    place: &'static str,
    /// What to write in it.
    example: &'static str,
    of: PhantomData<T>,
}

/// `place` is the key as messages have it: in backticks.
pub(crate) const fn inline<T>(key: &'static str, place: &'static str, example: &'static str) -> Inline<T> {
    Inline { key, place, example, of: PhantomData }
}

impl<T: Section + PartialEq> Declared for Inline<T> {
    type Output = T;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<T> {
        let Some(mut keys) = keys.table_of(entry, self.key, self.place) else {
            keys.reader().advise(&format!("write {}", self.example(self.key)));
            return None;
        };
        let table = T::read(&mut keys);
        keys.finish();
        table
    }

    fn write(&self, key: &str, value: &T, lines: &mut Lines) {
        lines.line(key, &Lines::of(value, lines.form()).inline());
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = {{ {} }}", self.example)
    }
}

/// One of the variants of a choice.
pub(crate) struct OneOf<T>(PhantomData<T>);

pub(crate) const fn one_of<T>() -> OneOf<T> {
    OneOf(PhantomData)
}

impl<T: Choice + PartialEq> Declared for OneOf<T> {
    type Output = T;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<T> {
        let table = keys.table_of(entry, T::PATH, T::PLACE);
        if let (None, Value::Text(text)) = (&table, &entry.node.value)
            && let Some(variant) = T::VARIANTS.iter().find(|variant| variant.key == text)
        {
            keys.reader()
                .advise(&format!("write {} on a line of its own, and its keys below it", variant.place));
        }
        table?.variant(T::VARIANTS)
    }

    fn write(&self, _: &str, value: &T, lines: &mut Lines) {
        lines.table(&value.table(lines.form()));
    }

    fn example(&self, _: &str) -> String {
        T::VARIANTS[0].place.to_owned()
    }
}

/// An enum whose values are words, as `words!` declares it.
pub trait Words: Copy + PartialEq + 'static {
    const ALL: &'static [Self];
    /// Words that the experiment file has a meaning for, but not this version.
    const LATER: &'static [&'static str];

    /// As experiments write it.
    fn word(self) -> &'static str;
}

/// Declares an enum of words: each value with its word, and words that are to come.
macro_rules! words {
    (
        $(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }
        $(later $($later:literal),+)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $crate::declare::Words for $name {
            const ALL: &'static [$name] = &[$($name::$value),+];
            const LATER: &'static [&'static str] = &[$($($later),+)?];

            fn word(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }
        }
    };
}

/// Declares a table of keys: each with its type, what it takes and, unless every run needs it, its default, which may
/// name keys above it. With `: Default`, a table in which nothing is written is one, too.
macro_rules! section {
    ($(#[$meta:meta])* pub struct $name:ident: Default {
        $($(#[$doc:meta])* pub $key:ident: $ty:ty = $kind:expr, default $default:expr;)+
    }) => {
        section! {
            $(#[$meta])*
            pub struct $name {
                $($(#[$doc])* pub $key: $ty = $kind, default $default;)+
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $(let $key: $ty = $default;)+
                $name { $($key),+ }
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $key:ident: $ty:ty = $kind:expr $(, default $default:expr)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $name {
            $($(#[$doc])* pub $key: $ty,)+
        }

        impl $crate::declare::Section for $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),+];

            fn read(keys: &mut $crate::reader::Keys<'_>) -> Option<$name> {
                $(let $key: Option<$ty> = keys.key(stringify!($key), section!(@ $($default)?), $kind);)+
                Some($name { $($key: $key?),+ })
            }

            fn write(&self, lines: &mut $crate::write::Lines) {
                // Owned, since a default may name them.
                let $name { $($key),+ } = Clone::clone(self);
                $(lines.key(stringify!($key), &$key, section!(@ $($default)?), $kind);)+
            }
        }
    };
    (@) => { None };
    (@ $default:expr) => { Some($default) };
}

/// Declares a table that holds exactly one of several others, by the key of each. An answer that differs between them
/// is a method of the trait after `each`. A variant after `or` is another way to write one of them, which it resolves to.
macro_rules! choice {
    (
        $(#[$meta:meta])* pub enum $name:ident($path:literal): $each:ident {
            $($(#[$doc:meta])* $key:ident: $variant:ident,)+
        }
        $(or $short:ident: $written:ident as $meant:ident)?
        later $($later:literal),*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub enum $name {
            $($(#[$doc])* $variant($variant),)+
        }

        impl $name {
            fn each(&self) -> &dyn $each {
                match self {
                    $($name::$variant(variant) => variant,)+
                }
            }

            #[doc = concat!("The key under `", $path, "` that is chosen.")]
            pub fn name(&self) -> &'static str {
                match self {
                    $($name::$variant(_) => stringify!($key),)+
                }
            }

            $(
                #[doc = concat!("What is said of `", $path, ".", stringify!($key), "`, if that is chosen.")]
                #[allow(irrefutable_let_patterns)] // while there is one
                pub fn $key(&self) -> Option<&$variant> {
                    if let $name::$variant(variant) = self { Some(variant) } else { None }
                }
            )+
        }

        impl $crate::declare::Choice for $name {
            const PATH: &'static str = $path;
            const PLACE: &'static str = concat!("[", $path, "]");
            const VARIANTS: &'static [$crate::declare::Variant<$name>] = &[
                $($crate::declare::Variant {
                    key: stringify!($key),
                    path: concat!($path, ".", stringify!($key)),
                    place: concat!("[", $path, ".", stringify!($key), "]"),
                    keys: <$variant as $crate::declare::Section>::KEYS,
                    read: |keys| {
                        <$variant as $crate::declare::Section>::read(keys).map($name::$variant)
                    },
                },)+
                $($crate::declare::Variant {
                    key: stringify!($short),
                    path: concat!($path, ".", stringify!($short)),
                    place: concat!("[", $path, ".", stringify!($short), "]"),
                    keys: <$written as $crate::declare::Section>::KEYS,
                    read: |keys| {
                        let written = <$written as $crate::declare::Section>::read(keys)?;
                        written.resolve(keys).map($name::$meant)
                    },
                },)?
            ];
            const LATER: &'static [&'static str] = &[$($later),*];

            fn table(&self, form: $crate::write::Form) -> String {
                match self {
                    $($name::$variant(variant) => $crate::write::Lines::of(variant, form)
                        .under(concat!($path, ".", stringify!($key))),)+
                }
            }
        }
    };
}

pub(crate) use {choice, section, words};
