//! Paths of experiment files, made absolute.

use super::reference::Accepts;
use std::path::{Component, Path, PathBuf};

use super::declare::KeyCodec;
use super::error::Problem;
use super::forms::{Form, GLOB_MISTAKE, NOT_EMPTY};
use super::keys::{Keys, Reader};
use super::list::List;
use super::tree::{Node, Value, quoted};
use super::write::{TableWriter, WriteMode};

/// Looks up a variable of the environment.
pub type Environment<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Replaces `${VAR}` by the variable's value and `$$` by `$`. Fails with a message and a hint if a variable is not set
/// or has no braces, if a brace is not closed, or at `~`.
pub(crate) fn expand_variables(
    text: &str,
    environment: &Environment<'_>,
) -> Result<String, (String, String)> {
    if let Some(after) = text.strip_prefix('~').filter(|after| after.is_empty() || after.starts_with('/')) {
        return Err((
            format!("`~` is not expanded in `{text}`"),
            format!("write ${{HOME}}{after}, or ./{text} for a folder of this name"),
        ));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err((
            format!("`{text}` is not a local path"),
            format!("download it first: {scheme}:// is not read"),
        ));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err((
                    format!("the brace of a variable is not closed in `{text}`"),
                    "write ${VAR}, or $$ for a dollar sign".to_string(),
                ));
            };
            match environment(name) {
                Some(value) => out.push_str(&value),
                None => {
                    return Err((
                        format!("the environment variable `{name}` is not set"),
                        format!("set it, as in `export {name}=...`, or write the path without it"),
                    ));
                }
            }
            rest = after;
        } else {
            let name =
                &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())];
            if name.starts_with(|c: char| !c.is_ascii_digit()) {
                return Err((
                    format!("the variable `${name}` has no braces in `{text}`"),
                    format!("write ${{{name}}}, or $${name} for a dollar sign"),
                ));
            }
            out.push('$');
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Regular expressions of texts that `expand_variables` refuses, whatever the environment.
const NOT_EXPANDED: [&str; 4] =
    ["^~(/|$)", "://", r"(^|[^$])(\$\$)*\$[A-Za-z_]", r"(^|[^$])(\$\$)*\$\{[^}]*$"];

/// The inverse of [`expand_variables`].
pub(crate) fn escape_variables(text: &str) -> String {
    text.replace('$', "$$")
}

/// An absolute path without `.` and `..`, from an absolute directory. If the path has wildcards, wildcard characters in
/// the directory's name are escaped.
pub(crate) fn absolute(directory: &Path, path: &str) -> PathBuf {
    let has_wildcards = path.contains(['*', '?', '[']);
    let directory = match directory.to_str() {
        Some(directory) if has_wildcards => PathBuf::from(glob::Pattern::escape(directory)),
        _ => directory.to_path_buf(),
    };
    joined(directory, path)
}

