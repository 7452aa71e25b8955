//! Recognises files that are given in place of an experiment, a target file or a table of results, and tells what they are
//! for.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::paths::escape_variables;
use super::tree::quoted;
use base::regular;

/// Bytes of a file's beginning that are examined.
const HEAD: u64 = 1 << 16;

/// Lines of an experiment, after those of its model.
const REST: [&str; 3] =
    ["data.synthetic = {}", "train = { batch_size = 8, optimizer.adamw.lr = 3e-4 }", "strategies.plain = {}"];
const MODEL: &str = "model.transformer = { layers = 12, d_model = 768, heads = 12, context = 1024 }";
const WRITE: &str = "an experiment is written in TOML; these lines are a complete one";
/// The end of the lines of a model, tokenizer or data set, of which an experiment needs more.
const NAME: &str = "name it in an experiment (TOML)";

/// The kind of file that a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Experiment,
    Target,
    Table,
}

impl Wanted {
    fn name(self) -> &'static str {
        match self {
            Wanted::Experiment => "an experiment",
            Wanted::Target => "a target file",
            Wanted::Table => "a table of results",
        }
    }

    fn extension(self) -> &'static str {
        if self == Wanted::Table { ".csv" } else { ".toml" }
    }

    fn kind(self) -> OtherKind {
        match self {
            Wanted::Experiment => OtherKind::Experiment,
            Wanted::Target => OtherKind::Target,
            Wanted::Table => OtherKind::Table,
        }
    }

    /// What to name instead. An experiment is written, by lines that depend on the file.
    fn help(self) -> Option<&'static str> {
        match self {
            Wanted::Experiment => None,
            Wanted::Target => Some(
                "name a card that `runner devices --targets` lists, or a file that `runner devices --target FILE` wrote",
            ),
            Wanted::Table => Some("name tables that `runner sweep` wrote, such as results/*.csv"),
        }
    }
}

/// A file of another kind than the wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherFile {
    pub kind: OtherKind,
    /// `an empty file`
    name: &'static str,
    pub help: String,
    /// What to write.
    pub lines: Vec<String>,
}

/// What several kinds of files have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherKind {
    Folder,
    Empty,
    Experiment,
    Target,
    /// A table of results, or any other.
    Table,
    Other,
}

impl OtherFile {
    fn new(name: &'static str, help: impl Into<String>) -> OtherFile {
        OtherFile { kind: OtherKind::Other, name, help: help.into(), lines: Vec::new() }
    }

    fn of_kind(self, kind: OtherKind) -> OtherFile {
        OtherFile { kind, ..self }
    }

    fn lines(self, lines: impl IntoIterator<Item = String>) -> OtherFile {
        OtherFile { lines: lines.into_iter().collect(), ..self }
    }

    /// With a complete experiment.
    fn experiment(name: &'static str, model: &str) -> OtherFile {
        let lines = std::iter::once(model).chain(REST).map(str::to_owned);
        OtherFile::new(name, WRITE).lines(lines)
    }

    /// `config.json is the configuration of a Hugging Face model, not an experiment`
    pub fn message(&self, path: &Path, wanted: Wanted) -> String {
        format!("{} is {}, not {}", path.display(), self.name, wanted.name())
    }
}

/// Recognises a file of another kind than the wanted one, by its contents, else by its name's extension. `None` if it
/// cannot be read, or may be of the wanted kind.
pub fn other_file(path: &Path, wanted: Wanted) -> Option<OtherFile> {
    let other = match regular::is_folder(path).ok()? {
        true => folder(path, wanted),
        false => recognised(path)?,
    };
    // Lines are those of an experiment.
    let has_own_help =
        other.lines.is_empty() && (wanted, other.kind) != (Wanted::Target, OtherKind::Experiment);
    match wanted.help() {
        _ if other.kind == wanted.kind() => None,
        Some(help) if !has_own_help => Some(OtherFile { help: help.to_owned(), lines: Vec::new(), ..other }),
        _ => Some(other),
    }
}

