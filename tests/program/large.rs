//! Very large experiments, as programs may generate them: read in about linear time, or refused.

use crate::test_folder::{TestFolder, Tiny, said};

/// A limit of CPU time, which does not depend on the load: many times the time needed, and far below that of a
/// quadratic comparison.
const LIMIT: &str = "ulimit -t 30;";

/// The exit code of `check` and what it prints.
fn check(files: impl IntoIterator<Item = (String, String)>) -> (Option<i32>, String) {
    let dir = TestFolder::new();
    files.into_iter().for_each(|(name, text)| dir.write(&name, text));
    let output = dir.program_under(LIMIT, &["check", "a.toml"]).output().unwrap();
    assert!(output.status.code().is_some(), "it ended with {} under {LIMIT}", output.status);
    (output.status.code(), said(&output))
}

fn experiment(more: &str) -> [(String, String); 1] {
    [("a.toml".to_owned(), Tiny::default().with(more))]
}

/// Comma-separated numbers, each on its own line, so that messages can show the line.
fn numbers(count: usize) -> String {
    let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    numbers.join(",\n")
}

#[test]
fn long_axes() {
    let seeds = numbers(100_000);
    for axis in
        ["[sweep.grid]\ntrain.seed", "[[sweep.zip]]\ntrain.seed", "[strategies.swept]\nsweep.train.seed"]
    {
        let (code, said) = check(experiment(&format!("[strategies.plain]\n{axis} = [{seeds}]\n")));
        assert_eq!(code, Some(0), "{said}");
        assert!(said.starts_with("a.toml: 10000"), "{said}");
    }
    let (code, said) =
        check(experiment(&format!("[strategies.plain]\n[sweep.grid]\ntrain.seed = [{seeds}, 77]\n")));
    assert_eq!(code, Some(2));
    assert!(
        said.contains("the axis `train.seed` has the value 77 twice"),
        "{}",
        said.get(..400).unwrap_or(&said)
    );
}

#[test]
fn long_chains_of_strategies() {
    // In both orders in the file.
    for reversed in [false, true] {
        let strategy = |number: usize| match number {
            0 => "[strategies.s0]\naccumulate = 2\n".to_owned(),
            _ => format!("[strategies.s{number}]\nextends = \"s{}\"\n", number - 1),
        };
        let mut strategies: Vec<String> = (0..20_000).map(strategy).collect();
        if reversed {
            strategies.reverse();
        }
        let (code, said) = check(experiment(&strategies.concat()));
        assert_eq!((code, said.as_str()), (Some(0), "a.toml: 20000 runs, 20000 strategies x 1 point\n"));
    }
}

#[test]
fn files_that_extend_each_other() {
    let files = |count: usize| {
        let name = |number: usize| if number == 0 { "a.toml".to_owned() } else { format!("{number}.toml") };
        let extends = move |number| (name(number), format!("\nextends = \"{}\"\n", name(number + 1)));
        let last = (name(count - 1), Tiny::default().with("[strategies.plain]\n"));
        (0..count - 1).map(extends).chain([last])
    };
    assert_eq!(check(files(100)), (Some(0), "a.toml: 1 run, 1 strategy x 1 point\n".to_owned()));
    for count in [101, 20_000] {
        let (code, said) = check(files(count));
        let expected = "error: a.toml extends more than 99 files, one through another\n \
                        --> 99.toml:2:11\n  |\n2 | extends = \"100.toml\"\n";
        assert_eq!(code, Some(2));
        assert!(said.starts_with(expected), "{said}");
        assert!(said.ends_with("= help: merge them into fewer files\n"), "{said}");
    }
}
