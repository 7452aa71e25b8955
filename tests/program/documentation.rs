//! The reference pages of `docs/` match the program: generated pages and lists of keys.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::test_folder::TestFolder;
use testing::keys::{KEYS, Same};

#[test]
fn columns_page_is_generated() {
    is_generated("columns");
}

#[test]
fn keys_page_is_generated() {
    is_generated("keys");
}

fn is_generated(command: &str) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_runner")).args([command, "--format", "markdown"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let page = format!("docs/{command}.md");
    let committed = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        printed == committed,
        "{page} is out of date: target/release/runner {command} --format markdown > {page}"
    );
}

/// The keys of a table, without those of tables below it, in declaration order.
fn keys_of(table: &str) -> Vec<String> {
    let all = spec::key_reference().into_iter();
    let own = all.filter_map(|key| key.path.strip_prefix(table)?.strip_prefix('.').map(str::to_owned));
    own.filter(|key| !key.contains('.')).collect()
}

fn strategy_keys() -> Vec<String> {
    keys_of("strategies.NAME")
}

#[test]
fn models_page_describes_every_key_of_transformers() {
    let page = fs::read_to_string("docs/models-and-data.md").unwrap();
    let section = page.split("## Hugging Face configurations").next().unwrap();
    let keys: Vec<&str> =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next()).collect();
    for key in keys_of("model.transformer") {
        assert!(keys.iter().any(|keys| format!("`{keys}").contains(&format!("`{key}`"))), "{key}");
    }
}

#[test]
fn strategies_page_describes_every_key_once() {
    let page = fs::read_to_string("docs/strategies.md").unwrap();
    let described = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let mut described: Vec<&str> = described.collect();
    let mut declared = strategy_keys();
    described.sort_unstable();
    declared.sort_unstable();
    assert_eq!(described, declared);
}

/// The table of the page, compared with the bounds that tests hold.
#[test]
fn strategies_page_states_how_each_key_changes_results() {
    let page = fs::read_to_string("docs/strategies.md").unwrap();
    let rows = page.lines().skip_while(|line| *line != "| key | same result |").skip(2);
    let rows: Vec<(&str, &str)> =
        rows.map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")).collect();
    for key in strategy_keys() {
        let same = KEYS.iter().find(|tested| tested.name == key).unwrap().same;
        let expected = match same {
            Same::Bitwise | Same::Arithmetic => "bitwise",
            Same::Rounding => "rounding",
            Same::Training(bound) => &format!("loss within {} %", (bound * 100.0).round()),
            Same::Start => "different training",
        };
        let stated: BTreeSet<&str> = rows
            .iter()
            .filter(|(keys, _)| keys.contains(&format!("`{key}")))
            .map(|(_, result)| *result)
            .collect();
        assert!(
            !stated.is_empty() && stated.iter().all(|result| result.starts_with(expected)),
            "{key} must be {expected}, not {stated:?}"
        );
    }
}

/// The experiment that the README writes is valid, and the mistake that it adds is reported as it shows.
#[test]
fn first_experiment_of_the_readme_is_valid() {
    let readme = fs::read_to_string("README.md").unwrap();
    let block = |start: &str| readme.split_once(start).unwrap().1.split_once("```").unwrap().0;
    let (experiment, shown) = (block("```toml\n"), block("$ runner check experiments/mine.toml\n"));
    let dir = TestFolder::new();
    for folder in ["src", "experiments"] {
        fs::create_dir(dir.path(folder)).unwrap();
    }
    dir.write("src/main.rs", "text of the experiment\n".repeat(1000));
    dir.write("experiments/mine.toml", experiment);
    dir.runner(&["check", "experiments/mine.toml"]);
    dir.write("experiments/mine.toml", format!("{experiment}gradient_accumulation = 4\n"));
    let output = dir.program(&["check", "experiments/mine.toml"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap().trim_end(), shown.trim_end());
}

/// The measured coverage of confidence intervals.
#[test]
fn statistics_page_counts_the_differences_of_equal_runs() {
    let table = fs::read_to_string("results/published/xeon-2-cores/equal-runs.csv").unwrap();
    let (all, different) =
        (table.lines().skip(1).count(), table.lines().filter(|line| line.ends_with(",false")).count());
    let page = fs::read_to_string("docs/statistics.md").unwrap().replace('\n', " ");
    assert!(page.contains(&format!("claimed {different} differences in {all} comparisons")));
}
