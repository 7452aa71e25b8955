//! Declarations of keys, each in one place. A table of keys is a struct whose fields declare their parsers and
//! defaults; a choice is an enum of such tables; keywords are an enum. Readers, writers, defaults and error messages
//! follow from these declarations.

use std::marker::PhantomData;

use super::hints;
use super::keys::{Keys, ValueParser};
use super::reference::{Accepts, DeclaredKey};
use super::tree::{Node, Value};
use super::write::{TableWriter, WriteMode};

/// A table of keys, as `key_table!` declares it.
pub(crate) trait KeyTable: Sized {
    const KEYS: &'static [&'static str];
    /// Its doc comment.
    const DOC: &'static str;

    /// Reads the declared keys; the caller handles the others.
    fn read(keys: &mut Keys<'_>) -> Option<Self>;

    fn write(&self, lines: &mut TableWriter);

    fn reference() -> Vec<DeclaredKey>;
}

/// A table that contains exactly one of several variant tables, as `choice!` declares it.
pub(crate) trait ChoiceTable: Sized + 'static {
    /// Its full name: `train.optimizer`.
    const PATH: &'static str;
    /// Its header: `[train.optimizer]`.
    const PLACE: &'static str;
    const VARIANTS: &'static [Variant<Self>];
    /// Planned variants, which this version reports as not supported yet.
    const LATER: &'static [&'static str];

    /// The chosen variant as a TOML table.
    fn table(&self, form: WriteMode) -> String;
}

/// A variant of a choice.
pub(crate) struct Variant<T> {
    pub(crate) key: &'static str,
    pub(crate) doc: &'static str,
    /// Its full name, and its table as error messages name it: `[train.optimizer.adamw]`.
    pub(crate) path: &'static str,
    pub(crate) place: &'static str,
    /// The keys of its table.
    pub(crate) keys: &'static [&'static str],
    pub(crate) reference: fn() -> Vec<DeclaredKey>,
    pub(crate) read: fn(&mut Keys<'_>) -> Option<T>,
}

/// Reads the value of a declared key from an experiment and writes it to one.
pub(crate) trait KeyCodec {
    type Output: PartialEq;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Self::Output>;

    fn write(&self, key: &str, value: &Self::Output, lines: &mut TableWriter);

    /// An example for the error about a missing key.
    fn example(&self, key: &str) -> String;

    /// The accepted values, for the reference of keys.
    fn accepts(&self) -> Accepts;

    /// The meaning of "off", if it is not the default.
    fn off(&self) -> Option<Self::Output> {
        None
    }
}

/// A value that can also be written.
pub(crate) trait Writable: ValueParser<Output: PartialEq> {
    /// The value in TOML.
    fn text(&self, value: &Self::Output) -> String;
}

impl<K: Writable> KeyCodec for K {
    type Output = K::Output;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<K::Output> {
        keys.parse(key, node, self)
    }

    fn write(&self, key: &str, value: &K::Output, lines: &mut TableWriter) {
        lines.line(key, &self.text(value));
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = ..., which must be {}", self.expected())
    }

    fn accepts(&self) -> Accepts {
        Accepts::parsed(self)
    }

    fn off(&self) -> Option<K::Output> {
        ValueParser::off(self)
    }
}

/// A value that "off" disables.
pub(crate) struct Optional<K>(pub(crate) K);

impl<K: KeyCodec> KeyCodec for Optional<K> {
    type Output = Option<K::Output>;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Self::Output> {
        let read = self.0.read(keys, key, node).map(Some);
        if read.is_none() && hints::means_off(&node.value) {
            keys.reader().advise("use \"off\" to disable it");
        }
        read
    }

    fn write(&self, key: &str, value: &Self::Output, lines: &mut TableWriter) {
        match value {
            Some(value) => self.0.write(key, value, lines),
            None => lines.line(key, "\"off\""),
        }
    }

    fn example(&self, key: &str) -> String {
        self.0.example(key)
    }

    fn accepts(&self) -> Accepts {
        self.0.accepts().or("\"off\"", Vec::new())
    }

    fn off(&self) -> Option<Self::Output> {
        Some(None)
    }
}

/// A table of keys that is written inline: `key = { ... }`.
pub(crate) struct InlineTable<T> {
    key: &'static str,
    place: &'static str,
    /// Example keys for messages.
    example: &'static str,
    of: PhantomData<T>,
}

/// `place` is the key as error messages name it, in backticks.
pub(crate) const fn inline_table<T>(
    key: &'static str,
    place: &'static str,
    example: &'static str,
) -> InlineTable<T> {
    InlineTable { key, place, example, of: PhantomData }
}

