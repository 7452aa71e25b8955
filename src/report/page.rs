//! The page: template, style, script and charting library in one file, with the data as JSON.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Experiment;
use crate::chart::{Chart, PALETTE};
use crate::tables::{self, Table};
use crate::timeline::Timeline;
use base::brief;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 2] = [include_str!("page.js"), include_str!("page_charts.js")];
/// Chart.js, MIT licence: see `chart.js/LICENSE.md`, which the page holds too.
const LIBRARY: &str = include_str!("chart.js/chart.umd.min.js");
const LICENCE: &str = include_str!("chart.js/LICENSE.md");

#[derive(Serialize)]
struct Data<'a> {
    version: &'static str,
    licence: &'static str,
    palette: [&'static str; PALETTE.len()],
    experiments: Vec<ExperimentData<'a>>,
}

#[derive(Serialize)]
struct ExperimentData<'a> {
    name: &'a str,
    heading: &'a [String],
    verdict: &'a [String],
    legend: &'a [String],
    notes: &'a [String],
    comparison: Table,
    effects: Table,
    machines: Table,
    commands: Table,
    speed: &'a [Chart],
    memory: &'a [Chart],
    loss: &'a [Chart],
    timelines: Vec<TimelineData<'a>>,
}

#[derive(Serialize)]
struct TimelineData<'a> {
    title: &'a str,
    note: &'a str,
    #[serde(flatten)]
    timeline: &'a Timeline,
}

pub(crate) fn page(experiments: &[Experiment]) -> String {
    let names: Vec<&str> = experiments.iter().map(|one| one.compared.experiment.as_str()).collect();
    let data = Data {
        version: env!("CARGO_PKG_VERSION"),
        licence: LICENCE,
        palette: PALETTE,
        experiments: experiments.iter().map(of_experiment).collect(),
    };
    // Without the reference to its source map, which a browser's tools would fetch.
    let library = LIBRARY.split("\n//# sourceMappingURL=").next().unwrap_or(LIBRARY);
    let script = SCRIPTS.concat();
    let json = serde_json::to_string(&data).expect("report data has only text keys");
    let policy = format!(
        "default-src 'none'; img-src data:; script-src {} {}; style-src {}; base-uri 'none'; form-action 'none'",
        hash(library),
        hash(&script),
        hash(STYLE)
    );
    let parts = [
        ("policy", policy),
        ("title", escaped(&names.join(", "))),
        ("style", STYLE.to_owned()),
        ("library", library.to_owned()),
        ("data", in_script(&json)),
        ("script", script),
    ];
    fill(TEMPLATE, &parts)
}

fn of_experiment(experiment: &Experiment) -> ExperimentData<'_> {
    let Experiment { compared, files, notes, speed, memory, loss, timelines, commands } = experiment;
    ExperimentData {
        name: &compared.experiment,
        heading: &compared.heading,
        verdict: &compared.verdict,
        legend: &compared.legend,
        notes,
        comparison: tables::comparison(compared),
        effects: tables::effects(compared),
        machines: tables::machines(compared),
        commands: tables::commands(compared, commands),
        speed,
        memory,
        loss,
        timelines: timelines
            .iter()
            .filter_map(|one| {
                let (title, note, timeline) = (&one.title, &one.note, files[one.row].timeline.as_ref()?);
                Some(TimelineData { title, note, timeline })
            })
            .collect(),
    }
}

/// Replaces each `{{name}}` of the template once; texts that are inserted are not searched.
fn fill(template: &str, parts: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut rest = template;
    for (name, text) in parts {
        let mark = format!("{{{{{name}}}}}");
        let (before, after) = rest.split_once(&mark).expect("the template has its marks in order");
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out + rest
}

/// The source of a content security policy that allows exactly this inline text.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", base64::encode(Sha256::digest(text)))
}

/// Text of an HTML element.
fn escaped(text: &str) -> String {
    let text: String = text.chars().map(visible).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The character, or a symbol for one that changes the direction of text.
pub(crate) fn visible(c: char) -> char {
    if brief::is_directional(c) { char::REPLACEMENT_CHARACTER } else { c }
}

/// JSON inside a `script` element. Outside of strings, JSON has none of these characters.
fn in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(visible(c)),
        }
    }
    out
}
