//! `runner advise`: the fastest combination of keys that fits.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;

use crate::test_folder::{TestFolder, said};

const MODEL: &str = "name = \"a\"\n[model.transformer]\nlayers = 4\nd_model = 128\nheads = 4\ncontext = 128\nvocabulary = 4096\n\
                     [data.synthetic]\n[train]\nbatch_size = 8\noptimizer.adamw = { lr = 1e-3 }\n[strategies.plain]\n";

fn stdout(dir: &TestFolder, args: &[&str]) -> String {
    String::from_utf8(dir.runner(args).stdout).unwrap()
}

/// The first row of the results: memory, estimated milliseconds, micro-batch, and the settings.
fn best(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("1  ")).unwrap_or_else(|| panic!("{text}"));
    line.split_whitespace().map(str::to_owned).collect()
}

fn combinations(text: &str) -> usize {
    let (before, _) = text.split_once(" combinations estimated").unwrap();
    before.lines().last().unwrap().parse().unwrap()
}

fn rows(csv: &str) -> Vec<HashMap<String, String>> {
    csv::Reader::from_reader(csv.as_bytes()).deserialize().map(Result::unwrap).collect()
}

/// A plan of all combinations, sorted by hand, is the witness.
#[test]
fn best_run_is_the_fastest_of_all_combinations_that_fit() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    let mut all = MODEL.to_owned();
    for (number, recompute) in
        [None, Some("\"block\""), Some("[\"norm\"]"), Some("[\"mlp\"]")].into_iter().enumerate()
    {
        for offload in 0..8 {
            for accumulate in 1..=8 {
                for chunks in [1, 8] {
                    let _ = writeln!(all, "[strategies.s{number}-{offload}-{accumulate}-{chunks}]");
                    recompute.into_iter().for_each(|value| writeln!(all, "recompute = {value}").unwrap());
                    for (bit, key) in ["parameters", "optimizer", "activations"].into_iter().enumerate() {
                        let _ = writeln!(all, "offload.{key} = {}", offload >> bit & 1 == 1);
                    }
                    let _ = writeln!(all, "accumulate = {accumulate}\nloss_chunks = {chunks}");
                }
            }
        }
    }
    dir.write("b.toml", all);
    for memory in ["40MiB", "62MiB", "100MiB"] {
        let machine = ["--target", "a10g", "--memory"];
        let limit = format!("{}MiB", memory.trim_end_matches("MiB").parse::<u64>().unwrap() + 512);
        let plan = [&["plan", "b.toml", "--format", "csv"], machine.as_slice(), &[&limit]].concat();
        let fitting = rows(&stdout(&dir, &plan)).into_iter().filter(|row| row["status"] == "ok");
        let fastest =
            fitting.map(|row| row["estimated_step_ms"].parse::<f64>().unwrap()).min_by(f64::total_cmp);
        let advise = [&["advise", "a.toml", "--same", "rounding"], machine.as_slice(), &[&limit]].concat();
        let text = stdout(&dir, &advise);
        let found: f64 = best(&text)[1].parse().unwrap();
        let fastest = fastest.expect("some combination fits");
        // Of equally fast runs, the simplest is chosen.
        assert!((found / fastest - 1.0).abs() < 0.006, "{memory}: {found} {fastest}\n{text}");
    }
}

/// The unchanged run, which is the fastest, fits with a quarter more.
#[test]
fn gain_of_more_memory_is_told() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    let text =
        stdout(&dir, &["advise", "a.toml", "--target", "a10g", "--memory", "570MiB", "--same", "rounding"]);
    assert!(text.contains("plain does not fit as it is"), "{text}");
    assert!(text.contains("With 142 MiB more: -") && text.contains("time with none."), "{text}");
    let plan =
        rows(&stdout(&dir, &["plan", "a.toml", "--target", "a10g", "--memory", "712MiB", "--format", "csv"]));
    assert_eq!(plan[0]["status"], "ok", "{plan:?}");
}