impl<T: KeyTable + PartialEq> KeyCodec for InlineTable<T> {
    type Output = T;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<T> {
        let Some(mut keys) = keys.table_of(key, node, self.key, self.place) else {
            let is_element = key.ends_with(']');
            let table = if is_element { format!("{{ {} }}", self.example) } else { self.example(key) };
            keys.reader().advise(&format!("write {table}"));
            return None;
        };
        let table = T::read(&mut keys);
        keys.finish();
        table
    }

    fn write(&self, key: &str, value: &T, lines: &mut TableWriter) {
        lines.line(key, &TableWriter::of(value, lines.form()).inline());
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = {{ {} }}", self.example)
    }

    fn accepts(&self) -> Accepts {
        Accepts::table::<T>()
    }
}

/// A table of keys, or the value of one of them alone.
pub(crate) struct ShortForm<K: KeyCodec, T> {
    pub(crate) value: K,
    pub(crate) table: InlineTable<T>,
    /// The table that a value alone means.
    pub(crate) full: fn(K::Output) -> T,
    /// The value that means a table, if there is one.
    pub(crate) short: fn(&T) -> Option<K::Output>,
}

impl<K: KeyCodec, T: KeyTable + PartialEq> KeyCodec for ShortForm<K, T> {
    type Output = T;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<T> {
        match node.table() {
            Some(_) => self.table.read(keys, key, node),
            None => self.value.read(keys, key, node).map(self.full),
        }
    }

    fn write(&self, key: &str, value: &T, lines: &mut TableWriter) {
        match (self.short)(value) {
            Some(short) => self.value.write(key, &short, lines),
            None => self.table.write(key, value, lines),
        }
    }

    fn example(&self, key: &str) -> String {
        self.table.example(key)
    }

    fn accepts(&self) -> Accepts {
        let Accepts { text, forms, .. } = self.value.accepts();
        Accepts::table::<T>().or(&text, forms)
    }
}

/// A codec, and what it accepts as the reference of keys describes it.
pub(crate) struct Accepting<K>(pub(crate) K, pub(crate) fn(Accepts) -> Accepts);

impl<K: KeyCodec> KeyCodec for Accepting<K> {
    type Output = K::Output;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Self::Output> {
        self.0.read(keys, key, node)
    }

    fn write(&self, key: &str, value: &Self::Output, lines: &mut TableWriter) {
        self.0.write(key, value, lines);
    }

    fn example(&self, key: &str) -> String {
        self.0.example(key)
    }

    fn accepts(&self) -> Accepts {
        (self.1)(self.0.accepts())
    }

    fn off(&self) -> Option<Self::Output> {
        self.0.off()
    }
}

/// One of the variants of a choice.
pub(crate) struct OneOf<T>(PhantomData<T>);

pub(crate) const fn one_of<T>() -> OneOf<T> {
    OneOf(PhantomData)
}

impl<T: ChoiceTable + PartialEq> KeyCodec for OneOf<T> {
    type Output = T;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<T> {
        let table = keys.table_of(key, node, T::PATH, T::PLACE);
        if let (None, Value::Text(text)) = (&table, &node.value)
            && let Some(variant) = T::VARIANTS.iter().find(|variant| variant.key == text)
        {
            keys.reader()
                .advise(&format!("write {} on a line of its own, and its keys below it", variant.place));
        }
        table?.variant(T::VARIANTS)
    }

    fn write(&self, _: &str, value: &T, lines: &mut TableWriter) {
        lines.table(&value.table(lines.form()));
    }

    fn example(&self, _: &str) -> String {
        T::VARIANTS[0].place.to_owned()
    }

    fn accepts(&self) -> Accepts {
        Accepts::one_of::<T>()
    }
}

/// An enum whose values are keywords, as `keywords!` declares it.
pub trait KeywordEnum: Copy + PartialEq + 'static {
    const ALL: &'static [Self];

    /// The keyword in experiment files.
    fn keyword(self) -> &'static str;
}

