//! (stands in for the expansion of file arguments)

use std::path::PathBuf;

use super::failure::Failure;

pub(super) fn expand(arguments: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for argument in arguments {
        let matches = glob::glob(argument).map_err(Failure::input)?;
        let found: Vec<PathBuf> = matches.filter_map(Result::ok).collect();
        if found.is_empty() {
            return Err(Failure::input(format!("no file matches `{argument}`")));
        }
        files.extend(found);
    }
    Ok(files)
}
