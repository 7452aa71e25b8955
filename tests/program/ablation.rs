//! `[sweep.ablate]` and `--ladder`: the contribution of each key of a strategy.

use std::fmt::Write as _;

use crate::test_folder::{TestFolder, Tiny, said, unwrapped};
use plan::expand;

const LEAN: &str = "[strategies.lean]\nextends = \"mixed\"\nrecompute = \"block\"\nset.\"train.optimizer\" = { lion = { lr = 1e-4 } }\n\
                    set.\"train.clip_norm\" = 1.0\n[strategies.mixed]\nprecision = \"fp16\"\nloss_scale = 1024\n";

/// Each row: its label, whether it is valid, and which of the keys it has.
fn rows(dir: &TestFolder, ablate: &str) -> Vec<(String, Option<String>)> {
    dir.write(
        "a.toml",
        Tiny::default().with(&format!("{LEAN}[sweep.ablate]\nstrategy = \"lean\"\n{ablate}")),
    );
    let experiment = expand(&dir.path("a.toml"), &[], &|_| None).unwrap_or_else(|error| panic!("{error}"));
    let keys = |config: &spec::RunConfig| {
        let strategy = &config.strategy;
        let keys = [
            (strategy.precision != spec::Precision::Fp32, "precision"),
            (strategy.loss_scale.is_some(), "scale"),
            (strategy.recompute != spec::Recompute::None, "recompute"),
            (config.train.optimizer.name() == "lion", "lion"),
            (config.train.clip_norm.is_some(), "clip"),
        ];
        keys.into_iter().filter(|(set, _)| *set).map(|(_, key)| key).collect::<Vec<_>>().join(" ")
    };
    let points = experiment.points.iter();
    points.map(|point| (point.strategy.clone(), point.config.as_ref().ok().map(keys))).collect()
}

#[test]
fn rows_have_some_keys_of_the_strategy() {
    let dir = TestFolder::new();
    let together = "together = [[\"precision\", \"loss_scale\"]]";
    let found = rows(&dir, &format!("rows = [\"pairs\", \"alone\", \"leave_one_out\"]\n{together}"));
    let expected = [
        ("lean/none", ""),
        ("lean/+precision", "precision scale"),
        ("lean/+recompute", "recompute"),
        ("lean/+train.optimizer", "lion"),
        ("lean/+train.clip_norm", "clip"),
        ("lean/+precision+recompute", "precision scale recompute"),
        ("lean/+precision+train.optimizer", "precision scale lion"),
        ("lean/+precision+train.clip_norm", "precision scale clip"),
        ("lean/+recompute+train.optimizer", "recompute lion"),
        ("lean/+recompute+train.clip_norm", "recompute clip"),
        ("lean/+train.optimizer+train.clip_norm", "lion clip"),
        ("lean/-precision", "recompute lion clip"),
        ("lean/-recompute", "precision scale lion clip"),
        ("lean/-train.optimizer", "precision scale recompute clip"),
        ("lean/-train.clip_norm", "precision scale recompute lion"),
        ("lean", "precision scale recompute lion clip"),
        ("mixed", "precision scale"),
    ];
    let expected = expected.map(|(label, keys)| (label.to_owned(), Some(keys.to_owned())));
    assert_eq!(found, expected);
    let pairs = rows(&dir, &format!("rows = [\"pairs\"]\n{together}"));
    assert_eq!(pairs.len(), 1 + 4 + 6 + 2, "pairs are compared with their keys");
    // A row without a key that another needs is skipped; the others run.
    let separate = rows(&dir, "");
    let invalid: Vec<&str> =
        separate.iter().filter(|(_, keys)| keys.is_none()).map(|(label, _)| label.as_str()).collect();
    assert_eq!(invalid, ["lean/+loss_scale", "lean/-precision"]);
    assert_eq!(separate.len(), 1 + 5 + 5 + 2);
}

