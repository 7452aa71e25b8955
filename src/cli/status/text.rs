//! The states of an experiment as text.

use std::path::Path;

use super::survey::{Labelled, Survey};
use crate::aligned;
use crate::progress::{about, duration};
use base::brief;
use base::temporary::Owner;
use results::{Claim, Row};

/// Lines of each state at most, unless all are requested.
const MOST: usize = 20;

/// A heading with counts, and a line for each repeat or run that is not done.
pub(super) fn block(name: &str, folder: &Path, survey: &Survey, all: bool) -> String {
    let mut lines: Vec<[String; 4]> = Vec::new();
    let mut more = Vec::new();
    let mut add = |state: &str, of_state: Vec<[String; 3]>| {
        let most = if all { usize::MAX } else { MOST };
        if of_state.len() > most {
            more.push(format!("{} more {state}", of_state.len() - most));
        }
        lines.extend(
            of_state.into_iter().take(most).map(|[label, repeat, text]| [state.into(), label, repeat, text]),
        );
    };
    add("running", survey.running.iter().map(running).collect());
    add("stopped", survey.stopped.iter().map(stopped).collect());
    add("failed", survey.failed.iter().map(failed).collect());
    add("missing", survey.missing.iter().map(missing).collect());
    let mut text = format!("{name} ({}): {}\n", folder.display(), counts(survey));
    aligned::columns(&lines, 0).iter().for_each(|line| text.push_str(&format!("{line}\n")));
    if !more.is_empty() {
        text.push_str(&format!("  and {}; --all lists them\n", more.join(", ")));
    }
    text
}

fn counts(survey: &Survey) -> String {
    let repeats = |count: usize| format!("{count} {}", if count == 1 { "repeat" } else { "repeats" });
    let mut parts = match survey.expected {
        Some(expected) => vec![format!("{} of {} done", survey.done, repeats(expected))],
        None => vec![format!("{} done", repeats(survey.done))],
    };
    let missing: usize = survey.missing.iter().map(|run| run.of).sum();
    for (count, state) in
        [(survey.running.len(), "running"), (survey.failed.len(), "failed"), (missing, "missing")]
    {
        parts.extend((count > 0).then(|| format!("{count} {state}")));
    }
    let mut text = parts.join(", ");
    let processes = survey.running.len().max(1);
    if !survey.left.is_zero() {
        let left = survey.left / u32::try_from(processes).unwrap_or(u32::MAX);
        text.push_str(&format!("; {} of training left", about(left)));
        if processes > 1 {
            text.push_str(&format!(" for {processes} processes"));
        }
    }
    if survey.unknown > 0 && !survey.left.is_zero() {
        text.push_str(&format!(", and {} of unknown time", repeats(survey.unknown)));
    }
    if survey.others > 0 {
        text.push_str(&format!("; {} more results of other runs", survey.others));
    }
    text
}

fn number(repeat: usize) -> String {
    format!("#{repeat}")
}

/// `node7, process 1234, job 55`
fn by(claim: &Claim) -> String {
    let Some(claimant) = &claim.claimant else { return "an unknown process".to_owned() };
    let host = if claimant.host.is_empty() { "an unknown host" } else { &claimant.host };
    let job = claimant.job.as_ref().map(|job| format!(", job {job}")).unwrap_or_default();
    format!("{host}, process {}{job}", claimant.process)
}

fn running(Labelled { label, of: claim }: &Labelled<Claim>) -> [String; 3] {
    let unchecked = match claim.owner {
        Owner::Unknown => "; not checked: its host is another, or the file system has no locks",
        _ => "",
    };
    let text = format!("{}, for {}{unchecked}", by(claim), duration(claim.age));
    [label.clone(), number(claim.repeat), text]
}

fn stopped(Labelled { label, of: claim }: &Labelled<Claim>) -> [String; 3] {
    let text = format!("{}, began {} ago and is gone", by(claim), duration(claim.age));
    [label.clone(), number(claim.repeat), text]
}

fn failed(row: &Row) -> [String; 3] {
    let status = format!("{:?}", row.status).to_lowercase();
    let message = brief::line(&row.message);
    let text = if message.is_empty() { status } else { format!("{status}: {message}") };
    [plan::title(&row.strategy, &row.axes), number(row.repeat), text]
}

fn missing(Labelled { label, of: count }: &Labelled<usize>) -> [String; 3] {
    [label.clone(), String::new(), format!("{count} {}", if *count == 1 { "repeat" } else { "repeats" })]
}
