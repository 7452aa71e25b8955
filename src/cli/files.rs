//! Arguments that name experiment files.

use std::io;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use base::regular;
use plan::Experiment;

/// The files that arguments name: each a path, or a pattern that the shell passed on. Fails where one matches
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
    let paths = glob::glob(argument)
        .map_err(|error| Failure::input(format!("`{argument}` is not a pattern of files: {}", error.msg)))?;
    let unreadable =
        |path: &Path, error: &io::Error| Failure::input(format!("cannot read {}: {error}", path.display()));
    let mut files = Vec::new();
    for path in paths {
        // One that cannot be looked at may be an experiment, and is not left out.
        let path = path.map_err(|error| unreadable(error.path(), error.error()))?;
        if regular::is_file(&path).map_err(|error| unreadable(&path, &error))? {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Failure::input(format!("no file matches `{argument}`")));
    }
    Ok(files)
}

/// Expands one experiment, with the variables of this process.
fn expand(file: &Path, overrides: &[String]) -> Result<Experiment, Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    plan::expand(file, overrides, &environment).map_err(Failure::input)
}

/// Fails where two experiments would write the same results.
fn distinct_names(experiments: &[Experiment]) -> Result<(), Failure> {
    for (index, experiment) in experiments.iter().enumerate() {
        let same = |other: &&Experiment| other.name == experiment.name;
        if let Some(other) = experiments[..index].iter().find(same) {
            let message =
                format!("`{}` also names the experiment in {}", experiment.name, other.file.display());
            let help = "give each a name of its own".to_string();
            return Err(Failure::input(experiment.sources.error_at("name", message, Some(help))));
        }
    }
    Ok(())
}

/// Expands all experiments that arguments name. Says what is wrong with each, or which two have one name.
pub(super) fn expand_all(arguments: &[String], overrides: &[String]) -> Result<Vec<Experiment>, Failure> {
    let files = find(arguments)?;
    let experiments = Failure::collect(files.iter().map(|file| expand(file, overrides)))?;
    distinct_names(&experiments)?;
    Ok(experiments)
}