#[test]
fn ablated_strategy_may_have_axes() {
    let dir = TestFolder::new();
    dir.write(
        "a.toml",
        Tiny::default().with(
            "[strategies.lean]\nprecision = \"bf16\"\nrecompute = \"block\"\nsweep.accumulate = [1, 2]\n\
             [sweep.ablate]\nstrategy = \"lean\"\nrows = [\"leave_one_out\"]\n\
             [[sweep.exclude]]\nstrategy = \"lean/-precision*\"\naccumulate = 2",
        ),
    );
    let output = dir.runner(&["plan", "a.toml", "--device", "cpu", "--ladder"]);
    let text = said(&output);
    for expected in ["lean/accumulate=1: ", "lean/accumulate=2: ", "without its keys"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(text.matches("\n  precision ").count(), 1, "excluded at accumulate = 2: {text}");
    assert_eq!(text.matches("\n  recompute ").count(), 2, "{text}");
}

#[test]
fn misuse_names_the_key() {
    let dir = TestFolder::new();
    let strategies = "[strategies.lean]\nprecision = \"bf16\"\noffload = { optimizer = true, pinned = false }\n\
                      [strategies.one]\nprecision = \"bf16\"\n[strategies.plain]\n";
    for (ablate, expected) in [
        ("", "`sweep.ablate.strategy` is missing"),
        ("strategy = \"laen\"", "there is no strategy `laen` to ablate"),
        ("strategy = \"laen\"", "did you mean `lean`?"),
        ("strategy = \"one\"", "the strategy `one` has one key only to ablate"),
        ("strategy = \"plain\"", "the strategy `plain` has no key to ablate"),
        ("strategy = \"lean\"\nrows = []", "`sweep.ablate.rows` must be a list of kinds of rows"),
        ("strategy = \"lean\"\nrows = [\"leave-one-out\"]", "did you mean \"leave_one_out\"?"),
        (
            "strategy = \"lean\"\ntogether = [\"precision\"]",
            "`sweep.ablate.together[0]` must be a list of keys",
        ),
        ("strategy = \"lean\"\ntogether = [[\"recompute\"]]", "lists `recompute`, which `lean` does not set"),
        (
            "strategy = \"lean\"\ntogether = [[\"offload\"], [\"offload.pinned\", \"precision\"]]",
            "has `offload` in two lists",
        ),
        ("strategy = \"lean\"\nkeys = []", "unknown key `keys` in [sweep.ablate]"),
    ] {
        dir.write("a.toml", Tiny::default().with(&format!("{strategies}[sweep.ablate]\n{ablate}")));
        let output = dir.program(&["check", "a.toml"]).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{ablate}: {text}");
        assert!(text.contains(expected) && text.contains("a.toml:"), "{ablate}: {text}");
    }
    // `pinned` with another key than `optimizer`: one list for each part of a table.
    let apart = "strategy = \"lean\"\ntogether = [[\"offload.optimizer\"], [\"offload.pinned\"]]";
    dir.write("a.toml", Tiny::default().with(&format!("{strategies}[sweep.ablate]\n{apart}")));
    let text = said(&dir.runner(&["plan", "a.toml", "--device", "cpu", "--format", "csv"]));
    assert!(text.contains("lean/-offload.pinned,"), "{text}");
    dir.write("b.toml", Tiny::default().with("[strategies.plain]\n"));
    // A strategy that is invalid everywhere is an error, though a row of its ablation is valid.
    let invalid =
        "[strategies.lean]\nloss_scale = 8\nrecompute = \"block\"\n[sweep.ablate]\nstrategy = \"lean\"";
    dir.write("c.toml", Tiny::default().with(invalid));
    let output = dir.program(&["plan", "c.toml", "--device", "cpu"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("loss_scale prevents underflow"), "{}", said(&output));
    for (args, expected) in [
        (&["plan", "b.toml"][..], "`b` has no rows of an ablation"),
        (&["sweep", "b.toml"], "`b` has no rows of an ablation"),
        (&["sweep", "a.toml", "--filter", "plain"], "`a` has no rows of an ablation"),
        (&["sweep", "a.toml", "--format", "json"], "shown as a table or as Markdown, for one machine"),
        (&["plan", "a.toml", "--target", "a10g", "--target", "a100-80gb"], "for one machine"),
        (&["plan", "a.toml", "--by", "accumulate"], "cannot be used with"),
    ] {
        let output = dir.program(&[args, &["--ladder"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?} {}", said(&output));
        assert!(unwrapped(&said(&output)).contains(expected), "{args:?} {}", said(&output));
    }
    assert!(dir.find("results/**/*.csv").is_empty(), "nothing was trained");
}

/// The speeds of eight rounds, whose drift is the same in all runs of a round.
fn table_of(runs: &[(&str, u64, f64)]) -> String {
    let mut out = "experiment,strategy,sweep,repeat,status,message,peak_bytes,samples_per_s\n".to_owned();
    for (strategy, peak, speed) in runs {
        for repeat in 1..=8 {
            let speed = speed * (1.0 + 0.05 * f64::from(repeat));
            writeln!(out, "e,{strategy},s,{repeat},ok,,{peak},{speed}").unwrap();
        }
    }
    out
}

/// Hand sums: alone, a adds 300 - 1000; last, 200 - 500; both together are at 200, where the sum of both alone is at
/// 1000 - 700 - 500 = -200, so that the pair adds 400. Speeds: 2, 0.9 and 2 where the product is 1.8.
#[test]
fn ladder_shows_contributions() {
    const MIB: u64 = 1 << 20;
    let dir = TestFolder::new();
    let runs = [
        ("x/none", 1000 * MIB, 100.0),
        ("x/+a", 300 * MIB, 200.0),
        ("x/+b", 500 * MIB, 90.0),
        ("x/+a+b", 200 * MIB, 200.0),
        ("x/-a", 500 * MIB, 90.0),
        ("x/-b", 300 * MIB, 200.0),
        ("x", 200 * MIB, 200.0),
    ];
    dir.write("x.csv", table_of(&runs));
    let text = said(&dir.runner(&["compare", "x.csv", "--ladder"]));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let after = |heading: &str| {
        let at = lines.iter().position(|line| *line == heading).unwrap_or_else(|| panic!("{text}"));
        lines[at + 1..].iter().take(2).map(|line| words(line)).collect::<Vec<_>>()
    };
    assert_eq!(after("alone"), ["a -700 0.30 2.00 0", "b -500 0.50 0.90 0"], "{text}");
    assert_eq!(after("last"), ["a -300 0.40 2.22 0", "b -100 0.67 = 0"], "{text}");
    assert_eq!(after("pairs")[0], "a + b +400 1.33 1.11 0", "{text}");
    assert!(text.contains("x: 1000 MiB, 122 smp/s without its keys; 200 MiB, 245 smp/s with all"), "{text}");
    let markdown = said(&dir.runner(&["compare", "x.csv", "--ladder", "--format", "markdown"]));
    assert!(markdown.contains("| a + b | +400 | 1.33 | 1.11 | 0 |"), "{markdown}");
    // Rows in any order, of two tables with one label, beside an experiment without an ablation.
    let mut reversed = runs;
    reversed.reverse();
    let text = table_of(&reversed).replace("experiment,", "").replace("e,x", "x");
    ["before.csv", "after.csv"].iter().for_each(|name| dir.write(name, &text));
    dir.write("other.csv", table_of(&[("plain", 500 * MIB, 1.0)]).replace("\ne,", "\nf,"));
    let text = said(&dir.runner(&["compare", "before.csv", "after.csv", "other.csv", "--ladder"]));
    for name in ["x: 1000 MiB", "x (after): 1000 MiB"] {
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(text.matches("+400").count(), 2, "{text}");
    // A missing row leaves out what needs it; a row without a result has its reason.
    let failed = table_of(&runs[..3]) + table_of(&runs[5..]).split_once('\n').unwrap().1;
    let failed = failed.replace("x/-b,s,1,ok,", "x/-b,s,1,failed,killed");
    let failed: String = failed
        .lines()
        .filter(|line| !line.starts_with("e,x/-b,s,") || line.contains("killed"))
        .map(|l| format!("{l}\n"))
        .collect();
    dir.write("x.csv", failed);
    let text = said(&dir.runner(&["compare", "x.csv", "--ladder"]));
    assert!(!text.contains("a + b"), "{text}");
    assert!(text.contains("x/-b FAILED: killed"), "{text}");
}

#[test]
fn sweep_trains_an_ablation_and_shows_its_ladder() {
    let dir = TestFolder::new();
    let keys = "[strategies.lean]\nprecision = \"bf16\"\naccumulate = 2\n[sweep.ablate]\nstrategy = \"lean\"\n\
                [measure]\nwarmup_steps = 0\nsteps = 1\n";
    dir.write("a.toml", Tiny::default().with(keys));
    let text = said(&dir.runner(&["sweep", "a.toml", "--device", "cpu", "--ladder"]));
    assert!(text.contains("without its keys") && text.contains("xspeed"), "{text}");
    let measured = dir.rows_by_strategy("results/a.csv");
    let peak = |label: &str| measured[label].peak_bytes.unwrap();
    assert_eq!(peak("lean/+accumulate"), peak("lean/-precision"), "equal runs");
    assert_ne!(peak("lean/none"), peak("lean"));
    assert_eq!(measured.len(), 6);
}
