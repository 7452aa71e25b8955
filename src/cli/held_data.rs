//! The bytes of data that runs hold in memory as a whole, as `check` shows them.

use std::collections::BTreeSet;

use super::check::counted;
use base::units::Bytes;
use plan::Experiment;
use spec::RunConfig;

/// A line for each form in which runs of an experiment hold their data; empty without any.
pub(super) fn text(experiment: &Experiment) -> String {
    let runs = experiment.points.iter().filter_map(|point| point.config.as_ref().ok());
    runs.filter_map(describe).collect::<BTreeSet<String>>().into_iter().collect()
}

fn describe(config: &RunConfig) -> Option<String> {
    let parts = config.held_parts();
    let (len, bytes) = (config.data_len?, u64::try_from(config.held_bytes()?).ok()?);
    if parts.is_empty() {
        return None;
    }
    let unit = if config.data.data_set().is_row() { "token" } else { "sample" };
    let types: Vec<String> = parts.iter().map(|part| format!("{} {}", part.name, part.ty)).collect();
    let source = config.strategy.loader.source.name();
    Some(format!(
        "  loader.source = \"{source}\": {} in memory, {} of {}\n",
        Bytes(bytes),
        counted(len, unit),
        types.join(" and ")
    ))
}
