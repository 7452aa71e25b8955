//! Shell completions, manual pages, `--quiet` and the column list.

use std::fs;

use crate::test_folder::TestFolder;

const COMMANDS: [&str; 12] = [
    "sweep", "submit", "plan", "compare", "report", "columns", "schema", "init", "check", "explain",
    "export", "devices",
];
/// Internal commands, which the program runs itself.
const HIDDEN: [&str; 3] = ["execute-run", "probe-device", "compile-kernels"];

#[test]
fn completions_list_public_commands() {
    let dir = TestFolder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = dir.program(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && COMMANDS.iter().all(|command| script.contains(command)),
            "{shell}"
        );
        assert!(script.contains("filter") && script.contains("quiet"), "{shell}");
        assert!(!HIDDEN.iter().any(|command| script.contains(command)), "{shell}");
    }
    assert_eq!(dir.program(&["completions", "cmd"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn each_command_has_a_manual_page() {
    let dir = TestFolder::new();
    let output = dir.program(&["manual", "man/man1"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = |command: &str| fs::read_to_string(dir.path(&format!("man/man1/runner-{command}.1")));
    for command in COMMANDS {
        assert!(page(command).unwrap().contains("SYNOPSIS"), "{command}");
    }
    assert!(HIDDEN.iter().all(|command| page(command).is_err()));
    let whole = fs::read_to_string(dir.path("man/man1/runner.1")).unwrap();
    assert!(COMMANDS.iter().all(|command| whole.contains(command)) && !whole.contains("probe"), "{whole}");
    dir.write("file", "");
    assert_eq!(dir.program(&["manual", "file"]).output().unwrap().status.code(), Some(2));
}

/// Results and errors only, no progress.
#[test]
fn quiet_prints_results_and_errors_only() {
    let dir = TestFolder::new();
    let experiment =
        "name = \"a\"\n".to_owned() + &crate::test_folder::Tiny::default().with("[strategies.plain]\n");
    dir.write("a.toml", experiment);
    let output = dir.program(&["plan", "--device", "cpu", "--quiet", "a.toml"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.trim_start().starts_with("a  transformer"), "{table}");
    assert!(output.stderr.is_empty() && !table.contains("device:"), "{table}");
    let output = dir.program(&["-q", "plan", "none.toml"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("none.toml"), "what is wrong is told");
}

#[test]
fn every_column_is_explained() {
    let dir = TestFolder::new();
    let columns = |names: &[&str]| {
        let output = dir.program(&["columns"]).args(names).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (status, all, _) = columns(&[]);
    let mut header = Vec::new();
    results::csv::write(&[], &[], &mut header).unwrap();
    let header = String::from_utf8(header).unwrap();
    let is_name = |line: &&str| !line.starts_with(' ');
    let table = all.split("\n\n").next().unwrap();
    let explained: Vec<&str> =
        table.lines().filter(is_name).filter_map(|line| line.split("  ").next()).collect();
    assert_eq!((status, explained), (Some(0), header.trim_end().split(',').collect()));
    assert!(all.lines().all(|line| line.len() <= 100), "{all}");
    assert!(table.lines().filter(is_name).all(|line| line.contains("  ")), "{all}");

    let (status, two, _) = columns(&["tokens_per_s", "peak_bytes"]);
    assert_eq!((status, two.lines().filter(is_name).count()), (Some(0), 2), "{two}");
    let (status, _, error) = columns(&["peek_bytes"]);
    assert_eq!(
        (status, error.trim()),
        (Some(2), "error: unknown column `peek_bytes`; did you mean `peak_bytes`?")
    );
}
