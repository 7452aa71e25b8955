//! `explain --snapshot`: PyTorch's memory snapshot beside a prediction. `export --snapshot`: the prediction as one.

use std::fs;

use crate::test_folder::{TestFolder, said};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/pytorch_memory");

/// The output for a run of `snapshot.toml` and a file.
fn explained(dir: &TestFolder, run: &str, file: &str) -> String {
    let experiment = format!("{FOLDER}/snapshot.toml");
    let run = ["explain", &experiment, "--run", run, "--target", "a100-80gb", "--snapshot", file];
    let output = dir.program(&run).output().unwrap();
    said(&output)
}

#[test]
fn recorded_requests_are_those_of_the_predicted_run() {
    let text = explained(&TestFolder::new(), "autocast", &format!("{FOLDER}/snapshot.pickle"));
    assert!(text.contains("snapshot.pickle: 255 requests on device 0"), "{text}");
    assert!(text.contains("All 255 requests and their releases are as predicted."), "{text}");
}

/// Autocast casts the weight of a linear layer; without it, the layer requests its output.
#[test]
fn first_difference_from_another_run_names_its_operation() {
    let text = explained(&TestFolder::new(), "fp32", &format!("{FOLDER}/snapshot.pickle"));
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = "The first 25 requests are as predicted. The next call differs, in forward of step 1:";
    assert!(joined.contains(first), "{text}");
    let recorded =
        "snapshot requests 192 bytes, by forward (nn/modules/linear.py:134), from forward (script.py:";
    assert!(joined.contains(recorded), "{text}");
    assert!(joined.contains("prediction requests 24576 bytes (24.0 KiB): activations"), "{text}");
    assert!(joined.contains("from the first difference on"), "{text}");
}

/// A predicted snapshot is that of its run, whichever settings the allocator has.
#[test]
fn written_snapshot_is_that_of_the_predicted_run() {
    let dir = TestFolder::new();
    let experiment = format!("{FOLDER}/snapshot.toml");
    for conf in ["", "expandable_segments:True", "roundup_power2_divisions:4"] {
        let conf = format!("plan.alloc_conf=\"{conf}\"");
        let version = "plan.torch_version=\"2.15\"";
        let run =
            [&experiment, "--run", "autocast", "--target", "a100-80gb", "--set", &conf, "--set", version];
        let written = [&["export"], &run[..], &["--out", "train.py", "--snapshot", "out.pickle"]].concat();
        said(&dir.program(&written).output().unwrap());
        let read = [&["explain"], &run[..], &["--snapshot", "out.pickle"]].concat();
        let text = said(&dir.program(&read).output().unwrap());
        assert!(text.contains("requests and their releases are as predicted."), "{text}");
        let peaks = text.lines().find_map(|line| line.trim().strip_prefix("all ")).unwrap();
        let (recorded, predicted) = peaks.trim().split_once("  ").unwrap();
        assert_eq!(recorded, predicted.trim(), "{text}");
    }
}

#[test]
fn other_files_are_refused() {
    let dir = TestFolder::new();
    let code = b"\x80\x02cos\nsystem\nq\0X\x02\0\0\0idq\x01\x85q\x02Rq\x03.".as_slice();
    for (name, bytes, reason) in [
        ("text", b"hello".as_slice(), "it is not a pickle of protocol 2 or later"),
        ("code", code, "opcode 0x63 is not of plain data; only data is read"),
        ("dictionary", b"\x80\x02}.", "`device_traces` is missing"),
        ("cut", b"\x80\x02}(", "it is truncated"),
    ] {
        fs::write(dir.path(name), bytes).unwrap();
        let text = explained(&dir, "fp32", name);
        assert!(text.contains(&format!("error: cannot read {name}: ")) && text.contains(reason), "{text}");
    }
    assert!(explained(&dir, "fp32", "absent").contains("error: cannot read absent: "));
}
