//! Reads the keys of tables one by one and collects all problems. Keys that no reader requested are unknown.

use std::cell::RefCell;

use super::declare::{KeyCodec, Variant};
use super::error::{MOST_SHOWN, Problem, Remark};
use super::forms::Form;
use super::hints::{self, list};
use super::paths::Environment;
use super::source::{Sources, Span};
use super::tree::{Node, Table, TableEntry, Value};

/// The kind of file that is read.
pub(crate) struct FileKind {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// What needs its required keys, in messages.
    pub(crate) user: &'static str,
    /// The hint for a key of a table that a later version supports; `None` for all other keys.
    pub(crate) planned: fn(&TableKeys<'_>, key: &str) -> Option<String>,
    /// The hint for an unknown key.
    pub(crate) hint: fn(&TableKeys<'_>, &TableEntry) -> String,
    /// The hint for an invalid value that other tools accept for a key of this name.
    pub(crate) value_hint: fn(key: &str, &Value) -> Option<&'static str>,
}

/// The table of an unknown key.
pub(crate) struct TableKeys<'a> {
    /// Its full name; empty for the top of a file and for strategies.
    pub(crate) path: &'a str,
    /// Its known keys.
    pub(crate) keys: &'a [&'a str],
}

/// Reads tables and collects their problems.
pub(crate) struct Reader<'a> {
    pub(crate) sources: &'a Sources,
    pub(crate) environment: &'a Environment<'a>,
    file: &'a FileKind,
    /// Whether required keys may be missing, as in a file that others extend.
    partial: bool,
    problems: RefCell<Vec<Problem>>,
    remarks: RefCell<Vec<Remark>>,
}

impl<'a> Reader<'a> {
    /// Reports missing keys.
    pub(crate) fn complete(
        file: &'a FileKind,
        sources: &'a Sources,
        environment: &'a Environment<'a>,
    ) -> Reader<'a> {
        Reader {
            sources,
            environment,
            file,
            partial: false,
            problems: RefCell::default(),
            remarks: RefCell::default(),
        }
    }

    /// Reports no missing keys.
    pub(crate) fn partial(
        file: &'a FileKind,
        sources: &'a Sources,
        environment: &'a Environment<'a>,
    ) -> Reader<'a> {
        Reader { partial: true, ..Reader::complete(file, sources, environment) }
    }

    /// Reads a table; `path` is its name in messages, empty for a strategy's own keys.
    pub(crate) fn keys(&'a self, table: &'a Table, path: &'a str, place: &'a str) -> Keys<'a> {
        Keys { reader: self, table, path, place, span: None, requested: Vec::new() }
    }

    pub(crate) fn problem(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(crate) fn remark(&self, remark: Remark) {
        self.remarks.borrow_mut().push(remark);
    }

    /// The remarks so far.
    pub(crate) fn remarks(&self) -> Vec<Remark> {
        self.remarks.take()
    }

    /// Sets the hint of the last problem.
    pub(crate) fn advise(&self, help: &str) {
        if let Some(problem) = self.problems.borrow_mut().last_mut() {
            problem.help = Some(help.to_owned());
        }
    }

    /// The value that was read, or all problems.
    pub(crate) fn finish<T>(self, read: Option<T>) -> Result<T, Vec<Problem>> {
        match (self.problems.into_inner(), read) {
            (none, Some(read)) if none.is_empty() => Ok(read),
            (none, None) if none.is_empty() => {
                Err(Problem::new(format!("the {} is incomplete", self.file.name)).into())
            }
            (problems, _) => Err(problems),
        }
    }

    /// Fails with all problems, if there are any.
    pub(crate) fn check(self) -> Result<(), Vec<Problem>> {
        self.finish(Some(()))
    }
}

/// One table being read.
pub(crate) struct Keys<'a> {
    reader: &'a Reader<'a>,
    table: &'a Table,
    /// The prefix of a key's name in messages.
    path: &'a str,
    /// The table's name in messages: `[train]`.
    place: &'a str,
    span: Option<Span>,
    requested: Vec<&'a str>,
}

