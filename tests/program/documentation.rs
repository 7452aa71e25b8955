//! The generated reference pages of `docs/` match the output of the program.

use std::fs;
use std::process::Command;

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