fn recognised(path: &Path) -> Option<OtherFile> {
    let shown = path.display();
    let mut head = Vec::new();
    regular::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    if let Some((name, help)) = data::file_format(&head, path) {
        let is_weights = name == "a safetensors file";
        return Some(match is_weights {
            true => OtherFile::new("the parameters of a model (safetensors)", NAME).lines([
                "[model.hf]".to_owned(),
                format!("config = {}", written(&path.with_file_name("config.json"))),
                format!("weights = {}", written(path)),
            ]),
            false if name.starts_with("text in UTF-") => OtherFile::new(name, help),
            false => OtherFile::experiment(name, MODEL),
        });
    }
    let text = String::from_utf8_lossy(&head);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let first = lines.next();
    let is_script =
        |of: &str| text.starts_with("#!") && text.lines().next().is_some_and(|line| line.contains(of));
    match (first, extension.as_str()) {
        _ if is_script("python") => Some(OtherFile::experiment("a Python script", MODEL)),
        _ if is_script("sh") => Some(OtherFile::experiment("a shell script", MODEL)),
        (None, _) if !text.contains('\0') => {
            let name = if text.trim().is_empty() { "an empty file" } else { "a file of comments only" };
            Some(OtherFile::experiment(name, MODEL).of_kind(OtherKind::Empty))
        }
        (Some(first), extension) if first.starts_with('{') || first == "[" || extension == "json" => {
            Some(json(path, text))
        }
        (_, "jsonl" | "ndjson") => Some(json(path, text)),
        (_, "csv" | "tsv") => Some(table(path, first.unwrap_or_default())),
        (_, "yaml" | "yml") => Some(OtherFile::experiment("a YAML file", MODEL)),
        (_, "py") => Some(OtherFile::experiment("a Python script", MODEL)),
        (_, "sh" | "bash" | "sbatch" | "slurm") => Some(OtherFile::experiment("a shell script", MODEL)),
        (Some(first), _) if is_python(first) => Some(OtherFile::experiment("a Python script", MODEL)),
        (Some(first), _)
            if is_yaml(first) && !lines.any(|line| line.starts_with('[') || line.contains(" = ")) =>
        {
            Some(OtherFile::experiment("a YAML file", MODEL))
        }
        (Some(first), _)
            if first.split([',', ';', '\t']).any(|cell| cell.trim_matches('"') == "strategy") =>
        {
            Some(table(path, first))
        }
        _ => {
            let keys = || text.lines().map(str::trim).filter_map(|line| line.split(['=', '.', ']']).next());
            let has = |wanted: &str| keys().any(|key| key.trim() == wanted);
            if ["[model", "[strategies", "[data", "[train", "extends"].into_iter().any(has) {
                let help =
                    format!("predict it with `runner plan {shown}`, train it with `runner sweep {shown}`");
                Some(OtherFile::new("an experiment", help).of_kind(OtherKind::Experiment))
            } else if has("kind") && has("memory") {
                let help = format!("plan an experiment for it: `runner plan FILE.toml --target {shown}`");
                Some(OtherFile::new("a target file", help).of_kind(OtherKind::Target))
            } else {
                None
            }
        }
    }
}

/// A folder: its files that can be given instead.
fn folder(path: &Path, wanted: Wanted) -> OtherFile {
    let mut names: Vec<String> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .take(10_000)
        .collect();
    names.sort();
    let shown = path.display();
    let folder = |help: String| OtherFile::new("a folder", help).of_kind(OtherKind::Folder);
    let end = wanted.extension();
    if names.iter().any(|name| name.ends_with(end)) {
        return folder(format!("name its files, as in {shown}/*{end}"));
    }
    if names.iter().any(|name| name == "config.json") {
        let config = path.join("config.json");
        return folder(NAME.to_owned())
            .lines(["[model.hf]".to_owned(), format!("config = {}", written(&config))]);
    }
    folder(wanted.help().unwrap_or("name a file in it").to_owned())
}

fn table(path: &Path, header: &str) -> OtherFile {
    let is_results =
        header.split([',', ';', '\t', '|']).any(|cell| cell.trim().trim_matches('"') == "strategy");
    let table = match is_results {
        true => {
            OtherFile::new("a table of results", format!("compare it: `runner compare {}`", path.display()))
        }
        false => OtherFile::experiment("a table (CSV)", MODEL),
    };
    table.of_kind(OtherKind::Table)
}

/// A path as an experiment has it.
fn written(path: &Path) -> String {
    quoted(&escape_variables(&path.display().to_string()))
}

fn json(path: &Path, text: &str) -> OtherFile {
    let has = |keys: &[&str]| keys.iter().any(|key| text.contains(&format!("\"{key}\"")));
    let lines = |lines: [String; 3]| OtherFile::new("", NAME).lines(lines);
    let mut objects = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_lines = objects.clone().take(2).all(|line| line.starts_with('{') && line.ends_with('}'))
        && (objects.nth(1).is_some() || path.extension().is_some_and(|extension| extension == "jsonl"));
    match () {
        () if has(&["run_id"]) && has(&["status"]) => OtherFile::new(
            "the result of one run",
            "compare the tables that `runner sweep` writes: results/*.csv",
        ),
        () if is_lines => {
            let field = ["text", "content", "messages", "prompt"].into_iter().find(|field| has(&[*field]));
            let field = field.unwrap_or("text");
            let lines = lines([
                "[data.text]".to_owned(),
                format!("paths = [{}]", written(path)),
                format!("jsonl = {field:?}"),
            ]);
            OtherFile { name: "a JSON Lines file", ..lines }
        }
        () if has(&["nbformat"]) => OtherFile::experiment("a notebook", MODEL),
        () if has(&["added_tokens"]) && has(&["model"]) => {
            let file = format!("tokens = {{ file = {} }}", written(path));
            let lines = lines(["[data.text]".to_owned(), "paths = [\"*.txt\"]".to_owned(), file]);
            OtherFile { name: "the tokenizer of a model", ..lines }
        }
        () if has(&["weight_map"]) => {
            let config = path.with_file_name("config.json");
            let weights = format!("weights = {}", written(path));
            let lines = lines(["[model.hf]".to_owned(), format!("config = {}", written(&config)), weights]);
            OtherFile { name: "the index of a model's parameters", ..lines }
        }
        () if has(&["zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"]) => {
            OtherFile::experiment("a DeepSpeed configuration", MODEL)
        }
        () if has(&["model_type", "architectures"]) => {
            let model = format!("model.hf = {{ config = {} }}", written(path));
            OtherFile::experiment("the configuration of a Hugging Face model", &model)
        }
        () => OtherFile::experiment("a JSON file", MODEL),
    }
}

