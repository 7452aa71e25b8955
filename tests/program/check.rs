//! Output of `runner check` for valid experiments.

use std::process::Command;

const EXPERIMENT: &str = r#"
[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32

[data.text]
paths = ["/corpus/*.txt"]

[train]
batch_size = 8
optimizer.adamw = { lr = 3e-4 }

[measure]
repeats = 3

[strategies.plain]

[strategies.lean]
recompute = "block"
sweep.accumulate = [1, 2]

[sweep.grid]
"train.batch_size" = [1, 8]
"#;

fn check(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder for the test");
    for name in ["a.toml", "b.toml"] {
        let text = match arguments {
            [.., "--resolved"] => EXPERIMENT.to_owned(),
            _ => EXPERIMENT.replace("/corpus/", ""),
        };
        std::fs::write(folder.path().join(name), text).expect("a file for the test");
    }
    std::fs::write(folder.path().join("corpus.txt"), "0123456789".repeat(100)).expect("a file for the test");
    let output = Command::new(env!("CARGO_BIN_EXE_runner"))
        .current_dir(folder.path())
        .arg("check")
        .args(arguments)
        .output()
        .expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn one_line_for_each_file() {
    insta::assert_snapshot!("check_lines", check(&["a.toml", "[ab].toml"]));
}

#[test]
fn resolved_runs_are_experiments() {
    insta::assert_snapshot!("check_resolved", check(&["a.toml", "--resolved"]));
}

/// Predictions warn about fields that the program does not know; training needs `ignore`.
#[test]
fn unknown_fields_of_configurations_stop_training_only() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file for the test");
    let config = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 8, \"n_head\": 1, \"vocab_size\": 256,\n\"unsloth_version\": 1}";
    // Longer than other texts may be.
    write("config.json", &(config.to_owned() + &" ".repeat(2 << 20)));
    let experiment = "[model.hf]\nconfig = 'config.json'\ncontext = 4\n[data.synthetic]\n[train]\nbatch_size = 1\n\
                      optimizer.sgd = { lr = 0.1 }\n[measure]\nwarmup_steps = 0\nsteps = 1\n[strategies.plain]\n";
    write("a.toml", experiment);
    write("b.toml", &experiment.replace("context", "ignore = ['unsloth_version']\ncontext"));
    let run = |arguments: &[&str]| {
        let program =
            Command::new(env!("CARGO_BIN_EXE_runner")).current_dir(folder.path()).args(arguments).output();
        let output = program.expect("the program starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let message = "config.json:2: `unsloth_version` is an unknown field: runner ignores what it changes";
    for command in ["check", "plan"] {
        let (code, stderr) = run(&[command, "a.toml"]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.starts_with("warning: ") && stderr.contains(message), "{stderr}");
    }
    let (code, stderr) = run(&["sweep", "a.toml", "--device", "cpu"]);
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with("error: ") && stderr.contains(message), "{stderr}");
    assert!(stderr.contains("ignore = [\"unsloth_version\"] in [model.hf]"), "{stderr}");
    assert_eq!(run(&["sweep", "b.toml", "--device", "cpu", "--quiet"]), (Some(0), String::new()));
    write("c.toml", &experiment.replace("context", "ignore = ['unsloth_version', 'unsloth_fixed']\ncontext"));
    let message = "config.json has no unknown field of that name";
    for arguments in [&["check", "c.toml"][..], &["sweep", "c.toml", "--device", "cpu", "--quiet"]] {
        let (code, stderr) = run(arguments);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.starts_with("warning: `ignore` lists `unsloth_fixed`"), "{stderr}");
        assert!(stderr.contains(message) && stderr.contains("c.toml:3:"), "{stderr}");
    }
}