/// The written experiment fits in PyTorch with the predicted peak, and not without its keys.
#[test]
fn written_run_fits_in_pytorch() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    let machine = ["--target", "a10g", "--memory", "600MiB", "--as", "pytorch"];
    let text = stdout(&dir, &[&["advise", "a.toml", "--write", "b.toml"], machine.as_slice()].concat());
    let plan =
        |file: &str| rows(&stdout(&dir, &[&["plan", file, "--format", "csv"], machine.as_slice()].concat()));
    assert_eq!(plan("a.toml")[0]["torch_fits"], "no");
    let advised = &plan("b.toml")[0];
    assert!(["yes", "retry"].contains(&advised["torch_fits"].as_str()), "{advised:?}");
    let mib: f64 = advised["torch_peak_bytes"].parse::<f64>().unwrap() / f64::from(1 << 20);
    let shown: f64 = best(&text)[0].parse().unwrap();
    assert!((mib - shown).abs() < 0.51, "{mib} {text}");
    assert!(text.contains("micro-batch  changes to plain"), "{text}");
    assert!(text.contains("the device's context included"), "{text}");
    assert!(fs::read_to_string(dir.path("b.toml")).unwrap().contains("[strategies.advised]"));
}

/// The base's own number of micro-batches has no influence, and written runs keep `[plan]` and the limit.
#[test]
fn base_with_micro_batches_has_the_same_best_run() {
    let dir = TestFolder::new();
    let base = MODEL.replace("context = 128", "context = 16").replace("batch_size = 8", "batch_size = 2");
    dir.write("a.toml", base + "[strategies.two]\naccumulate = 2\n");
    let args = ["advise", "a.toml", "--target", "a10g", "--memory", "564MiB", "--same", "rounding", "--run"];
    let best = |run: &str| best(&stdout(&dir, &[args.as_slice(), &[run]].concat())).join(" ");
    // Updates in backward are invalid with the base's two micro-batches.
    assert_eq!(best("two"), best("plain") + ", accumulate = 1");
    assert!(best("plain").contains("update = \"in_backward\""), "{}", best("plain"));
    let options = ["--as", "trainer", "--set", "plan.torch_version=\"2.11\"", "--write", "b.toml"];
    dir.write("c.toml", MODEL.replace("[model.transformer]", "[model.transformer]\nfamily = \"gpt2\""));
    dir.runner(&[&["advise", "c.toml", "--target", "a10g", "--memory", "2GiB"], options.as_slice()].concat());
    let written = fs::read_to_string(dir.path("b.toml")).unwrap();
    for line in ["torch_program = \"trainer\"", "torch_version = \"2.11\"", "memory = \"2 GiB\""] {
        assert!(written.contains(line), "{written}");
    }
    dir.runner(&["check", "b.toml"]);
}

/// Bits are the same: neither another number of micro-batches nor another dtype.
#[test]
fn tolerance_limits_the_changes() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    let args = ["advise", "a.toml", "--target", "a10g", "--memory", "590MiB", "--top", "9", "--same"];
    let text = |same: &str| stdout(&dir, &[args.as_slice(), &[same]].concat());
    let bitwise = text("bitwise");
    assert!(bitwise.contains("bitwise equal"), "{bitwise}");
    for setting in ["accumulate", "loss_chunks", "bf16", "offload.optimizer", "lora"] {
        assert!(!bitwise.contains(setting), "{bitwise}");
    }
    let storage = text("storage");
    assert!(storage.contains("params = \"bf16\"") && !storage.contains("lora"), "{storage}");
    // Faster, though the unchanged run fits.
    let roomy = stdout(&dir, &["advise", "a.toml", "--target", "a10g", "--same", "precision"]);
    assert!(
        roomy.contains("plain fits as it is") && best(&roomy).join(" ").contains("precision = \"bf16\""),
        "{roomy}"
    );
    // A card without bf16.
    let old = stdout(&dir, &["advise", "a.toml", "--target", "t4", "--same", "storage"]);
    assert!(best(&old).join(" ").contains("precision = \"fp16\"") && !old.contains("params"), "{old}");
    // LoRA with two bases, or none.
    assert_eq!(combinations(&text("any")), 3 * combinations(&storage));
}

