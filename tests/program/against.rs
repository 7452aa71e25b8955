//! `runner compare --against`: a stored table as a gate.

use std::fmt::Write as _;

use crate::test_folder::{TestFolder, said};

/// A table of repeats: strategy, peak, and speeds.
fn table_of(runs: &[(&str, u64, &[f64])]) -> String {
    let mut out = "strategy,repeat,peak_bytes,tokens_per_s\n".to_owned();
    for (strategy, peak, speeds) in runs {
        for (repeat, speed) in speeds.iter().enumerate() {
            writeln!(out, "{strategy},{repeat},{peak},{speed}").unwrap();
        }
    }
    out
}

#[test]
fn stored_table_is_a_gate() {
    const FAST: [f64; 8] = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1];
    let slower = FAST.map(|speed| 0.9 * speed);
    let noisy = [85.0, 110.0, 88.0, 104.0, 90.0, 91.0, 92.0, 93.0];
    let dir = TestFolder::new();
    dir.write("old.csv", table_of(&[("plain", 1000, &FAST), ("lean", 500, &FAST)]));
    let check = |lean: Option<(u64, &[f64])>, limits: &[&str]| {
        let runs = lean.map(|(peak, speeds)| ("lean", peak, speeds));
        let runs: Vec<_> = [("plain", 1000, FAST.as_slice())].into_iter().chain(runs).collect();
        dir.write("new.csv", table_of(&runs));
        let output = dir
            .program(&[&["compare", "new.csv", "--against", "old.csv"], limits].concat())
            .output()
            .unwrap();
        (output.status.code(), said(&output))
    };
    let limits = ["--fail-if-slower", "5%", "--fail-if-larger", "1%"];
    for (lean, limits, code, expected) in [
        (Some((500, FAST.as_slice())), limits.as_slice(), 0, "+0.0%"),
        (Some((505, &FAST)), &limits, 0, "+1.0%"),
        (Some((506, &FAST)), &limits, 1, "LARGER"),
        (Some((506, &FAST)), &[], 0, "+1.2%"),
        (Some((500, &slower)), &limits, 1, "SLOWER"),
        (Some((500, &noisy)), &limits, 0, "slower within the noise"),
        (Some((500, &slower[..3])), &limits, 0, "slower, with too few repeats to tell"),
        (Some((500, &[40.0, 41.0])), &limits, 1, "SLOWER"),
        (None, &limits, 1, "missing"),
    ] {
        let (found, text) = check(lean, limits);
        assert_eq!(found, Some(code), "{expected}: {text}");
        assert!(text.contains(expected), "{expected}: {text}");
        assert_eq!(text.contains("! "), code == 1, "{text}");
    }
    // Equal strategies of two experiments are two runs, and tokens of padding do not count.
    let several = |padding: f64| {
        let rows = FAST.iter().enumerate().map(|(repeat, speed)| {
            format!("a,plain,{repeat},100,{speed},{padding}\nb,plain,{repeat},900,{speed},0\n")
        });
        "experiment,strategy,repeat,peak_bytes,tokens_per_s,padding\n".to_owned() + &rows.collect::<String>()
    };
    dir.write("a.csv", several(0.0));
    dir.write("b.csv", several(0.2));
    let args = [&["compare", "b.csv", "--against", "a.csv"], limits.as_slice()].concat();
    let text = said(&dir.program(&args).output().unwrap());
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(row("a: plain").contains("100 B") && row("a: plain").ends_with("SLOWER"), "{text}");
    assert!(row("b: plain").contains("900 B") && row("b: plain").contains("+0.0%"), "{text}");
    dir.write("other.csv", table_of(&[("else", 1, &FAST)]));
    for (args, expected) in [
        (&["old.csv", "--against", "other.csv"][..], "the two tables have no run in common"),
        (&["old.csv", "--fail-if-slower", "5%"], "--against"),
        (&["old.csv", "--against", "old.csv", "--fail-if-slower", "5"], "write a percentage, such as 5%"),
    ] {
        let output = dir.program(&[&["compare"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?} {}", said(&output));
        assert!(said(&output).contains(expected), "{args:?} {}", said(&output));
    }
}
