//! `runner explain` after a sweep: time and memory of a run by operation and scope. The figures differ between
//! machines, but must add up.

use std::fs;
use std::path::PathBuf;

use crate::test_folder::{TestFolder, Tiny, unwrapped};

const MORE: &str = r#"
[evaluation]
every = 10
batches = 1

[measure]
warmup_steps = 1
steps = 3
repeats = 2

[strategies.lean]
recompute = "block"
accumulate = 3
"#;

const EXPLAIN: [&str; 7] = ["explain", "--device", "cpu", "--out", "kept", "tiny.toml", "--run=1"];

const TABLE: &str = "kept/tiny.csv";

/// A test folder with an experiment of two blocks and five sequences per step.
fn test_folder() -> TestFolder {
    let dir = TestFolder::new();
    dir.write("tiny.toml", Tiny { layers: 2, d_model: 32, batch_size: 5, ..Tiny::default() }.with(MORE));
    dir
}

impl TestFolder {
    fn keep(&self, more: &[&str]) {
        self.runner(&[&["sweep", "--device", "cpu", "--out", "kept", "tiny.toml"], more].concat());
    }

    #[track_caller]
    fn explain(&self, more: &[&str]) -> String {
        String::from_utf8(self.runner(&[&EXPLAIN, more].concat()).stdout).unwrap()
    }

    /// A file of every repeat.
    fn kept(&self, name: &str) -> Vec<PathBuf> {
        self.find(&format!("kept/tiny/*/*/[0-9]*/{name}"))
    }
}

/// Name, milliseconds and share of the step in a line of the table.
fn figures(line: &str) -> Option<(String, f64, f64)> {
    let name: String = line.chars().take(26).collect();
    let cells: Vec<&str> = line.get(34..)?.split_whitespace().collect();
    let [ms, share] = match cells.as_slice() {
        [_, ms, share, _, _, _, _] | [ms, share] => [ms, share],
        _ => return None,
    };
    Some((name.trim_end().to_owned(), ms.parse().ok()?, share.parse().ok()?))
}

fn table<'a>(text: &'a str, header: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| !line.starts_with(header)).skip(1);
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn operation_times_add_up_to_step() {
    let dir = test_folder();
    dir.keep(&[]);
    let text = dir.explain(&[]);
    let profile = &text[text.find("where time goes").expect("a profile")..];
    assert!(profile.contains("the mean of 3 timed steps of repeat "), "{profile}");
    assert!(profile.contains(", the median of 2\n"), "{profile}");
    assert!(!profile.contains("unknown"), "{profile}");
    assert!(profile.lines().all(|line| line.chars().count() <= 100), "{profile}");

    let lines = table(profile, "operation ");
    let of = |name: &str| {
        let line = lines.iter().find(|line| line.starts_with(name)).expect("a line");
        figures(line).unwrap_or_else(|| panic!("{line}"))
    };
    let (all, outside, step) = (of("all operations"), of("outside operations"), of("the step"));
    let kinds = lines.iter().take_while(|line| !line.starts_with("all operations"));
    let kinds: Vec<_> = kinds.map(|line| figures(line).unwrap_or_else(|| panic!("{line}"))).collect();
    // Each figure has a rounding error of up to half a unit in its last place.
    let near = |a: f64, b: f64, unit: f64| (a - b).abs() <= unit * (kinds.len() + 2) as f64 / 2.0;
    let sum = |of: fn(&(String, f64, f64)) -> f64| kinds.iter().map(of).sum::<f64>();
    let unit = if step.1 < 10.0 { 0.001 } else { 0.01 };
    assert!(near(sum(|kind| kind.1), all.1, unit), "{profile}");
    assert!(near(sum(|kind| kind.2), all.2, 0.1), "{profile}");
    assert!(near(all.1 + outside.1, step.1, unit), "{profile}");
    assert!(near(all.2 + outside.2, 100.0, 0.1), "{profile}");
    assert!(outside.1 > 0.0 && all.1 > 0.0, "{profile}");
    assert!(kinds.iter().any(|kind| kind.0 == "linear-gelu again"), "{profile}");
    // Two blocks times three micro-batches (the last one smaller), once in forward and once recomputed.
    let calls =
        |name: &str| lines.iter().find(|line| line.starts_with(name)).unwrap()[34..41].trim().to_owned();
    assert_eq!((calls("linear-gelu  "), calls("linear-gelu again")), ("6".to_owned(), "6".to_owned()));
}

#[test]
fn phase_peaks_match_row() {
    let dir = test_folder();
    dir.keep(&[]);
    let text = dir.explain(&[]);
    let row = &dir.rows(TABLE)[0];
    let lines = table(&text, "scope ");
    for (phase, bytes) in [
        ("forward", row.forward_peak_bytes),
        ("backward", row.backward_peak_bytes),
        ("update", row.update_peak_bytes),
    ] {
        let line = lines.iter().find(|line| line.starts_with(phase)).expect("a phase");
        let cells: Vec<&str> = line.split_whitespace().collect();
        let mib = bytes.expect("a peak") as f64 / f64::from(1 << 20);
        assert_eq!(cells[cells.len() - 2], format!("{mib:.1}"), "{line}");
    }
    assert!(lines.iter().any(|line| line.starts_with("  blocks.*.attention (2)")), "{text}");
    assert!(row.startup_ms.is_some_and(|ms| ms > 0.0));
    assert_eq!(row.products_timed, None, "the CPU has no choice of algorithms");
    assert!(row.product_flops_per_s.is_some() && row.copy_bytes_per_s.is_some());
}

#[test]
fn explain_gives_reason_without_timed_steps() {
    let dir = test_folder();
    assert!(
        unwrapped(&dir.explain(&[]))
            .ends_with("after `runner sweep tiny.toml`, this also prints the time of each operation\n")
    );
    dir.keep(&["--memory", "100 KiB"]);
    let text = dir.explain(&["--memory", "100 KiB"]);
    let text = unwrapped(&text);
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("no step was timed: ") && last.ends_with(" short"), "{last}");
}

#[test]
fn old_or_missing_files_are_told_from_broken_files() {
    let dir = test_folder();
    dir.keep(&[]);
    let all = dir.kept("memory.csv");
    assert_eq!(all.len(), 2);
    let whole = fs::read_to_string(&all[0]).unwrap();
    let replace = |text: &str| all.iter().for_each(|file| fs::write(file, text).unwrap());

    replace(&whole.replacen("times_per_step", "passes", 1));
    let text = unwrapped(&dir.explain(&[]));
    assert!(
        text.contains("has no times of operations: measure again with `runner sweep --fresh tiny.toml`"),
        "{text}"
    );

    replace(&whole.replacen(",1,", ",once,", 1));
    let output = dir.program(&EXPLAIN).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.starts_with("error: cannot read kept/tiny/"), "{message}");

    all.iter().for_each(|file| fs::remove_file(file).unwrap());
    let text = unwrapped(&dir.explain(&[]));
    assert!(text.contains("live at the peak") && text.contains("has no times of operations"), "{text}");
}
