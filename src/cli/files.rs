//! Experiment files on the command line.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use base::globs::{self, GlobError};
use base::regular;
use plan::{Experiment, Point};

/// The files of the arguments. Each argument is a path, or a glob that the shell did not expand. Fails if one matches
/// nothing.
fn find(arguments: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let mut files: Vec<PathBuf> = Vec::new();
    for argument in arguments {
        for file in matches(argument)? {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn matches(argument: &str) -> Result<Vec<PathBuf>, Failure> {
    let literal = Path::new(argument);
    if literal.exists() || !argument.contains(['*', '?', '[']) {
        return Ok(vec![literal.to_path_buf()]);
    }
    let files = globs::files(argument).map_err(|error| {
        Failure::input(match error {
            GlobError::Invalid(problem) => format!("`{argument}` is not a valid glob: {problem}"),
            GlobError::Unreadable { path, error } => {
                format!("cannot read {}: {}", path.display(), regular::reason(&error))
            }
            GlobError::TooMany => format!("`{argument}` is too wide: name a narrower folder"),
        })
    })?;
    if files.is_empty() {
        return Err(Failure::input(format!("no file matches `{argument}`")));
    }
    Ok(files)
}

/// Expands one experiment, with this process's environment variables. Fails if a wanted strategy is invalid at every
/// point.
fn expand(
    file: &Path,
    overrides: &[String],
    is_wanted: impl Fn(&Point) -> bool,
) -> Result<Experiment, Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    let experiment = plan::expand_all(file, overrides, &environment).map_err(Failure::input)?;
    experiment.check(is_wanted).map_err(Failure::input)?;
    Ok(experiment)
}

/// Fails if two experiments would write the same results.
fn distinct_names(experiments: &[Experiment]) -> Result<(), Failure> {
    for (index, experiment) in experiments.iter().enumerate() {
        let same = |other: &&Experiment| other.name == experiment.name;
        if let Some(other) = experiments[..index].iter().find(same) {
            let message =
                format!("the experiment in {1} is also called `{0}`", experiment.name, other.file.display());
            let help = "give each a different name".to_string();
            return Err(Failure::input(experiment.sources.error_at("name", message, Some(help))));
        }
    }
    Ok(())
}

/// Expands all experiments of the arguments. Reports the mistakes of all files, and duplicate names.
pub(super) fn expand_all(
    arguments: &[String],
    overrides: &[String],
    is_wanted: impl Fn(&Point) -> bool,
) -> Result<Vec<Experiment>, Failure> {
    let files = find(arguments)?;
    let experiments = Failure::collect(files.iter().map(|file| expand(file, overrides, &is_wanted)))?;
    distinct_names(&experiments)?;
    Ok(experiments)
}
