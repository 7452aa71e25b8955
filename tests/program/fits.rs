//! `runner fits`: remedies for a model or an experiment on a card.

use std::fs;

use crate::test_folder::{TestFolder, said, unwrapped};

/// The cells of a row of a table.
fn cells(text: &str, name: &str) -> Vec<String> {
    let line = text.lines().find(|line| {
        line.get(3..).and_then(|line| line.strip_prefix(name)).is_some_and(|rest| rest.starts_with("   "))
    });
    let line = line.unwrap_or_else(|| panic!("no row {name}:\n{text}"));
    line[3 + name.len()..].split_whitespace().map(str::to_owned).collect()
}

fn stdout(dir: &TestFolder, args: &[&str]) -> String {
    String::from_utf8(dir.runner(args).stdout).unwrap()
}

#[test]
fn a_model_has_its_remedies_alone_and_combined() {
    let dir = TestFolder::new();
    insta::assert_snapshot!(stdout(
        &dir,
        &["fits", "gpt2", "--target", "rtx-3060-12gb", "--target", "t4", "--context", "512", "--batch", "16"]
    ));
}

/// The figures are those of `plan` for the written experiment.
#[track_caller]
fn assert_written_experiment_has_the_same_figures(options: &[&str], target: &str, rows_at_least: usize) {
    let dir = TestFolder::new();
    let args = [&["fits", "smollm2-135m", "--target", target, "--write", "b.toml"], options].concat();
    let text = stdout(&dir, &args);
    let columns = ["--columns", "torch,torch_fits,memory,fits", "--format", "csv"];
    let csv = stdout(&dir, &[&["plan", "b.toml", "--target", target], columns.as_slice()].concat());
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert!(rows.len() >= rows_at_least, "{}", rows.len());
    for row in &rows {
        let cell = |name: &str| &row[headers.iter().position(|header| header == name).unwrap()];
        let cells = cells(&text, cell("strategy"));
        let [torch, torch_fits, .., fits] = cells.as_slice() else { panic!("{cells:?}") };
        assert_eq!(fits, cell("fits_micro_batch"), "{row:?}");
        match torch.as_str() {
            "-" => assert_eq!(cell("torch_peak_bytes"), "", "{row:?}"),
            shown => {
                let gib: f64 = cell("torch_peak_bytes").parse::<f64>().unwrap() / f64::from(1 << 30);
                let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
                assert_eq!(shown, format!("{gib:.decimals$}"), "{row:?}");
                assert_eq!(torch_fits, cell("torch_fits_micro_batch"), "{row:?}");
            }
        }
    }
}

#[test]
fn written_experiment_has_the_same_figures() {
    assert_written_experiment_has_the_same_figures(&["--batch", "2"], "a10g", 13);
}

/// The model's batch is that of each card.
#[test]
fn cards_add_remedies_that_divide_the_model() {
    let options = ["--batch", "2", "--cards", "3"];
    assert_written_experiment_has_the_same_figures(&options, "h100-80gb", 16);
    let dir = TestFolder::new();
    let text =
        stdout(&dir, &[&["fits", "smollm2-135m", "--target", "h100-80gb"], options.as_slice()].concat());
    assert!(text.contains("micro-batches of 2 samples of 2048 tokens on each of 3 cards"), "{text}");
    let peak = |name: &str| cells(&text, name)[0].parse::<f64>().unwrap();
    assert!(peak("fp32 + zero-3") < peak("fp32"), "{text}");
    for name in ["fp32 + zero-1", "fp32 + zero-2"] {
        assert_eq!(cells(&text, name)[0], "-", "{text}");
    }
    let text = unwrapped(&text);
    assert!(text.contains("NCCL's memory on each card of a run with ranks is assumed"), "{text}");
    assert!(
        text.contains("Exchanges between ranks are estimated from 8 cards in a node (data sheet"),
        "{text}"
    );
}

