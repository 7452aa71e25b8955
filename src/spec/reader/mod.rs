//! Reads TOML: texts, trees with spans, and tables of declared keys with their parsers, problems and reference.

pub(crate) mod declare;
pub(crate) mod error;
pub(crate) mod forms;
pub(crate) mod hints;
pub(crate) mod keys;
pub(crate) mod keyword_set;
pub(crate) mod list;
pub(crate) mod other_files;
pub(crate) mod parse;
pub(crate) mod parsers;
pub(crate) mod paths;
pub(crate) mod reference;
pub(crate) mod source;
pub(crate) mod tree;
pub(crate) mod write;
