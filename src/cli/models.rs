//! `models`: lists the model families and the built-in configurations.

use super::devices::columns;
use super::failure::{ExitStatus, Failure};
use super::{output, terminal};
use compare::wrap;
use spec::{BuiltInModel, KeywordEnum as _, ModelFamily, built_in_models};

/// List the Hugging Face families that can be described, and the built-in configurations with their sizes
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HEADINGS: [&str; 7] = ["name", "family", "blocks", "channels", "context", "vocabulary", "parameters"];

#[derive(serde::Serialize)]
struct Described {
    name: String,
    family: &'static str,
    blocks: usize,
    channels: usize,
    context: usize,
    vocabulary: usize,
    parameters: u64,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let models = built_in_models().map_err(Failure::machine)?;
    let models: Vec<Described> = models.iter().filter_map(described).collect();
    match args.json {
        true => {
            let json = serde_json::to_string_pretty(&models).map_err(Failure::machine)?;
            output::print(&format!("{json}\n"))?;
        }
        false => output::show(&text(&models, terminal::text_width()))?,
    }
    Ok(ExitStatus::Complete)
}

fn described(BuiltInModel { name, family, model }: &BuiltInModel) -> Option<Described> {
    let transformer = model.transformer()?;
    Some(Described {
        name: name.clone(),
        family: family.keyword(),
        blocks: transformer.layers,
        channels: transformer.d_model,
        context: transformer.context,
        vocabulary: transformer.vocabulary,
        parameters: graph::build(model, 1).parameters(),
    })
}

fn text(models: &[Described], width: usize) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(models.iter().map(|model| {
        let Described { name, family, blocks, channels, context, vocabulary, parameters } = model;
        let sizes = [blocks, channels, context, vocabulary].map(usize::to_string);
        let [blocks, channels, context, vocabulary] = sizes;
        [name.clone(), (*family).to_owned(), blocks, channels, context, vocabulary, grouped(*parameters)]
    }));
    let families: Vec<String> =
        ModelFamily::ALL.iter().map(|family| format!("{} ({})", family.keyword(), family.class())).collect();
    let families = format!(
        "Any config.json of these families can be described (`model.hf = \"./FOLDER\"`), by its `model_type`: {}. Other \
         decoders: [model.transformer].",
        families.join(", ")
    );
    format!(
        "Built-in configurations, for `model.hf = \"NAME\"`:\n\n{}\n{}\n",
        columns::aligned(&lines, width),
        wrap(&families, width)
    )
}

/// `1,235,814,400`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, rest) = digits.split_at(first);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let head = (!head.is_empty()).then(|| head.to_owned());
    head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}