/// Parses the value of a key, and describes it in error messages.
pub(crate) trait ValueParser {
    type Output;
    fn parse(&self, value: &Value) -> Option<Self::Output>;
    /// Completes "must be" in error messages.
    fn expected(&self) -> String;
    /// The accepted values, for editors.
    fn forms(&self) -> Vec<Form>;
    /// The keywords that it accepts, if any.
    fn keywords(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// The probable intention of an invalid value, in TOML, for "did you mean".
    fn meant(&self, _value: &Value) -> Option<String> {
        None
    }
    /// The meaning of "off", if it is not the default.
    fn off(&self) -> Option<Self::Output> {
        None
    }
}

impl<'a> Keys<'a> {
    /// The entry of a key, unless it is missing or "off".
    pub(crate) fn entry(&mut self, key: &'a str) -> Option<&'a TableEntry> {
        if !self.requested.contains(&key) {
            self.requested.push(key);
        }
        self.table.entry(key).filter(|entry| !matches!(&entry.node.value, Value::Text(t) if t == "off"))
    }

    /// Whether the value of a key is "off".
    fn is_off(&self, key: &str) -> bool {
        self.table.entry(key).is_some_and(|entry| matches!(&entry.node.value, Value::Text(t) if t == "off"))
    }

    /// The value of a declared key; without a default, the key is required.
    pub(crate) fn key<D: KeyCodec>(
        &mut self,
        key: &'a str,
        default: Option<D::Output>,
        declared: D,
    ) -> Option<D::Output> {
        match self.entry(key) {
            Some(entry) => declared.read(self, key, &entry.node),
            None if default.is_none() => {
                self.missing(key, &declared.example(key));
                None
            }
            None if self.is_off(key) => declared.off().or(default),
            None => default,
        }
    }

    /// The value of an optional key, `None` by default.
    pub(crate) fn optional<K: ValueParser>(&mut self, key: &'a str, kind: K) -> Option<Option<K::Output>> {
        match self.entry(key) {
            Some(entry) => self.parse(key, &entry.node, &kind).map(Some),
            None => Some(None),
        }
    }

    /// A nested table; `path` is its full name.
    pub(crate) fn table(&mut self, key: &'a str, path: &'a str, place: &'a str) -> Option<Keys<'a>> {
        let entry = self.entry(key)?;
        self.table_of(key, &entry.node, path, place)
    }

    /// The value of a key or element that must be a table; `path` is its full name.
    pub(crate) fn table_of(
        &self,
        key: &str,
        node: &'a Node,
        path: &'a str,
        place: &'a str,
    ) -> Option<Keys<'a>> {
        let Some(table) = node.table() else {
            self.reader.problem(
                Problem::new(format!("`{}` must be a table, not {}", self.name(key), node.value))
                    .at(node.span)
                    .help(format!("write {place} on a line of its own, and its keys below it")),
            );
            return None;
        };
        let mut keys = self.reader.keys(table, path, place);
        keys.span = Some(self.table.entry(key).map_or(node.span, |entry| entry.key_span));
        Some(keys)
    }

    /// A required table.
    pub(crate) fn required_table(&mut self, key: &'a str, path: &'a str, place: &'a str) -> Option<Keys<'a>> {
        let table = self.table(key, path, place);
        if table.is_none() && self.entry(key).is_none() {
            self.missing(key, place);
        }
        table
    }

    /// Reads the only variant of a choice.
    pub(crate) fn variant<T>(mut self, variants: &[Variant<T>]) -> Option<T> {
        let mut chosen = None;
        for Variant { key, path, place, read, .. } in variants {
            if let Some(keys) = self.table(key, path, place) {
                chosen = Some((read, keys));
            }
        }
        let known: Vec<&str> = variants.iter().map(|variant| variant.key).collect();
        let there = self.table.entries.iter().filter(|entry| known.contains(&entry.key.as_str()));
        if let [first, second, ..] = there.collect::<Vec<_>>().as_slice() {
            self.reader.problem(
                Problem::new(format!(
                    "{} has both `{}` and `{}`: choose one",
                    self.place, first.key, second.key
                ))
                .at(second.key_span)
                .at(first.key_span),
            );
        } else if self.table.entries.is_empty() {
            self.missing(variants[0].key, variants[0].place);
        }
        if let [only] = self.table.entries.as_slice()
            && known.contains(&only.key.as_str())
            && self.is_off(&only.key)
        {
            self.reader.problem(
                Problem::new(format!(
                    "`{}` is \"off\", and no other variant is chosen",
                    self.name(&only.key)
                ))
                .at(only.span())
                .help(match known.as_slice() {
                    [known] => format!("write `{known}` as a table, or remove it"),
                    known => format!("use {}", list(known)),
                }),
            );
        }
        let places: Vec<(&str, &str)> = variants.iter().map(|variant| (variant.key, variant.place)).collect();
        match hints::variant_named_by_key(self.table, &places) {
            // The other keys belong to the variant; they are not reported as unknown.
            Some((entry, help)) => self.reader.problem(self.unknown_key(entry).help(help)),
            None => self.finish(),
        }
        let (read, mut keys) = chosen?;
        let variant = read(&mut keys);
        keys.finish();
        variant
    }

    /// Reports all keys that were not requested as unknown.
    pub(crate) fn finish(self) {
        let unknown = self.table.entries.iter().filter(|entry| !self.requested.contains(&entry.key.as_str()));
        for (index, entry) in unknown.enumerate() {
            // Problems that are not shown need no hint, which takes time to find.
            let is_shown = index < MOST_SHOWN;
            self.reader.problem(if is_shown { self.unknown(entry) } else { self.unknown_key(entry) });
        }
    }

    fn unknown(&self, entry: &TableEntry) -> Problem {
        let TableEntry { key, key_span, .. } = entry;
        let FileKind { planned, hint, .. } = self.reader.file;
        let table = TableKeys { path: self.path, keys: &self.requested };
        if let Some(help) = planned(&table, key) {
            return Problem::new(format!("`{key}` in {} {}", self.place, hints::NOT_YET))
                .at(*key_span)
                .help(help);
        }
        self.unknown_key(entry).help(hint(&table, entry))
    }

    fn unknown_key(&self, entry: &TableEntry) -> Problem {
        Problem::new(format!("unknown key `{}` in {}", entry.key, self.place)).at(entry.key_span)
    }

    pub(crate) fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    pub(crate) fn missing(&self, key: &str, write: &str) {
        if self.reader.partial {
            return;
        }
        let who = self.reader.file.user;
        let off = self.table.entry(key).map(|entry| entry.span());
        let mut problem = match off {
            Some(span) => {
                Problem::new(format!("`{}` cannot be \"off\": every {who} needs it", self.name(key))).at(span)
            }
            None => Problem::new(format!("`{}` is missing: every {who} needs it", self.name(key))),
        };
        problem.places.extend(self.span.filter(|_| off.is_none()));
        self.reader.problem(problem.help(format!("add {write}")));
    }

    pub(crate) fn parse<K: ValueParser>(&self, key: &str, node: &Node, kind: &K) -> Option<K::Output> {
        let parsed = kind.parse(&node.value);
        if parsed.is_none() {
            self.reader.problem(self.mismatch(key, node, kind));
        }
        parsed
    }

    fn mismatch<K: ValueParser>(&self, key: &str, node: &Node, kind: &K) -> Problem {
        let name = self.name(key);
        let Node { value, span } = node;
        let words = kind.keywords();
        // The text as written: the parsed value may have been clamped.
        let found = self.reader.sources.short(*span).map_or_else(|| value.to_string(), str::to_string);
        let problem = Problem::new(format!("`{name}` must be {}, not {found}", kind.expected())).at(*span);
        if let Some(advice) = self.value_hint(key, value) {
            return problem.help(advice);
        }
        let word = || hints::nearest_keyword(value, &words).map(|word| format!("\"{word}\""));
        let renotated = || {
            let meant = hints::other_notation(value).into_iter().filter(|meant| kind.parse(meant).is_some());
            let meant: Vec<String> = meant.map(|meant| meant.to_string()).collect();
            (!meant.is_empty()).then(|| join(&meant, "or"))
        };
        match kind.meant(value).or_else(word).or_else(renotated) {
            Some(meant) => problem.help(format!("did you mean {meant}?")),
            None => problem,
        }
    }

    /// The hint for an invalid value that other tools accept for a key of this name.
    pub(crate) fn value_hint(&self, key: &str, value: &Value) -> Option<&'static str> {
        (self.reader.file.value_hint)(key, value)
    }

    /// A key's name in messages.
    pub(crate) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }
}

pub(crate) fn join(words: &[String], conjunction: &str) -> String {
    match words {
        [] => "none".to_string(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {conjunction} {last}", first.join(", ")),
    }
}
