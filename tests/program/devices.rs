//! `runner devices`, and the errors about a missing GPU.

use std::path::Path;
use std::process::{Command, Output};

use device::{DeviceKind, KnownCard};
use spec::read_target;

/// Runs the program without variables that may name CUDA folders, so that the output is the same on every machine
/// without a driver.
fn runner(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
    for variable in
        ["LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "HOME"]
    {
        command.env_remove(variable);
    }
    command.args(arguments).current_dir(folder).output().expect("the program starts")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Whether the machine has a driver in the loader's default path, which no variable hides.
fn has_driver(devices: &str) -> bool {
    !devices.contains("the CUDA driver is missing")
}

#[test]
fn cpu_and_missing_libraries_are_listed() {
    let output = runner(&["devices"], folder().path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let devices = text(&output.stdout);
    let mut lines = devices.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("device ")), "{devices}");
    let processor = lines.next().expect("the processor");
    assert!(processor.starts_with("cpu "), "{devices}");
    for unit in ["iB  ", "FLOP/s  ", "B/s"] {
        assert!(processor.contains(unit), "{processor}");
    }
    if has_driver(&devices) {
        assert!(devices.contains("driver (CUDA) ") || devices.contains("finds no device"), "{devices}");
    } else {
        let rest: Vec<&str> = lines.collect();
        insta::assert_snapshot!(rest.join("\n"));
    }
}

#[test]
fn json_lists_devices_and_libraries() {
    let output = runner(&["devices", "--json"], folder().path());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processor = &json["devices"][0];
    assert_eq!(processor["device"], "cpu");
    assert!(processor["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{json:#}");
    assert!(processor["product_flops_per_s"].as_f64().is_some_and(|rate| rate > 1e8), "{json:#}");
    assert!(processor["copy_bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e8), "{json:#}");
    assert!(processor["context_bytes"].is_null() && processor["problem"].is_null(), "{json:#}");
    assert_eq!(
        json["libraries"].as_array().zip(json["missing"].as_array()).map(|(l, m)| l.len() + m.len()),
        Some(3)
    );
}

#[test]
fn devices_writes_target_file_for_plan() {
    let folder = folder();
    let output = runner(&["devices", "--target", "here.toml", "--device", "cpu"], folder.path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("wrote here.toml: "));
    let target = read_target(&folder.path().join("here.toml")).expect("a target").target;
    assert_eq!(target.kind, DeviceKind::Cpu);
    assert!(!target.limited && target.memory.0 > 0);

    let output = runner(&["devices", "--target", "no/folder/here.toml", "--device", "cpu"], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: cannot write no/folder/here.toml: "));
}

/// A known card is printed; a file is never named like a card by mistake, and never replaced unasked.
#[test]
fn target_of_a_known_card_is_printed_and_no_file_is_replaced() {
    let folder = folder();
    let devices = |more: &[&str]| {
        let output = runner(&[&["devices", "--device", "cpu", "--target"], more].concat(), folder.path());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, printed, _) = devices(&["rtx-4090-24gb"]);
    assert!(code == Some(0) && printed.contains("RTX 4090"), "{printed}");
    assert!(!folder.path().join("rtx-4090-24gb").exists());
    let file = folder.path().join("card.toml");
    std::fs::write(&file, &printed).expect("a file for the test");
    assert_eq!(
        read_target(&file).expect("a target").target,
        KnownCard::find("rtx-4090-24gb").expect("it").target()
    );

    assert_eq!(devices(&["RTX4090"]).1, printed, "a natural spelling");
    let (code, _, said) = devices(&["RTX3060"]);
    assert!(code == Some(2) && said.contains("`rtx-3060-12gb`") && said.contains("RTX3060.toml"), "{said}");
    let (code, _, said) = devices(&["card.toml"]);
    assert!(code == Some(2) && said.contains("card.toml exists") && said.contains("--overwrite"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), printed);
    assert_eq!(devices(&["card.toml", "--overwrite"]).0, Some(0));
    assert_ne!(std::fs::read_to_string(&file).expect("it is there"), printed);
}

#[test]
fn missing_gpu_is_an_error() {
    let folder = folder();
    let output = runner(&["devices", "--target", "card.toml", "--device", "cuda:99"], folder.path());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(!folder.path().join("card.toml").exists());
    let said = text(&output.stderr);
    if has_driver(&said) {
        assert!(said.starts_with("error: "), "{said}");
    } else {
        insta::assert_snapshot!(said);
    }
    let output = runner(&["plan", "a.toml", "--device", "gpu"], folder.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`gpu` is not a device; use auto, cpu, cuda, or cuda:1"));
}
