//! `--as pytorch` and `[plan]`: PyTorch's memory in `plan` and `explain`.

use serde_json::Value;

use crate::test_folder::{TestFolder, Tiny, said};

/// A shipped experiment with known figures, and a card with the memory that all its runs were made for.
const GPT2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/gpt2-24gb.toml");
const CARD: [&str; 2] = ["--target", "rtx-4090-24gb"];

const STRATEGIES: &str = r#"
[strategies.plain]

[strategies.cache]                  # PyTorch's script is the same
allocator = "caching"

[strategies.graph]                  # not predicted
graph = true

[strategies.lean]
recompute = "block"
"#;

fn folder(more: &str) -> TestFolder {
    let dir = TestFolder::new();
    let tiny = Tiny { layers: 2, d_model: 64, context: 64, ..Tiny::default() };
    dir.write("a.toml", format!("{}{more}", tiny.with(STRATEGIES)));
    dir
}

fn succeeds(dir: &TestFolder, arguments: &[&str]) -> String {
    String::from_utf8(dir.runner(arguments).stdout).unwrap()
}

#[track_caller]
fn fails(dir: &TestFolder, arguments: &[&str]) -> String {
    let output = dir.program(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// The rows of a plan, with all figures.
pub(crate) fn rows(dir: &TestFolder, file: &str, more: &[&str]) -> Vec<Value> {
    let arguments = [&["plan", file, "--format", "json"], &CARD[..], more].concat();
    let json: Value = serde_json::from_str(&succeeds(dir, &arguments)).unwrap();
    json[0]["rows"].as_array().unwrap().clone()
}

/// Columns of the plan, and those of the ordinary plan that hold PyTorch's figures.
const COLUMNS: [(&str, &str); 3] = [
    ("predicted_peak_bytes", "torch_peak_bytes"),
    ("predicted_reserved_peak_bytes", "torch_reserved_peak_bytes"),
    ("fits_micro_batch", "torch_fits_micro_batch"),
];

#[test]
fn figures_equal_the_torch_columns_of_the_ordinary_plan() {
    let dir = folder("");
    for (file, memory) in [(GPT2, "24GiB"), (GPT2, "25GiB"), (GPT2, "20GiB"), ("a.toml", "560MiB")] {
        let ordinary = rows(&dir, file, &["--memory", memory]);
        let pytorch = rows(&dir, file, &["--memory", memory, "--as", "pytorch"]);
        assert_eq!(ordinary.len(), pytorch.len());
        for (one, other) in ordinary.iter().zip(&pytorch) {
            for (shown, torch) in COLUMNS {
                assert_eq!(one[torch], other[shown], "{torch} of {}", one["strategy"]);
                assert_eq!(one[torch], other[torch], "{torch} of {}", one["strategy"]);
            }
            for same in ["strategy", "run_id", "torch_fits", "parameters", "batch_size"] {
                assert_eq!(one[same], other[same], "{same} of {}", one["strategy"]);
            }
            let status = match one["torch_fits"].as_str().unwrap() {
                "yes" | "retry" => "ok",
                "no" => "oom",
                _ => "skipped",
            };
            assert_eq!(other["status"], status, "{}", one["strategy"]);
            assert_eq!(other["memory_of"], "PyTorch 2.15");
            // No figure of this program.
            for none in ["estimated_step_ms", "hardware_flops", "recompute_flops", "to_host_bytes"] {
                assert!(other[none].is_null(), "{none} of {}", one["strategy"]);
            }
        }
    }
}

#[test]
fn smallest_limit_suffices_and_less_does_not() {
    let dir = folder("");
    for row in rows(&dir, GPT2, &["--as", "pytorch"]) {
        let limit = row["torch_limit_bytes"].as_u64().unwrap();
        let strategy = row["strategy"].as_str().unwrap();
        if !["fp32", "checkpoint", "all"].contains(&strategy) {
            continue;
        }
        let status = |limit: u64| {
            let memory = format!("{limit} B");
            let all = rows(&dir, GPT2, &["--as", "pytorch", "--memory", &memory]);
            let row = all.into_iter().find(|row| row["strategy"] == strategy).unwrap();
            (row["status"].clone(), row["oom_short_bytes"].clone())
        };
        assert_eq!(status(limit).0, "ok", "{strategy}");
        assert_eq!(status(limit - (2 << 20)), ("oom".into(), (2 << 20).into()), "{strategy}");
    }
}

#[test]
fn plan_shows_pytorchs_memory() {
    let dir = folder("");
    let plan =
        |more: &[&str]| succeeds(&dir, &[&["plan", GPT2, "--as", "pytorch"], &CARD[..], more].concat());
    insta::assert_snapshot!("plan_as_pytorch", plan(&[]));
    let retrying = plan(&["--memory", "25GiB"]);
    let marked = retrying.lines().find(|line| line.contains(" checkpoint ")).unwrap();
    assert!(marked.starts_with("r checkpoint "), "{retrying}");
    assert!(
        retrying.contains("r fits only because PyTorch returns cached memory and tries again"),
        "{retrying}"
    );
    // With the baseline; the largest peak of all runs is not shown.
    let filtered = plan(&["--filter", "checkpoint"]);
    assert!(filtered.contains("The peak of fp32: "), "{filtered}");
    let arguments = [&["plan", "a.toml", "--as", "pytorch", "--memory", "536MiB"], &CARD[..]].concat();
    insta::assert_snapshot!("plan_as_pytorch_of_runs_without_a_prediction", succeeds(&dir, &arguments));
}

#[test]
fn explain_shows_pytorchs_peak() {
    let dir = folder("");
    let arguments = [&["explain", GPT2, "--as", "pytorch", "--run", "checkpoint"], &CARD[..]].concat();
    // Without the run's id: it depends on the data, this repository's files.
    let text = succeeds(&dir, &arguments);
    let (before, rest) = text.split_once("\nrun ").unwrap();
    let (_, after) = rest.split_once(": ").unwrap();
    insta::assert_snapshot!("explain_as_pytorch", format!("{before}\nrun ID: {after}"));
}

/// The experiment's choice, which the command line replaces.
#[test]
fn plan_table_selects_the_figures() {
    let dir = folder("\n[plan]\nas = \"pytorch\"\nalloc_conf = \"expandable_segments:True\"\n");
    let of = |more: &[&str]| succeeds(&dir, &[&["plan", "a.toml"], &CARD[..], more].concat());
    assert!(of(&[]).contains("PyTorch 2.15 with expandable_segments:True, predicted"), "{}", of(&[]));
    assert_eq!(of(&[]), of(&["--as", "pytorch"]));
    let ordinary = of(&["--as", "runner"]);
    assert!(ordinary.contains(" t-fits ") && !ordinary.contains("PyTorch 2.15, predicted"), "{ordinary}");
    assert!(ordinary.contains("PyTorch 2.15 with expandable_segments:True needs "), "{ordinary}");
    // Other commands show this program's figures.
    succeeds(&dir, &["sweep", "a.toml", "--dry-run", "--device", "cpu"]);
}

#[test]
fn plan_table_changes_pytorchs_figures_alone() {
    let dir = folder("");
    let plain = rows(&dir, GPT2, &[]);
    let conf = ["--set", "plan.as=runner", "--set", "plan.alloc_conf=expandable_segments:True"];
    let expandable = rows(&dir, GPT2, &conf);
    let reserved = "torch_reserved_peak_bytes";
    for (one, other) in plain.iter().zip(&expandable) {
        assert!(other[reserved].as_u64() < one[reserved].as_u64(), "{}", one["strategy"]);
        let without = |row: &Value| {
            let mut row = row.as_object().unwrap().clone();
            row.retain(|column, _| !column.starts_with("torch_"));
            row
        };
        assert_eq!(without(one), without(other), "{}", one["strategy"]);
    }
}

/// Older versions keep workspaces, and not all of them run on every card.
#[test]
fn torch_version_changes_pytorchs_figures_alone() {
    let dir = folder("");
    let version = |version: &str| format!("plan.torch_version=\"{version}\"");
    let of = |version: &str| rows(&dir, GPT2, &["--set", version]);
    let (newest, older) = (rows(&dir, GPT2, &[]), of(&version("2.11")));
    assert_eq!(newest, of(&version("2.15")));
    for (one, other) in newest.iter().zip(&older) {
        let (bytes, more) = (&one["torch_peak_bytes"], &other["torch_peak_bytes"]);
        assert!(bytes.as_u64() < more.as_u64(), "{}: {bytes} and {more}", one["strategy"]);
        let kept = ["id", "predicted_peak_bytes"];
        assert_eq!(kept.map(|column| &one[column]), kept.map(|column| &other[column]));
    }
    let shown = |more: &[&str]| succeeds(&dir, &[&["plan", "a.toml"], more].concat());
    let older = version("2.6");
    let text = shown(&[&CARD[..], &["--set", &older]].concat());
    assert!(text.contains("PyTorch 2.6 needs "), "{text}");
    let text = shown(&[&CARD[..], &["--set", &older, "--as", "pytorch"]].concat());
    assert!(text.contains("PyTorch 2.6, predicted"), "{text}");
    let text = shown(&["--target", "b200-180gb", "--set", &older]);
    assert!(text.contains("(compute capability 10.0, for"), "{text}");
}

/// The exported script and its requests are those recorded with the other implementation.
#[test]
fn torch_optimizer_selects_the_implementation() {
    let dir = folder("");
    let peak = |optimizer: &str| {
        let set = format!("plan.torch_optimizer={optimizer}");
        rows(&dir, GPT2, &["--set", &set])[0]["torch_peak_bytes"].as_u64().unwrap()
    };
    assert_eq!(peak("fused"), rows(&dir, GPT2, &[])[0]["torch_peak_bytes"].as_u64().unwrap());
    // Counts of steps are on the card with the fused implementation only.
    assert!(peak("foreach") < peak("fused"));
    let set = ["--set", "plan.torch_optimizer=foreach"];
    let script = succeeds(&dir, &[&["export", "a.toml", "--run", "plain"], &CARD[..], &set].concat());
    assert!(script.contains("foreach=True") && !script.contains("fused=True"), "{script}");
    let text = succeeds(&dir, &[&["plan", "a.toml", "--as", "pytorch"], &CARD[..], &set].concat());
    assert!(text.contains("PyTorch 2.15 with a foreach optimizer, predicted"), "{text}");
}

/// The exported script and its requests are those recorded with reentrant checkpoints.
#[test]
fn torch_checkpoint_selects_reentrant_checkpoints() {
    let dir = folder("");
    let set = ["--set", "plan.torch_checkpoint=reentrant"];
    let of = |strategy: &str, more: &[&str]| {
        let rows = rows(&dir, GPT2, more);
        let row = rows.iter().find(|row| row["strategy"] == strategy).unwrap();
        (row["torch_peak_bytes"].as_u64().unwrap(), row["torch_program"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("fp32", &set).0, of("fp32", &[]).0);
    let ((reentrant, program), (peak, other)) = (of("checkpoint", &set), of("checkpoint", &[]));
    assert_ne!(reentrant, peak);
    assert_eq!([&program, &other], ["PyTorch 2.15 with reentrant checkpoints", "PyTorch 2.15"]);
    let script = succeeds(&dir, &[&["export", "a.toml", "--run", "lean"], &CARD[..], &set].concat());
    assert!(script.contains("use_reentrant=True") && !script.contains("use_reentrant=False"), "{script}");
}

pub(crate) const LLAMA: &str = r#"
name = "llama"
[model.transformer]
family = "llama"
layers = 2
d_model = 64
heads = 4
context = 32
activation = "swiglu"
norm = "rms"
positions = "rotary"
bias = false
[data.synthetic]
[train]
batch_size = 2
optimizer.adamw = { lr = 1e-3 }
[strategies.plain]
[strategies.adapters]
lora = { rank = 4, alpha = 8, targets = ["q_proj", "v_proj"] }
"#;

/// Its sequences are those recorded; here, what a user sees.
#[test]
fn torch_program_selects_the_library() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let set = ["--set", "plan.torch_program=transformers"];
    let of = |more: &[&str], strategy: &str| {
        let rows = rows(&dir, "a.toml", more);
        rows.into_iter().find(|row| row["strategy"] == strategy).unwrap()
    };
    let (modules, library) = (of(&[], "plain"), of(&set, "plain"));
    let trainer = of(&["--as", "trainer"], "plain");
    assert_eq!(of(&["--as", "transformers"], "plain")["torch_peak_bytes"], library["torch_peak_bytes"]);
    assert_ne!(library["torch_peak_bytes"], trainer["torch_peak_bytes"]);
    assert_eq!(
        trainer["torch_program"],
        "PyTorch 2.15 with Trainer of transformers 5.24 and Accelerate 1.15"
    );
    assert_ne!(modules["torch_peak_bytes"], library["torch_peak_bytes"]);
    assert_eq!(modules["torch_program"], "PyTorch 2.15");
    assert_eq!(library["torch_program"], "PyTorch 2.15 with transformers 5.24");
    assert!(of(&[], "adapters")["torch_peak_bytes"].is_null());
    assert!(of(&set, "adapters")["torch_peak_bytes"].is_u64());
    let export = |run: &str| succeeds(&dir, &[&["export", "a.toml", "--run", run], &CARD[..], &set].concat());
    let script = export("adapters");
    assert!(script.contains("AutoModelForCausalLM.from_config("), "{script}");
    assert!(script.contains("target_modules=[\"q_proj\", \"v_proj\"]"), "{script}");
    assert!(!export("plain").contains("peft"));
    let of_trainer = [&["export", "a.toml", "--run", "plain", "--as", "trainer"], &CARD[..]].concat();
    assert!(succeeds(&dir, &of_trainer).contains("TrainingArguments("));
}

/// For each run that the library's program would not be, the reason.
/// The requests are those recorded with the option `masked`.
#[test]
fn torch_attention_mask_selects_the_masks_of_padding() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let set = ["--set", "plan.torch_attention_mask=true"];
    let peak_and_fit = |program: &str, more: &[&str]| {
        let program = format!("plan.torch_program={program}");
        let rows = rows(&dir, "a.toml", &[&["--set", &program], more].concat());
        (rows[0]["torch_peak_bytes"].as_u64(), rows[0]["torch_fits"].to_string())
    };
    for program in ["transformers", "trainer"] {
        assert!(peak_and_fit(program, &set).0 > peak_and_fit(program, &[]).0, "{program}");
        let command = ["export", "a.toml", "--run", "plain", "--as", program];
        let script = succeeds(&dir, &[&command[..], &CARD, &set].concat());
        assert!(script.contains("attention_mask"), "{script}");
    }
    let (peak, reason) = peak_and_fit("modules", &set);
    assert_eq!(peak, None);
    assert!(reason.contains("torch_attention_mask = true without the library's model"), "{reason}");
}

/// The requests are those recorded with the programs `transformers-kernels` and `trainer-kernels`.
#[test]
fn torch_kernels_selects_the_layers_of_liger_kernel() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let liger = ["--set", "plan.torch_kernels=liger"];
    let loss = [liger[0], liger[1], "--set", "strategies.plain.loss_chunks=2"];
    let export = |program: &str, set: &[&str]| {
        let command = ["export", "a.toml", "--run", "plain", "--as", program];
        succeeds(&dir, &[&command[..], &CARD, set].concat())
    };
    for (program, calls) in [
        (
            "transformers",
            [
                "apply_liger_kernel_to_llama(fused_linear_cross_entropy=False)\n",
                "apply_liger_kernel_to_llama()\n",
            ],
        ),
        (
            "trainer",
            [
                "use_liger_kernel=True, liger_kernel_config=dict(fused_linear_cross_entropy=False),\n",
                "use_liger_kernel=True,\n",
            ],
        ),
    ] {
        for (set, call) in [&liger[..], &loss].into_iter().zip(calls) {
            let script = export(program, set);
            assert!(script.contains(call), "{script}");
        }
    }
    let row = &rows(&dir, "a.toml", &[&["--set", "plan.torch_program=transformers"], &liger[..]].concat())[0];
    assert_eq!(row["torch_program"], "PyTorch 2.15 with transformers 5.24, liger-kernel 0.8");
    let reason = rows(&dir, "a.toml", &liger)[0]["torch_fits"].to_string();
    assert!(reason.contains("torch_kernels = \\\"liger\\\" without the library's model"), "{reason}");
}

/// Two states of a table of 2000 x 64 values, in fp32 or 8 bits; other parameters are smaller than what is paged.
#[test]
fn explain_shows_paged_states() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let explain = |states: &str| {
        let plain = format!("strategies.plain={{offload={{optimizer=true}},{states}}}");
        let set = ["model.transformer.vocabulary=2000", &plain].into_iter().flat_map(|set| ["--set", set]);
        let command = ["explain", "a.toml", "--run", "plain", "--as", "pytorch"];
        succeeds(&dir, &command.into_iter().chain(CARD).chain(set).collect::<Vec<_>>())
    };
    let eight_bits = "optimizer_state=\"8bit\",quantize={embeddings=true}";
    for (states, bytes) in [("optimizer_state=\"fp32\"", "0.98 MiB"), (eight_bits, "250 KiB")] {
        let text = explain(states);
        let line = format!("\n{bytes} of optimizer states in managed memory, beside these peaks\n");
        assert!(text.contains(&line), "{text}");
    }
}

