//! `sweep --json`: events for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::test_folder::{TestFolder, Tiny, said};

fn events(output: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(output);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn text<'a>(event: &'a Value, key: &str) -> &'a str {
    event[key].as_str().unwrap_or_else(|| panic!("{key} of {event}"))
}

fn experiment() -> String {
    let more = "[evaluation]\nbatches = 1\n[measure]\nwarmup_steps = 1\nsteps = 2\n[strategies.plain]\n[strategies.large]\n\
                set.\"train.batch_size\" = 64\n[target]\nmemory = \"3 MiB\"\n[sweep.grid]\n\"train.seed\" = [0, 1]\n";
    Tiny::default().with(more)
}

/// Every event between `run` and `result` belongs to that run; the rows are those of the table.
#[test]
fn events_tell_a_sweep_in_order() {
    let dir = TestFolder::new();
    dir.write("a.toml", experiment());
    let output = dir.runner(&["sweep", "a.toml", "--device", "cpu", "--json"]);
    let all = events(&output.stdout);
    let (first, last) = (&all[0], &all[all.len() - 1]);
    assert_eq!((text(first, "event"), first["version"].as_u64()), ("sweep", Some(1)));
    assert_eq!(text(&first["experiments"][0], "table"), "results/a.csv");
    assert_eq!(
        (text(last, "event"), &last["done"], &last["of"], &last["exit_code"]),
        ("end", &4.into(), &4.into(), &0.into())
    );
    let mut results = Vec::new();
    for (index, run) in all[1..all.len() - 1].split_inclusive(|event| event["event"] == "result").enumerate()
    {
        let names: Vec<&str> = run.iter().map(|event| text(event, "event")).collect();
        assert_eq!((names[0], names[1]), ("run", "started"), "{names:?}");
        assert_eq!((&run[0]["number"], &run[0]["of"]), (&(index + 1).into(), &4.into()));
        let row = &run[run.len() - 1]["row"];
        for key in ["experiment", "strategy", "run_id", "repeat", "axes"] {
            assert_eq!(run[0][key], row[key], "{key}");
        }
        assert_eq!(row["axes"][0][0], "train.seed");
        let steps: Vec<&Value> = run.iter().filter(|event| event["event"] == "step").collect();
        let count = if row["status"] == "ok" { 3 } else { 0 };
        assert_eq!(steps.len(), count, "{names:?}");
        for (at, step) in steps.iter().enumerate() {
            assert_eq!(
                (&step["step"], &step["steps"], &step["timed"]),
                (&(at + 1).into(), &3.into(), &(at > 0).into())
            );
            assert!(step["live_bytes"].as_u64() < step["peak_bytes"].as_u64(), "{step}");
        }
        if let Some(step) = steps.last() {
            assert_eq!(step["loss"], row["loss_last"]);
            assert_eq!(names.iter().filter(|name| **name == "evaluation").count(), 1, "{names:?}");
        }
        results.push((
            text(row, "strategy").to_owned(),
            text(row, "status").to_owned(),
            row["peak_bytes"].as_u64(),
        ));
    }
    let mut rows: Vec<_> = dir
        .rows("results/a.csv")
        .into_iter()
        .map(|row| (row.strategy.clone(), format!("{:?}", row.status).to_lowercase(), row.peak_bytes))
        .collect();
    results.sort();
    rows.sort();
    assert_eq!(results, rows);
    assert!(rows.iter().any(|(_, status, _)| status == "oom"), "{rows:?}");
    assert!(said(&output).contains("[4/4]"), "progress is on standard error");
    // Nothing is left to run.
    let again = events(&dir.runner(&["sweep", "a.toml", "--device", "cpu", "--json"]).stdout);
    assert_eq!(again.iter().map(|event| text(event, "event")).collect::<Vec<_>>(), ["sweep", "end"]);
    assert_eq!(again[1]["done"], 4);
}

#[test]
fn events_exclude_tables() {
    let dir = TestFolder::new();
    dir.write("a.toml", experiment());
    for option in [&["--dry-run"][..], &["--format", "csv"], &["--dump", "d"], &["--ladder"]] {
        let output = dir.program(&[&["sweep", "a.toml", "--json"], option].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option:?}");
        assert!(said(&output).contains("cannot be used with"), "{option:?}: {}", said(&output));
    }
    // An error in the input is no event.
    let output = dir.program(&["sweep", "none.toml", "--json"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}

/// docs/cluster.md lists each event with its fields.
#[test]
fn events_are_documented() {
    let dir = TestFolder::new();
    dir.write("a.toml", experiment());
    let output = dir.runner(&["sweep", "a.toml", "--device", "cpu", "--json"]);
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in events(&output.stdout) {
        let fields = event.as_object().unwrap().keys().filter(|key| *key != "event").cloned();
        found.entry(text(&event, "event").to_owned()).or_default().extend(fields);
    }
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cluster.md")).unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = page.lines().skip_while(|line| *line != "| event | fields | when |").skip(2);
    let documented: BTreeMap<String, BTreeSet<String>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells = cells(line);
            let fields = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
            (cells[1].trim_matches('`').to_owned(), fields)
        })
        .collect();
    assert_eq!(found, documented);
}
