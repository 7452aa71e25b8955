//! Takes keys out of tables one by one. Each key's name, range and default stand together where it is read; keys
//! that nobody asked for are mistakes.

use std::cell::RefCell;

use super::declare::{Declared, Variant};
use super::error::{MOST_SHOWN, Problem};
use super::hints::{self, list};
use super::paths::Environment;
use super::source::{Sources, Span};
use super::tree::{Entry, Node, Table, Value};
use super::version;

/// What a file says something of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Experiment,
    Target,
}

/// Reads tables and keeps what is wrong with them.
pub(crate) struct Reader<'a> {
    pub(crate) sources: &'a Sources,
    pub(crate) environment: &'a Environment<'a>,
    subject: Subject,
    /// Whether keys may be missing, as in a file that others extend.
    partial: bool,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Reader<'a> {
    /// Expects everything that a run needs.
    pub(crate) fn complete(sources: &'a Sources, environment: &'a Environment<'a>) -> Reader<'a> {
        let subject = Subject::Experiment;
        Reader { sources, environment, subject, partial: false, problems: RefCell::default() }
    }

    /// Expects everything that a target needs.
    pub(crate) fn target(sources: &'a Sources, environment: &'a Environment<'a>) -> Reader<'a> {
        Reader { subject: Subject::Target, ..Reader::complete(sources, environment) }
    }

    /// Checks what is there.
    pub(crate) fn partial(sources: &'a Sources, environment: &'a Environment<'a>) -> Reader<'a> {
        Reader { partial: true, ..Reader::complete(sources, environment) }
    }

    /// Reads a table; `path` is its name in messages, empty for a strategy's own keys.
    pub(crate) fn keys(&'a self, table: &'a Table, path: &'a str, place: &'a str) -> Keys<'a> {
        Keys { reader: self, table, path, place, span: None, asked: Vec::new() }
    }

    pub(crate) fn problem(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// Says what would work in place of what was just found wrong.
    pub(crate) fn advise(&self, help: &str) {
        if let Some(problem) = self.problems.borrow_mut().last_mut() {
            problem.help = Some(help.to_owned());
        }
    }

    /// What was read, or all that is wrong.
    pub(crate) fn finish<T>(self, read: Option<T>) -> Result<T, Vec<Problem>> {
        match (self.problems.into_inner(), read) {
            (none, Some(read)) if none.is_empty() => Ok(read),
            (none, None) if none.is_empty() => {
                let what = match self.subject {
                    Subject::Experiment => "the experiment",
                    Subject::Target => "the target",
                };
                Err(Problem::new(format!("{what} is incomplete")).into())
            }
            (problems, _) => Err(problems),
        }
    }

    /// All that is wrong, if anything is.
    pub(crate) fn check(self) -> Result<(), Vec<Problem>> {
        self.finish(Some(()))
    }
}

/// One table being read.
pub(crate) struct Keys<'a> {
    reader: &'a Reader<'a>,
    table: &'a Table,
    /// What comes before a key's name in messages.
    path: &'a str,
    /// What to call the table in messages: `[train]`.
    place: &'a str,
    span: Option<Span>,
    asked: Vec<&'a str>,
}

/// What a key takes: a parser, and words for it.
pub(crate) trait Kind {
    type Output;
    fn parse(&self, value: &Value) -> Option<Self::Output>;
    /// Completes "must be".
    fn expected(&self) -> String;
    /// The words it takes, if it takes words.
    fn words(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// What somebody means who writes another value, in TOML, where that is known.
    fn meant(&self, _value: &Value) -> Option<String> {
        None
    }
    /// What "off" stands for, where that is not the default.
    fn off(&self) -> Option<Self::Output> {
        None
    }
    /// The words that a later version takes.
    fn later_words(&self) -> &'static [&'static str] {
        &[]
    }
}

impl<'a> Keys<'a> {
    /// The same keys, in a table that stands there.
    pub(crate) fn at(self, span: Span) -> Keys<'a> {
        Keys { span: Some(span), ..self }
    }

    /// The entry of a key, unless it is missing or switched off.
    pub(crate) fn entry(&mut self, key: &'a str) -> Option<&'a Entry> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        self.table.entry(key).filter(|entry| !matches!(&entry.node.value, Value::Text(t) if t == "off"))
    }

    /// Whether a key is switched off in so many words.
    fn is_off(&self, key: &str) -> bool {
        self.table.entry(key).is_some_and(|entry| matches!(&entry.node.value, Value::Text(t) if t == "off"))
    }

    /// A declared key; every run needs it if it has no default.
    pub(crate) fn key<D: Declared>(
        &mut self,
        key: &'a str,
        default: Option<D::Output>,
        declared: D,
    ) -> Option<D::Output> {
        match self.entry(key) {
            Some(entry) => declared.read(self, entry),
            None if default.is_none() => {
                self.missing(key, &declared.example(key));
                None
            }
            None if self.is_off(key) => declared.off().or(default),
            None => default,
        }
    }

    /// A key of the experiment itself that can be switched off, and is unless it is there.
    pub(crate) fn optional<K: Kind>(&mut self, key: &'a str, kind: K) -> Option<Option<K::Output>> {
        match self.entry(key) {
            Some(entry) => self.parse(entry, &kind).map(Some),
            None => Some(None),
        }
    }

    /// A table within this one; `path` is its full name.
    pub(crate) fn table(&mut self, key: &'a str, path: &'a str, place: &'a str) -> Option<Keys<'a>> {
        let entry = self.entry(key)?;
        self.table_of(entry, path, place)
    }

    /// The table that an entry of this one must be.
    pub(crate) fn table_of(&self, entry: &'a Entry, path: &'a str, place: &'a str) -> Option<Keys<'a>> {
        let Some(table) = entry.node.table() else {
            let found = &entry.node.value;
            self.reader.problem(
                Problem::new(format!("`{path}` must be a table, not {found}"))
                    .at(entry.node.span)
                    .help(format!("write {place} on a line of its own, and its keys below it")),
            );
            return None;
        };
        let mut keys = self.reader.keys(table, path, place);
        keys.span = Some(entry.key_span);
        Some(keys)
    }

    /// A table that every run needs.
    pub(crate) fn required_table(&mut self, key: &'a str, path: &'a str, place: &'a str) -> Option<Keys<'a>> {
        let table = self.table(key, path, place);
        if table.is_none() && self.entry(key).is_none() {
            self.missing(key, place);
        }
        table
    }

    /// The one variant of a choice that is there.
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
                    "{} holds both `{}` and `{}`: choose one",
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
                    "`{}` is switched off, and nothing is chosen instead",
                    self.name(&only.key)
                ))
                .at(only.span())
                .help(match known.as_slice() {
                    [known] => format!("give `{known}` a table, or leave it out"),
                    known => format!("choose one of {}", list(known)),
                }),
            );
        }
        let places: Vec<(&str, &str)> = variants.iter().map(|variant| (variant.key, variant.place)).collect();
        match hints::of_choice(self.table, &places) {
            // The keys beside it are its own, and right where they belong.
            Some((entry, help)) => self.reader.problem(self.unknown_key(entry).help(help)),
            None => self.finish(),
        }
        let (read, mut keys) = chosen?;
        let variant = read(&mut keys);
        keys.finish();
        variant
    }

    /// Reports what nobody asked for.
    pub(crate) fn finish(self) {
        let unknown = self.table.entries.iter().filter(|entry| !self.asked.contains(&entry.key.as_str()));
        for (index, entry) in unknown.enumerate() {
            // What is not shown needs no advice, which takes time to find.
            let is_shown = index < MOST_SHOWN;
            self.reader.problem(if is_shown { self.unknown(entry) } else { self.unknown_key(entry) });
        }
    }

    fn unknown(&self, entry: &Entry) -> Problem {
        let Entry { key, key_span, .. } = entry;
        if self.reader.subject == Subject::Target {
            return self.unknown_key(entry).help(hints::of_target_key(key, &self.asked));
        }
        if version::is_later_key(self.path, key) {
            return Problem::new(format!("`{key}` in {} is not in this version of runner yet", self.place))
                .at(*key_span)
                .help(format!("this version has {}", list(&self.asked)));
        }
        let here = hints::Here { path: self.path, keys: &self.asked };
        self.unknown_key(entry).help(hints::of_key(&here, entry))
    }

    fn unknown_key(&self, entry: &Entry) -> Problem {
        Problem::new(format!("unknown key `{}` in {}", entry.key, self.place)).at(entry.key_span)
    }

    pub(crate) fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    pub(crate) fn missing(&self, key: &str, write: &str) {
        if self.reader.partial {
            return;
        }
        let who = match self.reader.subject {
            Subject::Experiment => "run",
            Subject::Target => "target",
        };
        let off = self.table.entry(key).map(|entry| entry.span());
        let mut problem = match off {
            Some(span) => {
                Problem::new(format!("`{}` cannot be switched off: every {who} needs it", self.name(key)))
                    .at(span)
            }
            None => Problem::new(format!("`{}` is missing: every {who} needs it", self.name(key))),
        };
        problem.places.extend(self.span.filter(|_| off.is_none()));
        self.reader.problem(problem.help(format!("add {write}")));
    }

    pub(crate) fn parse<K: Kind>(&self, entry: &Entry, kind: &K) -> Option<K::Output> {
        let parsed = kind.parse(&entry.node.value);
        if parsed.is_none() {
            self.reader.problem(self.mismatch(entry, kind));
        }
        parsed
    }

    fn mismatch<K: Kind>(&self, entry: &Entry, kind: &K) -> Problem {
        let name = self.name(&entry.key);
        let Node { value, span } = &entry.node;
        let words = kind.words();
        let later = match value {
            Value::Text(text) => kind.later_words().contains(&text.as_str()),
            _ => false,
        };
        if later {
            return Problem::new(format!("`{name} = {value}` is not in this version of runner yet"))
                .at(*span)
                .help(format!("this version has {}", kind.expected()));
        }
        // The text says it better than the value, which may have been too large to read.
        let found = self.reader.sources.short(*span).map_or_else(|| value.to_string(), str::to_string);
        let problem = Problem::new(format!("`{name}` must be {}, not {found}", kind.expected())).at(*span);
        let word = || hints::of_word(value, &words).map(|word| format!("\"{word}\""));
        match kind.meant(value).or_else(word) {
            Some(meant) => problem.help(format!("did you mean {meant}?")),
            None => problem,
        }
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

/// A name that no strategy has.
pub(crate) fn no_strategy(message: &str, name: &str, span: Span, known: &[&str]) -> Problem {
    Problem::new(message).at(span).help(match hints::nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", list(known)),
    })
}
