//! `init`: writes a commented experiment for a model, its data and a machine.

mod answers;
mod deepspeed;
mod document;
mod prompt;
mod strategies;

use std::path::{Component, Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::framework::FrameworkArgs;
use super::inputs::MachineArgs;
use super::{export, fits, output};
use ::plan::{Base, Point, expand_generated};
use answers::{Answers, Data, Model};
use deepspeed::Translation;
use document::{Document, Line, Table};
use fits::Proposal;
use spec::{ExperimentInput, Framework, KeywordEnum as _};

/// Write a commented experiment for a model, data and a machine; in a terminal, ask for what is not given
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model that `models` lists, or a model's folder or config.json
    #[arg(value_name = "MODEL")]
    model: Vec<String>,
    /// Blocks of a GPT of your own, with --d-model and --heads
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = size())]
    layers: Option<u32>,
    /// Channels of its residual stream
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = size())]
    d_model: Option<u32>,
    /// Its query heads
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = size())]
    heads: Option<u32>,
    /// Its tokens: more than the largest token id of the data. Default: bytes
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = size())]
    vocabulary: Option<u32>,
    /// Tokens of each sample; default: the model's context, at most 2048, or 1024
    #[arg(long, value_name = "TOKENS", value_parser = size())]
    context: Option<u32>,
    /// Text files to train on, or patterns such as 'data/*.txt'
    #[arg(long, value_name = "PATHS", num_args = 1.., conflicts_with_all = ["tokens", "synthetic"])]
    text: Vec<String>,
    /// Tokenizer of the text: a tokenizer.json. Default: that of the model's folder, else bytes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "synthetic"])]
    tokenizer: Option<String>,
    /// Files of token ids to train on, 16 bits each
    #[arg(long, value_name = "PATHS", num_args = 1.., conflicts_with = "synthetic")]
    tokens: Vec<String>,
    /// Train on generated tokens
    #[arg(long)]
    synthetic: bool,
    /// Samples of an optimizer step; default: that of --deepspeed, or 8
    #[arg(long, value_name = "SAMPLES", value_parser = size())]
    batch: Option<u32>,
    /// Translate a DeepSpeed configuration; what has no equivalent is listed
    #[arg(long, value_name = "FILE")]
    deepspeed: Option<PathBuf>,
    /// The card that strategies are proposed for: one that `devices --targets` lists, or a target file. Default: this machine
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    framework: FrameworkArgs,
    /// Strategies to compare, such as 'fp32,autocast,lora + checkpoint'. Default: those that `fits` finds best
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    strategies: Vec<String>,
    /// Name of the experiment and of its results; default: the file's, else the model's
    #[arg(long)]
    name: Option<String>,
    /// Write this schema on the first line, for editors
    #[arg(long, value_name = "FILE|URL")]
    schema: Option<String>,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "output")]
    force: bool,
}

fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1 << 24)
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    if let Some(file) = args.output.as_ref().filter(|file| file.exists() && !args.force) {
        return Err(Failure::input(format!(
            "{} exists\n = help: use another name, or --force to replace it",
            file.display()
        )));
    }
    let translation = args.deepspeed.as_deref().map(deepspeed::read).transpose()?.unwrap_or_default();
    if let (Some(_), Some((batch, keys))) = (args.batch, &translation.batch) {
        return Err(Failure::input(format!(
            "--batch and --deepspeed both set the batch size; {keys} is {batch}\n = help: remove --batch"
        )));
    }
    let answers = Answers::complete(&args, &translation)?;
    let draft = Draft { args: &args, answers: &answers, translation: &translation };
    let given = answers.strategies.iter().cloned();
    let strategies: Vec<Proposal> = match answers.strategies.is_empty() {
        true => draft.proposed()?,
        false => given.map(|combination| Proposal { combination, largest: None }).collect(),
    };
    draft.check(&strategies)?;
    let folder =
        args.output.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    let text = draft.text(&strategies, &|path| from_folder(path, folder));
    let source = args.deepspeed.as_deref().unwrap_or(Path::new("")).display();
    translation.notes.iter().for_each(|note| output::note(&format!("{source}: {note}")));
    match &args.output {
        Some(file) => {
            export::write(file, text)?;
            output::mention(&format!("wrote {}", file.display()));
        }
        None => output::print(&text)?,
    }
    Ok(ExitStatus::Complete)
}

