//! The states of an experiment as text.

use std::path::Path;

use super::survey::{Labelled, Survey};
use crate::aligned;
use crate::check::counted;
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
    let mut parts = match survey.expected {
        Some(expected) => vec![format!("{} of {} done", survey.done, counted(expected, "repeat"))],
        None => vec![format!("{} done", counted(survey.done, "repeat"))],
    };
    let missing: usize = survey.missing.iter().map(|run| run.of).sum();
    for (count, state) in [(survey.claimed, "running"), (survey.failed.len(), "failed"), (missing, "missing")]
    {
        parts.extend((count > 0).then(|| format!("{count} {state}")));
    }
    let mut text = parts.join(", ");
    let processes = survey.claimed.max(1);
    if !survey.left.is_zero() {
        let left = survey.left / u32::try_from(processes).unwrap_or(u32::MAX);
        text.push_str(&format!("; {} of training left", about(left)));
        if processes > 1 {
            text.push_str(&format!(" for {processes} processes"));
        }
    }
    if survey.unknown > 0 && !survey.left.is_zero() {
        text.push_str(&format!(", and {} of unknown time", counted(survey.unknown, "repeat")));
    }
    if survey.others > 0 {
        text.push_str(&format!("; {}", counted(survey.others, "further result")));
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
    let job = claimant.job.as_ref().map(|job| format!(", job {}", brief::line(job))).unwrap_or_default();
    format!("{}, process {}{job}", brief::line(host), claimant.process)
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

fn failed(Labelled { label, of: row }: &Labelled<Row>) -> [String; 3] {
    let mut text = row.status.to_string();
    if !row.message.is_empty() {
        text.push_str(&format!(": {}", brief::line(&row.message)));
    }
    [label.clone(), number(row.repeat), text]
}

fn missing(Labelled { label, of: count }: &Labelled<usize>) -> [String; 3] {
    [label.clone(), String::new(), counted(*count, "repeat")]
}
