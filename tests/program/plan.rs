//! `runner plan` and `runner explain` from the command line.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::test_folder::{TestFolder, Tiny, unwrapped};
use base::units::Bytes;

const STRATEGIES: &str = r#"
[strategies.plain]

[strategies.idle]                   # there is no evaluation
evaluation_pass = "grad"

[strategies.other-name]

[strategies.lean]
recompute = "block"
"#;

const CARD: &str = r#"
name = "some card"
kind = "cuda"
threads = 1
alignment = "256 B"
page = "2 MiB"
product_workspace = "32 MiB"
context = "400 MiB"
memory = "1 GiB"
limited = false
"#;

fn runner(arguments: &[&str]) -> Output {
    runner_to(arguments, Stdio::piped())
}

/// A test folder with an experiment and the target file of a GPU.
fn test_folder() -> TestFolder {
    let dir = TestFolder::new();
    let tiny = Tiny { layers: 2, d_model: 32, ..Tiny::default() };
    dir.write("a.toml", format!("baseline = \"plain\"\n{}", tiny.with(STRATEGIES)));
    dir.write("card.toml", CARD);
    dir
}

fn runner_to(arguments: &[&str], out: Stdio) -> Output {
    let dir = test_folder();
    let output = dir.program(arguments).stdout(out).output().expect("the program starts");
    assert_eq!(dir.find("*").len(), 3, "nothing is written");
    output
}