/// Declares an enum of keywords: each value with its keyword.
macro_rules! keywords {
    (
        $(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $crate::reader::declare::KeywordEnum for $name {
            const ALL: &'static [$name] = &[$($name::$value),+];

            fn keyword(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }
        }
    };
}

/// Declares a table of keys: each with its type, its parser and, unless it is required, its default, which may refer to
/// keys above it. With `: Default`, all keys have defaults, and the empty table is valid.
macro_rules! key_table {
    ($(#[doc = $table:literal])+ $(#[derive($($derive:ident),+)])? pub struct $name:ident: Default {
        $($(#[doc = $doc:literal])+ pub $key:ident: $ty:ty = $kind:expr, default $default:expr;)+
    }) => {
        key_table! {
            $(#[doc = $table])+
            $(#[derive($($derive),+)])?
            pub struct $name {
                $($(#[doc = $doc])+ pub $key: $ty = $kind, default $default;)+
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $(let $key: $ty = $default;)+
                $name { $($key),+ }
            }
        }
    };
    ($(#[doc = $table:literal])+ $(#[derive($($derive:ident),+)])? pub struct $name:ident {
        $($(#[doc = $doc:literal])+ pub $key:ident: $ty:ty = $kind:expr $(, default $default:expr)?;)+
    }) => {
        $(#[doc = $table])+
        $(#[derive($($derive),+)])?
        #[derive(Clone, Debug, PartialEq, PartialOrd)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $ty,)+
        }

        impl $crate::reader::declare::KeyTable for $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),+];
            const DOC: &'static str = concat!($($table),+);

            fn read(keys: &mut $crate::reader::keys::Keys<'_>) -> Option<$name> {
                $(let $key: Option<$ty> = keys.key(stringify!($key), key_table!(@ $($default)?), $kind);)+
                Some($name { $($key: $key?),+ })
            }

            fn write(&self, lines: &mut $crate::reader::write::TableWriter) {
                // Owned, since a default may refer to them.
                let $name { $($key),+ } = Clone::clone(self);
                $(lines.key(stringify!($key), &$key, key_table!(@ $($default)?), $kind);)+
            }

            fn reference() -> Vec<$crate::reader::reference::DeclaredKey> {
                let mut keys = Vec::new();
                $(
                    let $key: Option<$ty> = key_table!(@ $($default)?);
                    let key = $crate::reader::reference::declared(
                        (stringify!($key), concat!($($doc),+)), $kind, $key.clone(), stringify!($($default)?), &keys,
                    );
                    keys.push(key);
                )+
                keys
            }
        }
    };
    (@) => { None };
    (@ $default:expr) => { Some($default) };
}

/// Declares a table that contains exactly one of several variant tables, each with its key. The variants implement the
/// trait after the path; `each` returns the chosen one. The variant after `or` is another notation, which resolves to
/// one of them.
macro_rules! choice {
    (
        $(#[$meta:meta])* pub enum $name:ident($path:literal): $each:ident {
            $($(#[$doc:meta])* $key:ident: $variant:ident,)+
        }
        $(or $short:ident: $written:ident as $meant:ident)?
        $(later $($later:literal),+)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, PartialOrd)]
        pub enum $name {
            $($(#[$doc])* $variant($variant),)+
        }

        impl $name {
            fn each(&self) -> &dyn $each {
                match self {
                    $($name::$variant(variant) => variant,)+
                }
            }

            #[doc = concat!("The key of the chosen variant of `", $path, "`.")]
            pub fn name(&self) -> &'static str {
                match self {
                    $($name::$variant(_) => stringify!($key),)+
                }
            }

            $(
                #[doc = concat!("The keys of `", $path, ".", stringify!($key), "`, if it is the chosen variant.")]
                #[allow(irrefutable_let_patterns)] // for a choice with one variant
                pub fn $key(&self) -> Option<&$variant> {
                    if let $name::$variant(variant) = self { Some(variant) } else { None }
                }
            )+
        }

        impl $crate::reader::declare::ChoiceTable for $name {
            const PATH: &'static str = $path;
            const PLACE: &'static str = concat!("[", $path, "]");
            const VARIANTS: &'static [$crate::reader::declare::Variant<$name>] = &[
                $($crate::reader::declare::Variant {
                    key: stringify!($key),
                    doc: <$variant as $crate::reader::declare::KeyTable>::DOC,
                    path: concat!($path, ".", stringify!($key)),
                    place: concat!("[", $path, ".", stringify!($key), "]"),
                    keys: <$variant as $crate::reader::declare::KeyTable>::KEYS,
                    reference: <$variant as $crate::reader::declare::KeyTable>::reference,
                    read: |keys| {
                        <$variant as $crate::reader::declare::KeyTable>::read(keys).map($name::$variant)
                    },
                },)+
                $($crate::reader::declare::Variant {
                    key: stringify!($short),
                    doc: <$written as $crate::reader::declare::KeyTable>::DOC,
                    path: concat!($path, ".", stringify!($short)),
                    place: concat!("[", $path, ".", stringify!($short), "]"),
                    keys: <$written as $crate::reader::declare::KeyTable>::KEYS,
                    reference: <$written as $crate::reader::declare::KeyTable>::reference,
                    read: |keys| {
                        let written = <$written as $crate::reader::declare::KeyTable>::read(keys)?;
                        written.resolve(keys).map($name::$meant)
                    },
                },)?
            ];
            const LATER: &'static [&'static str] = &[$($($later),+)?];

            fn table(&self, form: $crate::reader::write::WriteMode) -> String {
                match self {
                    $($name::$variant(variant) => $crate::reader::write::TableWriter::of(variant, form)
                        .under(concat!($path, ".", stringify!($key))),)+
                }
            }
        }
    };
}

pub(crate) use {choice, key_table, keywords};
