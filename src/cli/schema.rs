//! `schema`: the JSON Schema of a kind of file, for editors.

use super::failure::{ExitStatus, Failure};
use super::output;
use spec::{SchemaKind, json_schema};

/// Print the JSON Schema of experiment files, for editors and linters of TOML
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The kind of file
    #[arg(long = "for", value_enum, value_name = "KIND", default_value = "experiment")]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    Experiment,
    /// A file that experiments extend, which may lack required keys
    Base,
    /// A target file
    Target,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let schema = json_schema(match args.kind {
        Kind::Experiment => SchemaKind::Experiment,
        Kind::Base => SchemaKind::Base,
        Kind::Target => SchemaKind::Target,
    });
    output::print(&format!("{schema:#}\n"))?;
    Ok(ExitStatus::Complete)
}
