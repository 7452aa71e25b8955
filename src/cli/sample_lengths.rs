//! The lengths of padded documents, as `check` shows them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::check::counted;
use super::data_sets::DataSets;
use data::SampleLengths;
use plan::Experiment;
use spec::RunConfig;

/// Lines about each arrangement of padded documents in an experiment; empty without any.
pub(super) fn text(experiment: &Experiment, data: &DataSets) -> String {
    let mut lines: Vec<String> = Vec::new();
    for config in experiment.points.iter().filter_map(|point| point.config.as_ref().ok()) {
        let sample = config.model.sample();
        let lengths = data.contents(config).and_then(|contents| contents.sample_lengths(&sample));
        if let (Some(mut lengths), Some(context)) = (lengths, sample.positions()) {
            if config.evaluation.is_none() {
                lengths.evaluation.clear();
            }
            let line = describe(&lengths, context);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines.extend(micro_batches(experiment.points.iter().filter_map(|point| point.config.as_ref().ok())));
    lines.concat()
}

fn describe(lengths: &SampleLengths, context: usize) -> String {
    let mut lines = String::new();
    for (split, lengths) in [("training", &lengths.training), ("evaluation", &lengths.evaluation)] {
        let mut sorted = lengths.clone();
        sorted.sort_unstable();
        let (Some(shortest), Some(longest)) = (sorted.first(), sorted.last()) else { continue };
        let tokens: u64 = sorted.iter().map(|length| u64::from(*length)).sum();
        let padding = 1.0 - tokens as f64 / (sorted.len() * context) as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            lines,
            "  {split}: {} of {shortest} to {longest} tokens (median {}), {tokens} in all; padded to {context}: \
             {:.0}% padding",
            counted(sorted.len(), "document"),
            sorted[sorted.len() / 2],
            100.0 * padding
        );
    }
    lines
}

/// The lengths of the micro-batches of all runs that are padded to the longest of each.
fn micro_batches<'a>(runs: impl Iterator<Item = &'a RunConfig>) -> Option<String> {
    let lengths: BTreeSet<usize> =
        runs.filter_map(|config| config.lengths.as_ref()).flat_map(|lengths| lengths.distinct()).collect();
    let (shortest, longest) = (lengths.first()?, lengths.last()?);
    Some(format!(
        "  pad_to = \"batch\": micro-batches of {shortest} to {longest} tokens, {} over all runs\n",
        counted(lengths.len(), "length")
    ))
}