/// Its strategies and `[defaults]` have no influence; the first values of its sweep are used.
#[test]
fn an_experiment_gives_its_model_and_training() {
    let dir = TestFolder::new();
    let rest = "[model.transformer]\nlayers = 2\nd_model = 64\nheads = 2\ncontext = 64\n[data.text]\npaths = \
                [\"text.txt\"]\n[train]\noptimizer.lion = { lr = 1e-3 }\n";
    dir.write(
        "a.toml",
        format!(
            "{rest}[defaults]\nrecompute = \"block\"\n[strategies.lora]\nprecision = \"bf16\"\n[sweep.grid]\n\
             \"train.batch_size\" = [4, 8]\n"
        ),
    );
    dir.write(
        "b.toml",
        format!("{rest}batch_size = 4\n[strategies.fp32]\n[strategies.checkpoint]\nrecompute = \"block\"\n"),
    );
    let text = stdout(&dir, &["fits", "a.toml", "--memory", "1GiB", "--device", "cpu"]);
    assert!(text.starts_with("a.toml: "), "{text}");
    assert!(text.contains("lion, micro-batches of 4 samples of 64 tokens"), "{text}");
    assert!(!text.contains("offload"), "{text}");
    let plan = stdout(&dir, &["plan", "b.toml", "--memory", "1GiB", "--device", "cpu", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(plan.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let at = |name: &str| headers.iter().position(|header| header == name).unwrap();
    for (row, name) in reader.records().zip(["fp32", "fp32 + checkpoint"]) {
        let row = row.unwrap();
        assert_eq!(cells(&text, name).last().unwrap(), &row[at("fits_micro_batch")], "{text}");
    }
    // A written experiment is complete.
    dir.runner(&["fits", "a.toml", "--device", "cpu", "--write", "c.toml"]);
    assert!(!fs::read_to_string(dir.path("c.toml")).unwrap().contains("extends"));
    dir.runner(&["check", "c.toml"]);
}

/// Mixtures of experts have no prediction for PyTorch: this program's memory decides.
#[test]
fn models_without_a_prediction_have_the_reason() {
    let dir = TestFolder::new();
    let text = stdout(&dir, &["fits", "olmoe-1b-7b", "--target", "h100-80gb"]);
    assert!(unwrapped(&text).contains("mixtures of experts, whose memory depends on the routing"), "{text}");
    assert!(text.contains("Adapters trained: "), "{text}");
}

#[test]
fn wrong_arguments_are_refused() {
    let dir = TestFolder::new();
    dir.write("a.toml", "[strategies.plain]\n");
    for (args, expected) in [
        (&["fits", "lama-3.2-1b"][..], "there is no built-in configuration \"lama-3.2-1b\""),
        (&["fits", "./lama"], "cannot read"),
        (
            &["fits", "a.toml", "--context", "3"],
            "--context is for models\n = help: for an experiment, use `--set",
        ),
        (&["fits", "a.toml", "--batch", "3"], "--batch is for models"),
        (&["fits", "gpt2", "--context", "4096"], "exceeds the position table"),
        (&["fits", "gpt2", "--batch", "0"], "must be"),
        (&["fits", "gpt2", "--cards", "0"], "0 is not in 1..=4096"),
        (&["fits", "gpt2", "--cards", "2", "--device", "cpu"], "`--cards` on a CPU"),
        (&["fits", "gpt2", "--target", "h100"], "several cards are known"),
        (&["fits", "missing.toml"], "cannot read missing.toml"),
        (&["fits", "gpt2", "--set", "precision=bf16"], "`fits` chooses the keys of strategies"),
        (&["fits", "gpt2", "--target", "t4", "--as", "runner"], "does not run on compute capability 7.5"),
        (
            &["fits", "gpt2", "--target", "t4", "--target", "a10g", "--write", "x.toml"],
            "write an experiment for each",
        ),
        (&["fits", "gpt2", "--target", "p100-16gb"], "for which PyTorch 2.15 has no code"),
        (&["fits", "gpt2", "--set", "train.batch_size=0"], "must be a whole number"),
        (&["fits", "gpt2", "--set", "measure.what=inference"], "is for runs that train"),
    ] {
        let output = dir.program(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?} {}", said(&output));
        let text = said(&output);
        assert!(text.contains(expected), "{args:?} {text}");
    }
}