/// The settings must be in the environment before PyTorch is imported.
#[test]
fn exported_script_has_the_settings_of_the_allocator() {
    let dir = folder("");
    let export = |more: &[&str]| {
        let arguments = [&["export", "a.toml", "--run", "plain"], &CARD[..], more].concat();
        let script = succeeds(&dir, &arguments);
        script.split("import torch\n").next().unwrap().to_owned()
    };
    let set = "plan.alloc_conf=max_split_size_mb:64";
    assert!(!export(&[]).contains("os.environ"));
    assert!(
        export(&["--set", set]).contains("os.environ[\"PYTORCH_ALLOC_CONF\"] = \"max_split_size_mb:64\"\n")
    );
    let older = export(&["--set", set, "--set", "plan.torch_version=\"2.6\""]);
    assert!(older.contains("os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"]"), "{older}");
}

#[test]
fn mistakes_state_the_way_out() {
    let dir = folder("");
    let set = |setting: &str| fails(&dir, &[&["plan", "a.toml", "--set", setting], &CARD[..]].concat());
    let explain =
        |more: &[&str]| fails(&dir, &[&["explain", "a.toml", "--as", "pytorch"], &CARD[..], more].concat());
    dir.write("b.toml", "extends = \"a.toml\"\n[plan]\nalloc_conf = \"max_split_size_mb:128\"\n");
    let different = fails(&dir, &[&["plan", "a.toml", "b.toml", "--as", "pytorch"], &CARD[..]].concat());
    dir.write("processor.toml", crate::test_folder::target::PROCESSOR);
    let no_card = fails(&dir, &["plan", "a.toml", "--as", "pytorch", "--target", "processor.toml"]);
    let no_rules =
        fails(&dir, &["explain", "a.toml", "--run", "plain", "--as", "pytorch", "--target", "rtx-5090-32gb"]);
    let errors = [
        no_card,
        no_rules,
        explain(&["--run", "graph"]),
        explain(&["--run", "plain", "--operations"]),
        different,
        set("plan.as=torch"),
        set("plan.torch_version=2.11"),
        set("plan.torch_version=\"2.12\""),
        set("plan.transformers_version=\"4.56\""),
        set("plan.torch_program=lightning"),
        set("plan.torch_kernels=true"),
        set("plan.torch_optimizer=multi_tensor"),
        set("plan.torch_checkpoint=true"),
        set("plan.alloc_conf=true"),
        set("plan.alloc_conf=expandable_segment:True"),
        set("plan.alloc_conf=expandable_segments:true"),
        set("plan.alloc_conf=garbage_collection_threshold:0.8"),
        set("plan.alloc_conf=max_split_size_mb:16"),
        set("plan.alloc_conf=roundup_power2_divisions:3"),
        // Its product with a block's size has no room in 64 bits.
        set("plan.alloc_conf=roundup_power2_divisions:36028797018963968"),
        fails(&dir, &[&["plan", "a.toml", "--as", "pytorch", "--link", "25GB/s"], &CARD[..]].concat()),
        fails(&dir, &[&["export", "a.toml", "--run", "plain", "--as", "runner"], &CARD[..]].concat()),
        set("plan.alloc_conf=expandable_segments:True,max_split_size_mb:64"),
        set("plan.alloc_conf=max_split_size_mb:64,max_split_size_mb:32"),
        set("plan.allocator=x"),
        set("sweep.grid.\"plan.as\"=[\"pytorch\"]"),
    ];
    insta::assert_snapshot!("mistakes_with_pytorchs_figures", errors.join("\n"));
}