fn is_python(line: &str) -> bool {
    let is_import = line.starts_with("from ") && line.contains(" import ");
    is_import || ["import ", "def ", "class ", "\"\"\"", "@"].into_iter().any(|begin| line.starts_with(begin))
}

/// `---`, `- element` or `key: value`.
fn is_yaml(line: &str) -> bool {
    let key = line.split_once(':').filter(|(_, value)| value.is_empty() || value.starts_with(' '));
    let is_key =
        |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    line == "---"
        || line.starts_with("%YAML")
        || line.starts_with("- ")
        || key.is_some_and(|(key, _)| is_key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, contents: &[u8]) -> Option<OtherFile> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), contents).unwrap();
        recognised(&folder.path().join(name))
    }

    #[test]
    fn files_are_recognised_by_contents_or_extension() {
        for (name, contents, kind) in [
            ("a.toml", "", "an empty file"),
            ("a.toml", "\n \n", "an empty file"),
            ("a.toml", "# nothing\n", "a file of comments only"),
            ("a", "{\n \"model_type\": \"gpt2\"", "the configuration of a Hugging Face model"),
            ("a", "{\"zero_optimization\": {}}", "a DeepSpeed configuration"),
            ("a", "{\"weight_map\": {}}", "the index of a model's parameters"),
            ("a", "{\"added_tokens\": [], \"model\": {}}", "the tokenizer of a model"),
            ("a", "{\"cells\": [], \"nbformat\": 4}", "a notebook"),
            ("a", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n", "a JSON Lines file"),
            ("a.jsonl", "{\"text\": \"x\"}\n", "a JSON Lines file"),
            ("a", "{\"status\": \"ok\", \"run_id\": \"0\"}", "the result of one run"),
            ("a", "{\"a\": [1,", "a JSON file"),
            ("a", "[\n1]", "a JSON file"),
            ("a", "# Axolotl\nbase_model: x\nload_in_8bit: false\n", "a YAML file"),
            ("a", "---\n- a\n", "a YAML file"),
            ("a.yml", "a\n", "a YAML file"),
            ("a", "from torch import nn\n", "a Python script"),
            ("a.py", "x = 1\n", "a Python script"),
            ("a", "#!/usr/bin/env python3\n", "a Python script"),
            ("a", "#!/bin/bash\nsrun python a.py\n", "a shell script"),
            ("a", "experiment,strategy\n", "a table of results"),
            ("a", "\"strategy\";peak\n", "a table of results"),
            ("a.csv", "x,y\n", "a table (CSV)"),
            ("a", "name = \"x\"\n[strategies.plain]\n", "an experiment"),
            ("a", "extends = \"b.toml\"\n", "an experiment"),
            ("a", "kind = \"cpu\"\nmemory = \"8 GiB\"\n", "a target file"),
            ("a", "PK\u{3}\u{4}", "a zip archive"),
        ] {
            assert_eq!(told(name, contents.as_bytes()).map(|other| other.name), Some(kind), "{contents}");
        }
        for contents in ["a = 1\n", "[package]\nname = \"x\"\n", "lr = 0,1\n", "[train]\nlr: 3\n", "\0"] {
            let told = told("a.toml", contents.as_bytes());
            assert!(
                told.as_ref().is_none_or(|other| other.kind == OtherKind::Experiment),
                "{contents} {told:?}"
            );
        }
    }

    #[test]
    fn folders_name_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let help = || {
            let OtherFile { help, lines, .. } = other_file(folder.path(), Wanted::Experiment).unwrap();
            [vec![help], lines].concat().join("\n").replace(folder.path().to_str().unwrap(), "DIR")
        };
        assert_eq!(help(), "name a file in it");
        fs::write(folder.path().join("config.json"), "").unwrap();
        assert_eq!(help(), "name it in an experiment (TOML)\n[model.hf]\nconfig = \"DIR/config.json\"");
        fs::write(folder.path().join("a.toml"), "").unwrap();
        assert_eq!(help(), "name its files, as in DIR/*.toml");
    }
}