#[test]
fn other_batches_and_contexts_are_tried_on_request() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    dir.write(
        "b.toml",
        "[model]\nhf = { published = \"gpt2\", context = 64 }\n[data.synthetic]\n[train]\nbatch_size = 8\n\
                         optimizer.adamw = { lr = 1e-3 }\n[strategies.plain]\n",
    );
    for file in ["a.toml", "b.toml"] {
        let text = |options: &[&str]| {
            stdout(&dir, &[&["advise", file, "--target", "a10g", "--same", "bitwise"], options].concat())
        };
        let own = combinations(&text(&[]));
        let both = text(&["--batch-sizes", "16", "--contexts", "32"]);
        assert_eq!(combinations(&both), 4 * own, "{both}");
        // Larger batches take less time for each token.
        assert!(
            both.lines().any(|line| line.starts_with("1 ") && line.contains("train.batch_size")),
            "{both}"
        );
    }
}

#[test]
fn without_a_fitting_run_the_smallest_is_named() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    let text = stdout(&dir, &["advise", "a.toml", "--target", "a10g", "--memory", "513MiB"]);
    assert!(text.contains("No combination fits 513 MiB. The least, 5"), "{text}");
}

/// The best runs are trained, and the written experiment is the one that was measured to be the fastest.
#[test]
fn verified_runs_are_trained() {
    let dir = TestFolder::new();
    let small = MODEL.replace("layers = 4", "layers = 1").replace("4096", "256")
        + "[measure]\nsteps = 2\nwarmup_steps = 1\n";
    dir.write("a.toml", small.replace("[strategies.plain]\n", "") + "[strategies.plain]\n");
    let args =
        ["advise", "a.toml", "--device", "cpu", "--same", "bitwise", "--verify", "2", "--write", "b.toml"];
    let text = stdout(&dir, &args);
    let measured = dir.rows("results/a-verified.csv");
    assert!(measured.iter().all(|row| row.measured.step_ms_median.is_some()), "{text}");
    let runs = measured.len() / 6;
    assert_eq!(measured.len(), 6 * runs);
    let order = text.split_once("predicted  measured  ~ms/step  ms/step\n").unwrap().1;
    let mut places: Vec<usize> = order
        .lines()
        .take(runs)
        .map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
        .collect();
    places.sort_unstable();
    assert_eq!(places, (1..=runs).collect::<Vec<_>>(), "{text}");
    dir.runner(&["check", "b.toml"]);
}

#[test]
fn wrong_arguments_are_refused() {
    let dir = TestFolder::new();
    dir.write("a.toml", MODEL);
    dir.write("b.toml", MODEL.replace("\"a\"", "\"b\""));
    dir.write("c.toml", MODEL.replace("\"a\"", "\"c\"") + "recompute = [\"norm\"]\n");
    dir.write(
        "d.toml",
        MODEL.replace("optimizer.adamw = { lr = 1e-3 }\n", "[measure]\nwhat = \"inference\"\n"),
    );
    for (args, expected) in [
        (&["advise", "a.toml", "b.toml"][..], "`advise` takes one experiment"),
        (&["advise", "a.toml", "--run", "fp32"], "unknown run `fp32`"),
        (&["advise", "a.toml", "--target", "a10g", "--verify", "2"], "cannot be used with"),
        (&["advise", "c.toml", "--target", "a10g", "--as", "pytorch"], "checkpointed norms"),
        (&["advise", "a.toml", "--device", "cpu", "--as", "pytorch"], "PyTorch's memory is not predicted"),
        (&["advise", "d.toml"], "`advise` is for runs that train"),
        (&["advise", "a.toml", "--batch-sizes", "0"], "0 is not in 1..=16777216"),
        (
            &["advise", "a.toml", "--batch-sizes", "4", "--set", "train.batch_size=2"],
            "fixes what `--batch-sizes` tries",
        ),
        (&["advise", "a.toml", "--target", "t4", "--as", "runner"], "does not run on compute capability 7.5"),
    ] {
        let output = dir.program(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?} {}", said(&output));
        assert!(said(&output).contains(expected), "{args:?} {}", said(&output));
    }
}