/// A path of the working directory, as a file in another folder writes it.
fn from_folder(path: &str, folder: Option<&Path>) -> String {
    let (Some(folder), true) = (folder, Path::new(path).is_relative()) else { return path.to_owned() };
    let is_below = folder.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let depth = folder.components().filter(|part| matches!(part, Component::Normal(_))).count();
    match (is_below, std::env::current_dir()) {
        (true, _) => format!("{}{}", "../".repeat(depth), path.trim_start_matches("./")),
        (false, Ok(here)) => here.join(path).to_string_lossy().into_owned(),
        (false, Err(_)) => path.to_owned(),
    }
}

/// An experiment to be written.
struct Draft<'a> {
    args: &'a Args,
    answers: &'a Answers,
    translation: &'a Translation,
}

impl Draft<'_> {
    fn name(&self) -> String {
        let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let of_file = self.args.output.as_deref().and_then(stem);
        let of_model = match &self.answers.model {
            Model::Described(model) if fits::model_key(model) == "published" => Some(model.clone()),
            Model::Described(model) if model.ends_with("config.json") => {
                Path::new(model).parent().and_then(stem)
            }
            Model::Described(model) => stem(Path::new(model)),
            Model::Own { .. } => Some("gpt".to_owned()),
        };
        let name = self.args.name.clone().or(of_file).or(of_model).filter(|name| !name.is_empty());
        name.unwrap_or_else(|| "experiment".to_owned())
    }

    fn model(&self) -> Table {
        let context = Line::new("context", self.answers.context.to_string());
        match &self.answers.model {
            Model::Described(model) => {
                let key = fits::model_key(model);
                let line = if key == "config" { Line::path(key, model) } else { Line::text(key, model) };
                Table::new("model.hf", vec![line, context])
            }
            Model::Own { layers, d_model, heads, vocabulary } => {
                let sizes = [("layers", layers), ("d_model", d_model), ("heads", heads)];
                let sizes = sizes.map(|(key, size)| Line::new(key, size.to_string()));
                let vocabulary = Line::new("vocabulary", vocabulary.to_string());
                Table::new("model.transformer", sizes.into_iter().chain([context, vocabulary]).collect())
            }
        }
    }

    fn data(&self) -> Vec<Table> {
        match &self.answers.data {
            Data::Text { paths, tokenizer } => {
                let tokens = tokenizer
                    .iter()
                    .map(|file| Table::new("data.text.tokens", vec![Line::path("file", file)]));
                std::iter::once(Table::new("data.text", vec![Line::paths("paths", paths)]))
                    .chain(tokens)
                    .collect()
            }
            Data::Tokens(paths) => vec![Table::new("data.tokens", vec![Line::paths("paths", paths)])],
            Data::Synthetic => vec![self.synthetic()],
        }
    }

    fn synthetic(&self) -> Table {
        let tokens = match self.answers.model {
            Model::Own { vocabulary, .. } if vocabulary < 256 => {
                let successors = vocabulary.min(4);
                vec![
                    Line::new("tokens", vocabulary.to_string()),
                    Line::new("successors", successors.to_string()),
                ]
            }
            _ => Vec::new(),
        };
        Table::new("data.synthetic", tokens)
    }

    fn training(&self) -> Vec<Table> {
        let (batch, origin) = (self.answers.batch, self.translation.batch.as_ref());
        let batch = Line::new("batch_size", batch.to_string()).from(origin.map_or("", |(_, keys)| keys));
        let is_translated = self.args.deepspeed.is_some();
        let clip = (!is_translated).then(|| Line::number("clip_norm", 1.0));
        let train = std::iter::once(batch).chain(clip).chain(self.translation.train.iter().cloned());
        let mut tables = vec![Table::new("train", train.collect())];
        match self.translation.tables.is_empty() {
            true => tables.push(Table::new("train.optimizer.adamw", vec![Line::number("lr", 1e-4)])),
            false => tables.extend(self.translation.tables.iter().cloned()),
        }
        tables
    }

    /// The strategies that `fits` finds best. Its data is generated: memory depends on none.
    fn proposed(&self) -> Result<Vec<Proposal>, Failure> {
        let mut document = Document::new(&str::to_owned);
        let tables = [self.model(), self.synthetic()].into_iter().chain(self.training());
        tables.for_each(|table| document.table(&table));
        document.table(&Table::strategy("plain", Vec::new()));
        if matches!(self.answers.model, Model::Described(_)) {
            document.table(&Table::new("plan", vec![Line::text("torch_program", "trainer")]));
        }
        let planning = fits::Planning {
            framework: &self.args.framework,
            machine: self.args.machine,
            out: Path::new("results"),
            cards: 1,
        };
        fits::proposed(&self.name(), document.finish(), planning, self.answers.target.as_deref())
    }

    fn text(&self, strategies: &[Proposal], path: &dyn Fn(&str) -> String) -> String {
        let mut document = Document::new(&path);
        if let Some(schema) = &self.args.schema {
            document.directive(&format!(":schema {schema}"));
        }
        let file = self.args.output.as_ref().map_or("FILE".to_owned(), |file| file.display().to_string());
        let on = self.answers.target.as_ref().map(|target| format!(" --target {}", target.display()));
        let on = on.unwrap_or_default();
        document.comment(&format!(
            "Predict the memory of every strategy: runner plan {file}{on}\nTrain and compare them: runner sweep {file}\n\
             All keys: runner keys"
        ));
        document.blank();
        document.top(&[Line::text("name", &self.name())]);
        let tables = std::iter::once(self.model()).chain(self.data()).chain(self.training());
        tables.for_each(|table| document.table(&table));
        let measure = [("warmup_steps", 3), ("steps", 20), ("repeats", 1)];
        let measure = measure.map(|(key, number)| Line::new(key, number.to_string()));
        document.table(&Table::new("measure", measure.to_vec()));
        let limits = self.args.machine.limits();
        let limits = [("memory", limits.memory), ("host_memory", limits.host_memory)];
        let limits: Vec<Line> =
            limits.iter().filter_map(|(key, size)| Some(Line::text(key, &(*size)?.exact()))).collect();
        if !limits.is_empty() {
            document.table(&Table::new("target", limits));
        }
        if self.args.framework.framework() == Some(Framework::Pytorch) {
            let program = self.args.framework.program().unwrap_or_default();
            let program = Line::text("torch_program", program.keyword());
            document.table(&Table::new("plan", vec![Line::text("as", "pytorch"), program]));
        }
        document.blank();
        document.comment("Strategies: sets of memory choices. The first is the baseline of ratios.");
        self.strategies(strategies).iter().for_each(|table| document.table(table));
        if !self.translation.notes.is_empty() {
            document.blank();
            let file = self.args.deepspeed.as_deref().unwrap_or(Path::new("")).display();
            document.comment(&format!("Differences to {file}:"));
            self.translation.notes.iter().for_each(|note| document.comment(&format!("- {note}")));
        }
        document.finish()
    }

    /// The translated strategy, and those to compare it with.
    fn strategies(&self, others: &[Proposal]) -> Vec<Table> {
        let translated = self.args.deepspeed.as_ref();
        let translated = translated.map(|_| Table::strategy("deepspeed", self.translation.strategy.clone()));
        translated
            .into_iter()
            .chain(others.iter().map(|other| strategies::table(other, self.answers.batch)))
            .collect()
    }

    /// Fails if a key or a strategy is invalid. Paths are those of this folder, which the text is read from.
    fn check(&self, strategies: &[Proposal]) -> Result<(), Failure> {
        let (name, text) = (self.name(), self.text(strategies, &str::to_owned));
        let mut own = Document::new(&str::to_owned);
        self.strategies(strategies).iter().for_each(|table| own.table(table));
        let environment = |name: &str| std::env::var(name).ok();
        let input = ExperimentInput::Generated { name: &name, text: &text };
        let experiment = expand_generated(input, &[], &environment, Base::Plain, &own.finish());
        let experiment = experiment.map_err(Failure::input)?;
        let invalid = |point: &Point| {
            let reason = point.config.as_ref().err()?;
            Some(Failure::input(format!("the strategy {} is invalid: {reason}", point.strategy)))
        };
        experiment.points.iter().find_map(invalid).map_or(Ok(()), Err)
    }
}