/// Joins a directory and a path, without `.` and `..`.
fn joined(directory: PathBuf, path: &str) -> PathBuf {
    let mut result = directory;
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// A path for display: without `.`, and without `..` after a name.
pub(crate) fn tidy(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(result.components().next_back(), Some(Component::Normal(_))) => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// Paths and globs, at least one.
pub(crate) const PATHS: List<PathCodec> = List {
    of: "paths",
    example: "[\"../src/**/*.rs\"]",
    may_be_empty: false,
    may_repeat: false,
    element: PathCodec { example: "../src/**/*.rs", in_folder: None, is_glob: true },
};

/// Paths and globs of files for evaluation.
pub(crate) const EVALUATION_PATHS: List<PathCodec> = List {
    of: "paths",
    example: "[\"../val/*.txt\"]",
    may_be_empty: true,
    may_repeat: false,
    element: PATHS.element,
};

/// One file, without wildcards, and an example of its name.
pub(crate) const fn file_path(example: &'static str) -> PathCodec {
    PathCodec { example, in_folder: None, is_glob: false }
}

/// One file of this name, or the folder that it is in.
pub(crate) const fn file_in_folder(name: &'static str) -> PathCodec {
    PathCodec { example: name, in_folder: Some(name), is_glob: false }
}

/// A path.
pub(crate) struct PathCodec {
    example: &'static str,
    /// The file that a folder stands for.
    in_folder: Option<&'static str>,
    /// Whether it may have wildcards.
    is_glob: bool,
}

impl KeyCodec for PathCodec {
    type Output = PathBuf;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<PathBuf> {
        let path = match &node.value {
            Value::Text(text) if !text.is_empty() => match self.is_glob {
                true => path(keys.reader(), node, text),
                false => file(keys.reader(), node, text),
            },
            found => {
                let (name, example) = (keys.name(key), self.example);
                let problem = format!("`{name}` must be a path, such as \"{example}\", not {found}");
                Err(Problem::new(problem).at(node.span))
            }
        };
        let path = path.map_err(|problem| keys.reader().problem(problem)).ok()?;
        Some(self.in_folder.filter(|_| path.is_dir()).map_or(path.clone(), |name| path.join(name)))
    }

    fn write(&self, key: &str, value: &PathBuf, lines: &mut TableWriter) {
        // The identity of a run contains the digest of the file, not its path.
        if lines.form() == WriteMode::Complete {
            lines.line(key, &quoted(&escape_variables(&value.to_string_lossy())));
        }
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"{}\"", self.example)
    }

    fn accepts(&self) -> Accepts {
        let glob_mistake = self.is_glob.then_some(GLOB_MISTAKE);
        let refused: Vec<&str> = NOT_EXPANDED.into_iter().chain(glob_mistake).collect();
        let form = Form::Text { pattern: NOT_EMPTY.to_owned(), refused: Some(refused.join("|")) };
        Accepts::value("a path, relative to the file; ${VARIABLE} is expanded", vec![form])
    }
}

/// The absolute path of a file: variables are replaced, and relative paths start at the directory of the experiment
/// file.
fn file(reader: &Reader<'_>, node: &Node, text: &str) -> Result<PathBuf, Problem> {
    let expanded = expand_variables(text, reader.environment)
        .map_err(|(message, help)| Problem::new(message).at(node.span).help(help))?;
    // Wildcard characters are literal.
    let path = joined(reader.sources.directory(node.span).to_path_buf(), &expanded);
    if path.to_str().is_none() {
        return Err(Problem::new("the path of the experiment is not UTF-8 text").at(node.span));
    }
    Ok(path)
}

/// An absolute path or glob: variables are replaced, and relative paths start at the directory of the experiment file.
fn path(reader: &Reader<'_>, node: &Node, text: &str) -> Result<PathBuf, Problem> {
    let expanded = expand_variables(text, reader.environment)
        .map_err(|(message, help)| Problem::new(message).at(node.span).help(help))?;
    let path = absolute(reader.sources.directory(node.span), &expanded);
    if path.to_str().is_none() {
        return Err(Problem::new("the path of the experiment is not UTF-8 text").at(node.span));
    }
    glob::Pattern::new(&path.to_string_lossy()).map_err(|error| {
        Problem::new(format!("`{text}` is not a valid path with wildcards: {}", error.msg))
            .at(node.span)
            .help("`*` matches part of a name, `**` any folders, `[ab]` one of several characters")
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced() {
        let environment = |name: &str| (name == "A").then(|| "x/y".to_string());
        let expand = |text| expand_variables(text, &environment).map_err(|(message, _)| message);
        assert_eq!(expand("$1$./$"), Ok("$1$./$".to_string()));
        for text in ["~", "~/x", "$A/x", "x/$_b", "https://a/b.txt"] {
            assert!(expand(text).is_err(), "{text}");
        }
        assert_eq!(expand("./~/x~"), Ok("./~/x~".to_string()));
        assert_eq!(expand("${A}/${A}$$b$"), Ok("x/y/x/y$b$".to_string()));
        assert_eq!(expand("${B}"), Err("the environment variable `B` is not set".to_string()));
        assert_eq!(expand("${A"), Err("the brace of a variable is not closed in `${A`".to_string()));
        assert_eq!(expand(&escape_variables("a${A}$")), Ok("a${A}$".to_string()));
    }

    #[test]
    fn paths_are_normalized() {
        assert_eq!(absolute(Path::new("/a/b"), "../c/./d.txt"), Path::new("/a/c/d.txt"));
        assert_eq!(absolute(Path::new("/a/b"), "/c"), Path::new("/c"));
        assert_eq!(absolute(Path::new("/a[1]"), "c"), Path::new("/a[1]/c"));
        assert_eq!(absolute(Path::new("/a[1]"), "*"), Path::new("/a[[]1[]]/*"));
        assert_eq!(tidy(Path::new("experiments/../base/./a.toml")), Path::new("base/a.toml"));
        assert_eq!(tidy(Path::new("../../a.toml")), Path::new("../../a.toml"));
    }
}