fn succeeds(arguments: &[&str]) -> String {
    let output = runner(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn target_file_replaces_this_machine() {
    // The plan depends only on the target file, so it is the same on every machine.
    let plan = succeeds(&["plan", "a.toml", "--target", "card.toml"]);
    insta::assert_snapshot!(plan);
}

#[test]
fn unwritable_output_is_an_error() {
    for arguments in
        [&["plan", "a.toml"][..], &["sweep", "--dry-run", "a.toml"], &["explain", "--run", "1", "a.toml"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = runner_to(arguments, full.into());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("cannot write the output"), "{error}");
    }
}

#[test]
fn key_without_effect_is_marked() {
    let plan = succeeds(&["plan", "a.toml"]);
    let line = plan.lines().find(|line| line.contains(" idle ")).expect("a row");
    assert!(line.contains("NO EFFECT: evaluation_pass"), "{line}");
    assert!(plan.lines().any(|line| line.contains("other-name") && line.contains("same as plain")), "{plan}");
    let lean = plan.lines().find(|line| line.contains(" lean ")).expect("a row");
    assert!(!lean.contains("NO EFFECT"), "{lean}");
}

#[test]
fn fewer_micro_batches_are_reported() {
    let set = |settings: &[&'static str]| -> String {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        succeeds(&["plan", "a.toml"].into_iter().chain(settings).collect::<Vec<_>>())
    };
    let row = |plan: &str| plan.lines().find(|line| line.contains(" lean ")).expect("a row").to_owned();
    let five_of_eight = row(&set(&["train.batch_size=8", "strategies.lean.accumulate=5"]));
    assert!(five_of_eight.contains("4 micro-batches (not 5)"), "{five_of_eight}");
    let three_of_eight = row(&set(&["train.batch_size=8", "strategies.lean.accumulate=3"]));
    assert!(!three_of_eight.contains("micro-batches"), "{three_of_eight}");
    // accumulate = 4 gives the same run.
    let idle = row(&set(&["train.batch_size=8", "defaults.accumulate=4", "strategies.lean.accumulate=5"]));
    assert!(idle.contains("NO EFFECT: accumulate"), "{idle}");
}

#[test]
fn frozen_parameters_are_reported() {
    let frozen = succeeds(&["plan", "a.toml", "--set", "strategies.lean.freeze=[\"embedding\"]"]);
    let row = frozen.lines().find(|line| line.contains(" lean ")).expect("a row");
    assert!(row.contains("% FLOPs, 8.70k para"), "{row}");
    let trained =
        succeeds(&["explain", "a.toml", "--run", "lean", "--set", "strategies.lean.freeze=[\"embedding\"]"]);
    assert!(trained.contains(" trained), 1 micro-batch"), "{trained}");
}

#[test]
fn limit_reports_value_that_does_not_fit() {
    let plan = succeeds(&["plan", "a.toml", "--memory", "600 KiB"]);
    for part in ["step 1: ", "short for blocks.", " of step 1."] {
        assert!(plan.contains(part), "{plan}");
    }
}

/// The output shows the recompute plan of a budget and its cost.
#[test]
fn recompute_budget_is_met_and_explained() {
    let budget = ["--set", "train.batch_size=64", "--set", "strategies.lean.recompute={ budget = 0.9 }"];
    let plan = succeeds(&[&["plan", "a.toml"], &budget[..]].concat());
    let row = plan.lines().find(|line| line.contains(" lean ")).expect("a row");
    assert!(row.contains("% FLOPs"), "{row}");
    let text = succeeds(&[&["explain", "a.toml", "--run", "4"], &budget[..]].concat());
    assert!(text.contains("\nrecomputed in blocks.0"), "{text}");
    // With enough memory for everything, nothing is recomputed.
    let idle = succeeds(&["plan", "a.toml", "--set", "strategies.lean.recompute=auto"]);
    assert!(idle.contains("NO EFFECT: recompute"), "{idle}");
}

/// A run with an infeasible budget is skipped, with a feasible budget. If no run is left, that is an error with its
/// location.
#[test]
fn infeasible_budget_error_gives_smallest() {
    let too_small = "strategies.lean.recompute={ budget = \"64 KiB\" }";
    let card = ["plan", "a.toml", "--target", "card.toml", "--set", "train.batch_size=64", "--set"];
    let smallest = |text: &str| {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, named) = words.split_once("smallest feasible budget is ").expect("it names one");
        format!("{}}}", named.split_once('}').expect("a table").0)
    };
    let named = smallest(&succeeds(&[&card[..], &[too_small]].concat()));
    let checked = succeeds(&["check", "a.toml", "--set", "train.batch_size=64", "--set", too_small]);
    assert!(smallest(&checked).starts_with("{ budget = \"") && checked.contains("1 skipped"), "{checked}");

    let dir = TestFolder::new();
    let all = "[strategies.lean]\nrecompute = { budget = \"64 KiB\" }\n[strategies.both]\nextends = \"lean\"\naccumulate = 2\n";
    dir.write("a.toml", Tiny::default().with(all));
    dir.write("card.toml", CARD);
    let output = dir.program(&card[..4]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    insta::assert_snapshot!(message);
    let output = dir.program(&["check", "a.toml"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    let plan = succeeds(&[&card[..], &[&format!("strategies.lean.recompute={named}")]].concat());
    assert!(plan.lines().any(|line| line.contains(" lean ") && line.contains("% FLOPs")), "{plan}");

    let some = "strategies.other-name.sweep.recompute=[{ budget = 0.01 }, { budget = 0.99 }]";
    let plan = succeeds(&[&card[..], &[some]].concat());
    assert!(smallest(&plan).starts_with("{ budget = 0."), "{plan}");
}

/// The size of data held in memory is known if the data exists, also for changes of a run; if it does not, the other
/// runs of the file are still planned.
#[test]
fn held_data_is_planned_and_explained() {
    let dir = TestFolder::new();
    let held = "[defaults]\nloader.source = \"ram\"\n[strategies.held]\n[strategies.read]\nloader.source = \"stream\"\n";
    dir.write("a.toml", Tiny::default().with(held));
    let said = |arguments: &[&str]| {
        let output = dir.program(arguments).output().expect("the program starts");
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", said[1]);
        said[0].clone()
    };
    for run in ["held", "read"] {
        let explained = said(&["explain", "a.toml", "--device", "cpu", "--run", run]);
        assert!(explained.contains("changes that lower the live peak"), "{explained}");
    }
    std::fs::remove_file(dir.path("text.txt")).expect("it is there");
    let plan = said(&["plan", "a.toml", "--device", "cpu"]);
    assert!(plan.contains("loader.source = \"ram\" holds all of the data"), "{plan}");
    let explained = said(&["explain", "a.toml", "--device", "cpu", "--run", "read"]);
    assert!(explained.contains("\nrun: read\n"), "{explained}");
}

#[test]
fn explain_begins_with_the_peak() {
    let card = ["explain", "a.toml", "--target", "card.toml", "--run"];
    insta::assert_snapshot!(succeeds(&[&card[..], &["plain"]].concat()));
    let listed = succeeds(&[&card[..], &["lean", "--operations"]].concat());
    let marked: Vec<&str> = listed.lines().filter(|line| line.starts_with("> peak")).collect();
    assert_eq!(marked.len(), 1, "{listed}");
    assert!(listed.contains("linear-gelu again"), "recomputation is shown: {listed}");
    assert!(listed.find("live at the peak") < listed.find("> peak"), "{listed}");
}

/// The peak that `explain` predicts for a change equals that of a plan with the change.
#[test]
fn suggested_changes_lower_the_peak() {
    let of = |more: &[&str]| {
        let plan = ["plan", "a.toml", "--device", "cpu", "--format", "csv", "--filter", "plain"];
        let output = runner(&[&plan[..], more].concat());
        let mut table = csv::Reader::from_reader(output.stdout.as_slice());
        let row: HashMap<String, String> = table.deserialize().next().expect("a row").expect("cells");
        Bytes(row["predicted_peak_bytes"].parse().expect("bytes"))
    };
    let text = succeeds(&["explain", "a.toml", "--device", "cpu", "--run", "plain"]);
    let lines: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("changes that lower the live peak"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(lines.len() > 3 && lines.iter().any(|line| line.contains("recompute")), "{text}");
    for line in lines {
        let mut cells = line.trim().split("  ").filter(|cell| !cell.is_empty());
        let (setting, peak) = (cells.next().expect("a setting"), cells.next().expect("a size"));
        let changed = of(&["--set", &format!("strategies.plain.{setting}")]);
        assert!(changed < of(&[]), "{line}");
        assert_eq!(peak.trim(), changed.to_string(), "{line}");
    }
}

#[test]
fn runs_are_selected_by_name_number_or_id() {
    let explain = |more: &[&str]| runner(&[&["explain", "a.toml", "--device", "cpu"], more].concat());
    let said = |more: &[&str]| {
        let output = explain(more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let lean = said(&["--run", "lean"]);
    assert_eq!(lean, said(&["--run", "4"]));
    let id_of_lean = lean.split_whitespace().nth(1).and_then(|id| id.get(..6)).expect("an id").to_owned();
    assert_eq!(lean, said(&["--run", &id_of_lean]));
    // The id of a run that has two labels.
    let plain = said(&["--run", "plain"]);
    let id = plain.split_whitespace().nth(1).and_then(|id| id.get(..6)).expect("an id");
    assert_eq!(plain, said(&["--run", id]));
    let swept = ["--set", "strategies.lean.sweep.accumulate=[1,2]"];
    assert!(said(&[&swept[..], &["--run", "lean/accumulate=2"]].concat()).contains(" 2 micro-batches"));
    let grid = ["--set", "sweep.grid={\"train.batch_size\"=[4,8]}", "--run"];
    let refused = |more: &[&str]| {
        let output = explain(more);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    };
    let several = refused(&[&grid[..], &["lean"]].concat());
    assert!(
        several.contains("`lean` matches 2 runs; give one's number")
            && several.contains("lean, train.batch_size = 8"),
        "{several}"
    );
    let none = refused(&["--run", "laen"]);
    let nearest: Vec<&str> = none.lines().skip_while(|line| !line.contains("the nearest:")).collect();
    assert!(none.contains("a number from 1 to 4"), "{none}");
    assert!(nearest.len() == 4 && nearest[1].ends_with("  lean"), "{none}");
    // `plan` and `sweep` select the same runs, with the same error.
    let unknown = ["a.toml", "--device", "cpu", "--run", "laen"];
    for command in ["plan", "sweep"] {
        let output = runner(&[&[command], &unknown[..]].concat());
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr)),
            (Some(2), none.as_str().into())
        );
    }
    for run in ["lean", "4", id_of_lean.as_str()] {
        let plan = succeeds(&["plan", "a.toml", "--device", "cpu", "--format", "csv", "--run", run]);
        let strategies: Vec<&str> = plan.lines().skip(1).filter_map(|line| line.split(',').nth(2)).collect();
        assert_eq!(strategies, ["plain", "lean"], "the selected run and the baseline");
    }
    assert!(refused(&["--run", "9"]).contains("unknown run `9`"));
    assert!(refused(&[]).contains("there are 4 runs; choose one with `--run`"));
}

#[test]
fn gpt2_plans_without_a_gpu() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt2-124m.toml");
    let plan = succeeds(&["plan", file.to_str().expect("a path of text"), "--memory", "24 GiB"]);
    assert!(plan.contains("transformer 12x768"), "{plan}");
    assert!(plan.contains("a sweep would skip every run of gpt2-124m on this machine"), "{plan}");
}

/// Properties of built-in GPUs come from data sheets, not from measurements: all output that depends on them says so.
#[test]
fn known_gpu_is_planned_by_name() {
    let plan = succeeds(&["plan", "a.toml", "--target", "h100-80gb"]);
    insta::assert_snapshot!(plan);
    let caution = "from its data sheet, not measured with this program";
    assert_eq!(unwrapped(&plan).matches(caution).count(), 2, "device and heading: {plan}");
    let programs = runner(&["plan", "a.toml", "--target", "h100-80gb", "--format", "csv"]);
    let table = String::from_utf8_lossy(&programs.stdout);
    assert_eq!(table.matches(caution).count(), 4, "every row: {table}");
    let explained = succeeds(&["explain", "a.toml", "--run", "1", "--target", "h100-80gb"]);
    assert!(unwrapped(&explained).lines().next().is_some_and(|line| line.contains(caution)), "{explained}");
    let larger = succeeds(&["plan", "a.toml", "--target", "h200-141gb"]);
    let fits = |plan: &str| -> usize {
        let row = plan.lines().find(|line| line.trim_start().starts_with("plain ")).expect("a row");
        row.split_whitespace()
            .last()
            .and_then(|fits| fits.trim_start_matches('>').parse().ok())
            .expect("a number")
    };
    assert!(fits(&larger) > fits(&plan), "{larger}");
}

/// PyTorch runs on a T4, this program does not: only PyTorch's figures are shown, and the reason.
#[test]
fn card_without_kernels_shows_pytorch_alone() {
    let plan = succeeds(&["plan", "a.toml", "--target", "t4-16gb"]);
    assert!(plan.contains("PyTorch 2.15, predicted"), "{plan}");
    let why = "this program does not run on compute capability 7.5; it needs 8.0 or newer";
    assert!(unwrapped(&plan).contains(&format!("All figures are PyTorch's: {why}.")), "{plan}");
    let of_pytorch = succeeds(&["plan", "a.toml", "--target", "colab", "--as", "pytorch"]);
    assert_eq!(of_pytorch, plan, "as requested, and by another name");
    assert!(succeeds(&["explain", "a.toml", "--run", "lean", "--target", "t4"]).contains("PyTorch"));

    let refused = |arguments: &[&str]| {
        let output = runner(arguments);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["plan", "a.toml", "--target", "t4", "--as", "runner"]).contains(why));
    assert!(refused(&["sweep", "a.toml", "--target", "t4"]).contains(why));
    let v100 = succeeds(&["plan", "a.toml", "--target", "v100-16gb"]);
    let has_none =
        "compute capability 7.0, for which PyTorch 2.15 has no code; torch_version = \"2.6\" in [plan] has";
    assert!(unwrapped(&v100).contains(has_none), "{v100}");
    let older = "plan.torch_version=\"2.6\"";
    assert!(
        !succeeds(&["plan", "a.toml", "--target", "v100-16gb", "--set", older]).contains("NOT PREDICTED")
    );
}

#[test]
fn several_targets_are_side_by_side() {
    let targets = ["plan", "a.toml", "--target", "rtx3060-12gb", "--target", "4070", "--target", "card.toml"];
    insta::assert_snapshot!(succeeds(&targets));
    let with = |more: &[&str]| succeeds(&[&targets[..], more].concat());
    let rows = with(&["--format", "csv"]);
    assert_eq!(rows.lines().count(), 1 + 3 * 4, "a row per run and target: {rows}");
    assert_eq!(rows.matches(",ok,1,NVIDIA GeForce RTX 4070,").count(), 4, "{rows}");
    assert!(rows.contains("each from its data sheet, not measured with this program"), "{rows}");
    let own = with(&["--columns", "memory,fits"]);
    assert!(own.contains("  strategy       MiB    fits     MiB    fits    MiB   fits\n"), "{own}");
    let markdown = with(&["--format", "markdown"]);
    assert!(markdown.contains("| rtx-4070-12gb torch |"), "{markdown}");
    // An old card among them: all figures are PyTorch's.
    let old = succeeds(&["plan", "a.toml", "--target", "l4", "--target", "t4"]);
    assert!(
        unwrapped(&old).contains("All figures are PyTorch's, because of Tesla T4: this program does not run"),
        "{old}"
    );
    let twice = runner(&["plan", "a.toml", "--target", "l4", "--target", "L4-24gb"]);
    assert!(String::from_utf8_lossy(&twice.stderr).contains("repeats the target l4-24gb"));
    let link = runner(&["plan", "a.toml", "--target", "l4", "--target", "t4", "--link", "5GB/s"]);
    assert!(String::from_utf8_lossy(&link.stderr).contains("--link has no effect: no times are estimated"));
}

/// A link has an effect on the card beside a CPU.
#[test]
fn link_may_be_without_effect_on_some_targets() {
    let dir = test_folder();
    dir.write("cpu.toml", "name = \"mine\"\nkind = \"cpu\"\nmemory = \"8 GiB\"\nthreads = 2\n");
    let plan = |targets: &[&str]| {
        let targets: Vec<&str> = targets.iter().flat_map(|target| ["--target", target]).collect();
        let line = [&["plan", "a.toml", "--as", "runner", "--link", "5GB/s"][..], &targets].concat();
        let output = dir.program(&line).output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (succeeds, said) = plan(&["l4", "cpu.toml"]);
    assert!(succeeds, "{said}");
    std::fs::copy(dir.path("cpu.toml"), dir.path("other.toml")).expect("a copy");
    let (succeeds, said) = plan(&["cpu.toml", "other.toml"]);
    assert!(!succeeds && said.contains("--link has no effect: a CPU's device"), "{said}");
}

/// Rows are told apart by the device's name.
#[test]
fn rows_of_one_device_are_refused() {
    let dir = test_folder();
    let card = succeeds(&["devices", "--target", "l4"]);
    dir.write("measured.toml", card);
    let plan = |more: &[&str]| {
        let targets = ["plan", "a.toml", "--target", "l4", "--target", "measured.toml"];
        dir.program(&[&targets[..], more].concat()).output().expect("it starts")
    };
    assert!(plan(&[]).status.success());
    let refused = plan(&["--format", "csv"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("the targets l4-24gb and measured could not be told apart"), "{said}");
}

/// With many targets, a narrow terminal shows several blocks, each of at most its width.
#[test]
fn many_targets_are_shown_in_blocks() {
    let targets =
        ["4090", "4080", "4070", "3090", "3070", "l4", "a10g", "l40s"].map(|name| ["--target", name]);
    let plan = succeeds(&[&["plan", "a.toml"], targets.as_flattened()].concat());
    assert!(plan.lines().all(|line| line.chars().count() <= 100), "{plan}");
    assert!(plan.lines().filter(|line| line.trim_start().starts_with("plain ")).count() > 1, "{plan}");
    assert_eq!(plan.matches("all 4 runs fit").count(), 8, "{plan}");
}

#[test]
fn target_file_reports_assumed_keys() {
    let dir = test_folder();
    dir.write("mine.toml", "name = \"mine\"\nkind = \"cuda\"\nmemory = \"8 GiB\"\ncapability = \"8.9\"\n");
    let output = dir.program(&["plan", "a.toml", "--target", "mine.toml"]).output().expect("it starts");
    let plan = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        unwrapped(&plan).lines().next().expect("a line"),
        "device: mine (cuda, compute capability 8.9), 8.00 GiB; its context size is assumed, not measured with this \
         program; defaults of every card, not in its file: alignment = 256 B, page = 512 B, product_workspace = 32 MiB; \
         assumed: context = 512 MiB"
    );
    assert!(plan.contains("\n  its context size is assumed, not measured with this program |"), "{plan}");
}

/// As in experiments, all errors are reported at once, each with its location and a suggestion.
#[test]
fn target_file_errors_point_at_keys() {
    let dir = test_folder();
    dir.write(
        "wrong.toml",
        "name = \"mine\"\nkind = \"gpu\"\nmemry = \"8 GiB\"\ncontext = \"500\"\nthreads = 0\n",
    );
    let says = |target: &str| {
        let output = dir.program(&["plan", "a.toml", "--target", target]).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = ["wrong.toml", "h100", "nowhere.toml", "."].map(says).join("\n");
    insta::assert_snapshot!(said);
}

/// Byte tokens have a known vocabulary, so shapes are known without the data. Run ids are not: they depend on its
/// digest.
#[test]
fn shapes_are_planned_without_data() {
    let dir = test_folder();
    let with = |arguments: &[&str]| {
        let output = dir.program(arguments).output().expect("it starts");
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        (output.status.code(), said)
    };
    let target = ["a.toml", "--target", "card.toml"];
    let (_, [here, _]) = with(&[&["plan"], &target[..]].concat());
    std::fs::remove_file(dir.path("text.txt")).expect("it is there");
    let (code, [plan, error]) = with(&[&["plan"], &target[..]].concat());
    assert_eq!(code, Some(0), "{error}");
    let absent: Vec<&str> = plan.lines().filter(|line| line.contains("is missing (")).collect();
    assert_eq!(absent.len(), 1, "{plan}");
    assert!(absent[0].starts_with("the data of a is missing (") && absent[0].contains("text.txt"), "{plan}");
    // The rest of the output is unchanged, and aliases of a run are still reported.
    assert_eq!(plan.replace(&format!("{}\n", absent[0]), ""), here);

    let ids = |arguments: &[&str]| -> Vec<String> {
        let (code, [table, error]) = with(&[arguments, &target[..]].concat());
        assert_eq!(code, Some(0), "{error}");
        assert!(table.starts_with("experiment,group,strategy,run_id,"), "{table}");
        table.lines().skip(1).map(|row| row.split(',').nth(3).expect("a cell").to_owned()).collect()
    };
    assert_eq!(ids(&["plan", "--format", "csv"]), [""; 4], "runs have no id");

    let (code, [explained, error]) = with(&[&["explain", "--run", "4"], &target[..]].concat());
    assert_eq!(code, Some(0), "{error}");
    assert!(explained.contains("is missing (") && explained.contains("\nrun: lean\n"), "{explained}");
    for command in [&["check", "a.toml"][..], &["sweep", "a.toml"], &["sweep", "--dry-run", "a.toml"]] {
        let (code, [_, error]) = with(command);
        assert!(code == Some(2) && error.contains("text.txt"), "{command:?}: {error}");
    }
    // Data that exists is checked.
    dir.write("text.txt", "");
    let (code, [_, error]) = with(&[&["plan"], &target[..]].concat());
    assert!(code == Some(2) && error.contains("found is empty"), "{error}");
}

#[test]
fn plan_works_without_weights() {
    let weights = "model.transformer.weights=nowhere.safetensors";
    let plan = succeeds(&["plan", "a.toml", "--target", "card.toml", "--set", weights]);
    assert!(plan.contains("is missing (") && plan.contains("nowhere.safetensors"), "{plan}");
}

/// The rates of a measured run are used to estimate the times of others.
#[test]
fn times_are_estimated_from_measured_rates() {
    let dir = test_folder();
    let plan = |more: &[&str]| {
        let output =
            dir.program(&["plan", "a.toml", "--device", "cpu"]).args(more).output().expect("it starts");
        String::from_utf8(output.stdout).expect("text")
    };
    let before = plan(&[]);
    assert!(before.contains("No times are estimated") && !before.contains("est ms"), "{before}");
    dir.runner(&["sweep", "a.toml", "--device", "cpu", "--filter", "plain"]);
    let after = plan(&[]);
    assert!(after.contains("estimates from the rates of the run of this device in results"), "{after}");
    assert!(after.replace("\n  ", " ").contains("The fastest strategy that fits"), "{after}");
    let table = plan(&["--format", "csv"]);
    let rows: Vec<HashMap<String, String>> =
        csv::Reader::from_reader(table.as_bytes()).deserialize().collect::<Result<_, _>>().expect("a table");
    let of = |strategy: &str| -> f64 {
        let row = rows.iter().find(|row| row["strategy"] == strategy).expect("a row");
        row["estimated_step_ms"].parse().expect("a number")
    };
    assert!(of("plain") > 0.0 && of("lean") > of("plain"), "computing again takes time");
    let sorted = plan(&["--sort", "speed"]);
    let position =
        |name: &str| sorted.lines().position(|line| line.contains(&format!(" {name} "))).expect("a row");
    assert!(position("lean") > position("plain"), "{sorted}");
    let chosen = plan(&["--columns", "params,estimate,added,moved"]);
    assert!(chosen.contains("params  est ms  +FLOP%  moved  effects"), "{chosen}");
}

/// The rows of a plan as CSV, by strategy.
fn planned(dir: &TestFolder, arguments: &[&str]) -> HashMap<String, HashMap<String, String>> {
    let output = dir.program(arguments).args(["--format", "csv"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<HashMap<String, String>> = csv::Reader::from_reader(&output.stdout[..])
        .deserialize()
        .collect::<Result<_, _>>()
        .expect("a table");
    rows.into_iter().map(|row| (row["strategy"].clone(), row)).collect()
}

fn number(row: &HashMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column} is {:?}", row[column]))
}

const OFFLOAD: &str = "
[strategies.optimizer]
offload = { optimizer = true }

[strategies.activations]
offload = { activations = true, ahead = 0 }

[strategies.head]
precision = \"bf16\"
place = { embedding = \"host\", head = \"host\" }
";

/// Operations on a known card's host and transfers are estimated with rates that the output labels as assumed; a target
/// file, an experiment and the command line state others, the latter first.
#[test]
fn rates_of_host_and_link_are_assumed_or_stated() {
    let dir = test_folder();
    let tiny = Tiny { layers: 2, d_model: 32, ..Tiny::default() };
    dir.write("a.toml", format!("baseline = \"plain\"\n{}", tiny.with(&(STRATEGIES.to_owned() + OFFLOAD))));
    let plan = |more: &[&str]| {
        let arguments = [&["plan", "a.toml"], more].concat();
        let rows = planned(&dir, &arguments);
        let output = dir.program(&arguments).output().expect("it starts");
        (rows, String::from_utf8(output.stdout).expect("text").replace("\n  ", " "))
    };
    let ms = |rows: &HashMap<String, HashMap<String, String>>, strategy: &str| {
        number(&rows[strategy], "estimated_step_ms")
    };
    let (assumed, said) = plan(&["--target", "h100-80gb"]);
    assert!(ms(&assumed, "optimizer") > ms(&assumed, "plain"), "the host is slower");
    assert!(said.contains("The card's host is assumed to reach"), "{said}");
    assert!(said.contains("assumed to reach the link's peak, 64.0 GB/s in each direction"), "{said}");
    assert!(said.contains("not compared, for lack of an estimate: head."), "{said}");
    assert!(
        said.contains("Without an estimate, and not compared in time: head (the host's rate of"),
        "{said}"
    );
    let caution = &assumed["optimizer"]["caution"];
    assert!(caution.ends_with("; rates of its host are assumed"), "{caution}");

    let printed = dir.program(&["devices", "--target", "h100-80gb"]).output().expect("it starts").stdout;
    let file = String::from_utf8(printed).expect("text");
    assert_eq!(plan(&["--target", "h100-80gb"]).0, assumed);
    let host =
        "link = \"1 GB/s\"\nhost_threads = 1\nhost_bandwidth = \"100 MB/s\"\nhost_flops = \"1 GFLOP/s\"\n";
    dir.write("stated.toml", file + host);
    let (stated, said) = plan(&["--target", "stated.toml"]);
    assert!(ms(&stated, "optimizer") > 2.0 * ms(&assumed, "optimizer"));
    assert!(!said.contains("assumed to reach") && said.contains("back take 1.00 GB/s"), "{said}");

    // Without prefetch, transfers add to the step.
    let copied = |arguments: &[&str]| {
        let rows = plan(&[&["--target", "stated.toml"], arguments].concat()).0;
        ms(&rows, "activations") - ms(&rows, "plain")
    };
    let of_file = copied(&[]);
    let is_about = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-6;
    assert!(is_about(copied(&["--set", "target.link=2 GB/s"]), of_file / 2.0));
    assert!(is_about(copied(&["--set", "target.link=2 GB/s", "--link", "4GB/s"]), of_file / 4.0));

    let output =
        dir.program(&["plan", "a.toml", "--device", "cpu", "--link", "4GB/s"]).output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--link has no effect: a CPU's device and host pools are one memory"), "{error}");
}

/// The estimated speed at the largest batch that fits is that of a run with this batch.
#[test]
fn speed_at_the_largest_batch_is_that_of_its_run() {
    let dir = test_folder();
    let accumulated = "[strategies.accumulated]\naccumulate = 2\n";
    let tiny = Tiny { layers: 2, d_model: 32, ..Tiny::default() };
    dir.write("a.toml", tiny.with(&(STRATEGIES.to_owned() + accumulated)));
    let target = ["plan", "a.toml", "--target", "h100-80gb", "--memory", "600 MiB"];
    let rows = planned(&dir, &target);
    for (strategy, micro_batches) in [("plain", 1.0), ("lean", 1.0), ("accumulated", 2.0)] {
        let row = &rows[strategy];
        let batch = number(row, "fits_micro_batch") * micro_batches;
        let setting = format!("train.batch_size={batch}");
        let run =
            &planned(&dir, &[&target[..], &["--set", &setting, "--filter", strategy]].concat())[strategy];
        let context = tiny.context as f64;
        let speed = 1e3 * batch * context / number(run, "estimated_step_ms");
        let predicted = number(row, "estimated_fits_tokens_per_s");
        assert!((speed / predicted - 1.0).abs() < 1e-9, "{strategy}: {speed} {predicted}");
        assert_eq!(run["estimated_fits_tokens_per_s"], row["estimated_fits_tokens_per_s"]);
    }
    let output = dir.program(&target).args(["--columns", "fits,fits_speed"]).output().expect("it starts");
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.contains("fits  fits tok/s  effects"), "{table}");
}

/// The dtypes of residual stream and embedding tables are those of the program, and shown where strategies differ.
#[test]
fn dtypes_of_stream_and_tables_are_predicted_and_shown() {
    let dir = test_folder();
    let strategies = "
[strategies.plain]

[strategies.autocast]
precision = \"bf16\"

[strategies.master]
params = \"bf16\"

[strategies.pure]
params = \"bf16\"
master_weights = false

[strategies.qlora]
precision = \"bf16\"
lora = { rank = 4, alpha = 8, targets = [\"mlp\"], base = \"nf4\" }

[strategies.qlora-pure]
extends = \"pure\"
lora = { rank = 4, alpha = 8, targets = [\"mlp\"], base = \"nf4\" }
";
    let tiny = Tiny { layers: 2, d_model: 32, ..Tiny::default() };
    dir.write("a.toml", format!("baseline = \"plain\"\n{}", tiny.with(strategies)));
    let target = ["plan", "a.toml", "--target", "card.toml"];
    let rows = planned(&dir, &target);
    let dtypes = |strategy: &str| {
        let row = &rows[strategy];
        (row["stream_dtype"].clone(), row["table_dtype"].clone())
    };
    let output = dir.program(&target).args(["--columns", "fits"]).output().expect("it starts");
    let table = String::from_utf8(output.stdout).expect("text");
    for (strategy, stream, tables, shown) in [
        ("plain", "fp32", "fp32", "fp32 stream and tables"),
        ("autocast", "fp32", "fp32", ""),
        ("master", "fp32", "bf16", "fp32 stream, bf16 tables"),
        ("pure", "bf16", "bf16", "bf16 stream and tables"),
        ("qlora", "fp32", "fp32", "fp32 stream and tables; "),
        ("qlora-pure", "bf16", "bf16", "bf16 stream and tables; "),
    ] {
        assert_eq!(dtypes(strategy), (stream.to_owned(), tables.to_owned()), "{strategy}");
        let line =
            table.lines().find(|line| line.trim_start().starts_with(&format!("{strategy} "))).expect("a row");
        let own: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| cell.contains("tables")).collect();
        assert_eq!(own.len(), usize::from(!shown.is_empty()), "{line}");
        assert!(line.contains(shown), "{line}");
    }
    let output = dir.program(&target).args(["--filter", "plain,autocast"]).output().expect("it starts");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("stream and tables"), "both are fp32");
}

/// LoRA and QLoRA of a shipped experiment differ in the storage of the base alone. Where they do not, the table says so.
#[test]
fn shipped_adapters_are_compared_on_equal_terms() {
    let dir = test_folder();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/llama-8b.toml");
    let file = file.to_str().expect("a path of text");
    let arguments = ["plan", file, "--target", "h100-80gb", "--filter", "bfloat16,lora,qlora,qlora-fp32"];
    let rows = planned(&dir, &arguments);
    let dtypes =
        |strategy: &str| ["stream_dtype", "table_dtype"].map(|column| rows[strategy][column].clone());
    for strategy in ["bfloat16", "lora", "qlora"] {
        assert_eq!(dtypes(strategy), ["bf16", "bf16"], "{strategy}");
    }
    assert_eq!(dtypes("qlora-fp32"), ["fp32", "fp32"]);
    let peak = |strategy: &str| number(&rows[strategy], "predicted_peak_bytes");
    assert!(peak("qlora") < peak("lora") && peak("qlora") < peak("qlora-fp32"));
}

/// A strategy that is invalid at every point is no mistake for a command that does not select it.
#[test]
fn invalid_strategies_outside_the_filter_are_skipped() {
    let fp16 = ["a.toml", "--device", "cpu", "--set", "strategies.lean.loss_scale=dynamic"];
    let error = |arguments: &[&str]| {
        let output = runner(&[arguments, &fp16[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    for refused in [&["plan"][..], &["sweep"], &["plan", "--filter", "l*"], &["explain", "--run", "lean"]] {
        let error = error(refused);
        assert!(error.contains("loss_scale"), "{error}");
    }
    let plan = succeeds(&[&["plan", "--filter", "plain"], &fp16[..]].concat());
    assert!(plan.contains(" plain ") && !plan.contains("lean"), "{plan}");
    let dry = succeeds(&[&["sweep", "--dry-run", "--filter", "plain"], &fp16[..]].concat());
    assert!(dry.contains("skipped: ") && dry.contains("loss_scale"), "{dry}");
    let explained = succeeds(&[&["explain", "--run", "plain"], &fp16[..]].concat());
    assert!(explained.contains("changes that lower the live peak"), "{explained}");
}

#[test]
fn inference_needs_no_optimizer() {
    let dir = TestFolder::new();
    let text = Tiny::default().with("[strategies.plain]\n[strategies.lean]\nprecision = \"bf16\"\n");
    let without: String =
        text.lines().filter(|line| !line.contains("optimizer")).map(|line| format!("{line}\n")).collect();
    assert_ne!(text.lines().count(), without.lines().count(), "{text}");
    dir.write("a.toml", without);
    let plan = |set: &str| {
        let arguments = ["plan", "a.toml", "--device", "cpu", "--set", set];
        dir.program(&arguments).output().expect("the program starts")
    };
    let inference = plan("measure.what=inference");
    assert_eq!(inference.status.code(), Some(0), "{}", String::from_utf8_lossy(&inference.stderr));
    let training = plan("measure.what=training");
    assert_eq!(training.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&training.stderr).contains("`train.optimizer` is missing"));
}
