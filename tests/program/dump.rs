//! `runner sweep --dump`: the files that let others reproduce fresh and stored runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use crate::test_folder::{TestFolder, Tiny, wait_for};
use safetensors::{Dtype, SafeTensors};

/// A test folder with an experiment of two runs under three labels.
fn test_folder(steps: usize) -> TestFolder {
    let more = format!(
        r#"
clip_norm = 1.0

[evaluation]
every = 1
batches = 1

[measure]
warmup_steps = 1
steps = {steps}

[strategies.plain]
[strategies.accumulate]
accumulate = 3
set."train.clip_norm" = "off"
[strategies.again]
"#
    );
    let dir = TestFolder::new();
    let tiny = Tiny { layers: 1, d_model: 16, context: 16, batch_size: 5, ..Tiny::default() };
    dir.write("tiny.toml", tiny.with(&more));
    dir
}

impl TestFolder {
    fn dumping(&self, args: &[&str]) -> Command {
        self.program(&[&["sweep", "--device", "cpu", "tiny.toml"], args].concat())
    }

    #[track_caller]
    fn dump_sweep(&self, args: &[&str], code: i32) -> String {
        ended_with(self.dumping(args).output().unwrap(), code)
    }

    /// All names in the folder `dumps`, including hidden ones.
    fn in_dumps(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("dumps")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The folders of the dumped runs, by strategy.
    fn dumps(&self) -> BTreeMap<String, PathBuf> {
        let strategy = |folder: &Path| {
            let run = fs::read_to_string(folder.join("run.toml")).unwrap();
            run.lines()
                .find_map(|line| line.strip_prefix("[strategies.")?.strip_suffix(']').map(str::to_owned))
        };
        self.find("dumps/*").into_iter().map(|folder| (strategy(&folder).unwrap(), folder)).collect()
    }

    /// Changes the parameter digest of the only result.
    fn forge_digest(&self) {
        let [result] = <[PathBuf; 1]>::try_from(self.find("results/tiny/*/*/1/result.json")).unwrap();
        let mut row: serde_json::Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
        row["digest"] = "of something else".into();
        fs::write(&result, row.to_string()).unwrap();
    }

    /// Dumps the plain run and makes the experiment start from its final parameters. Returns the folder of the dump.
    fn start_from_dump(&self) -> PathBuf {
        self.dump_sweep(&["--filter", "plain", "--dump", "dumps"], 0);
        let dumped = self.dumps().remove("plain").unwrap();
        fs::copy(dumped.join("final.safetensors"), self.path("start.safetensors")).unwrap();
        let text = fs::read_to_string(self.path("tiny.toml")).unwrap();
        self.write(
            "tiny.toml",
            text.replace("context = 16", "context = 16\nweights = \"start.safetensors\""),
        );
        dumped
    }
}

/// Asserts the exit code. Returns standard error.
#[track_caller]
fn ended_with(output: Output, code: i32) -> String {
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Type, shape and bytes of a file's tensors, by name.
fn tensors(file: &Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let bytes = fs::read(file).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    read.iter()
        .map(|(name, tensor)| {
            (name.to_owned(), (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()))
        })
        .collect()
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

#[test]
fn dump_holds_whole_run() {
    let dir = test_folder(2);
    let said = dir.dump_sweep(&["--dump", "dumps"], 0);
    let dumps = dir.dumps();
    assert_eq!(dumps.len(), 2, "each run once, whatever the number of its labels: {dumps:?}");
    for (strategy, folder) in &dumps {
        assert!(said.contains(&format!("dump tiny {strategy}: dumps/")), "{said}");
        let id = folder.file_name().unwrap().to_str().unwrap();
        for name in ["run.toml", "target.toml"] {
            let stored = fs::read(dir.path(&format!("results/tiny/{}/{id}/1/{name}", &id[..2]))).unwrap();
            assert_eq!(fs::read(folder.join(name)).unwrap(), stored, "{name}");
        }

        let initial = tensors(&folder.join("initial.safetensors"));
        assert_eq!(initial.len(), 2 + 12 + 2, "embedding, one block, head: {:?}", initial.keys());
        assert_eq!(initial["blocks.0.attention.qkv.weight"].1, [48, 16]);
        assert_eq!(initial["embedding.table"].1, [256, 16]);
        assert!(numbers(&initial["head.norm.weight"].2).iter().all(|&weight| weight == 1.0));
        let trained = tensors(&folder.join("final.safetensors"));
        let gradients = tensors(&folder.join("gradients.safetensors"));
        assert_eq!(gradients.len(), 2 * initial.len());
        for (name, (dtype, shape, bytes)) in &initial {
            assert_eq!((&trained[name].0, &trained[name].1), (dtype, shape), "{name}");
            assert_ne!(&trained[name].2, bytes, "{name} is not trained");
            for step in [1, 3] {
                assert_eq!(&gradients[&format!("{step}.{name}")].1, shape, "{name}");
            }
        }

        let batches = tensors(&folder.join("batches.safetensors"));
        let (tokens, targets) = (&batches["tokens"], &batches["targets"]);
        assert_eq!((tokens.0, &tokens.1), (Dtype::I32, &vec![3, 5, 16]));
        let rows = tokens.2.chunks_exact(16 * 4).zip(targets.2.chunks_exact(16 * 4));
        for (tokens, targets) in rows {
            assert_eq!(tokens[4..], targets[..15 * 4], "a target is the next token");
        }

        let mut steps = csv::Reader::from_path(folder.join("steps.csv")).unwrap();
        let columns = steps.headers().unwrap().clone();
        assert_eq!(
            columns.iter().take(5).collect::<Vec<_>>(),
            ["step", "loss", "grad_norm", "ms", "tokens_per_s"]
        );
        assert_eq!(
            columns.iter().skip(7).collect::<Vec<_>>(),
            ["loss_scale", "samples_per_s", "learning_rate"]
        );
        let steps: Vec<Vec<f64>> = steps
            .records()
            // The loss scale is empty, so only the columns before it are parsed.
            .map(|record| record.unwrap().iter().take(7).map(|cell| cell.parse().unwrap()).collect())
            .collect();
        assert_eq!(steps.len(), 3);
        for step in [1, 3] {
            // With clipping, `grad_norm` is the norm before clipping, which the dumped gradients must have.
            let of_step = gradients.iter().filter(|(name, _)| name.starts_with(&format!("{step}.")));
            let squares = of_step.flat_map(|(_, tensor)| numbers(&tensor.2)).map(|number| number * number);
            let norm = squares.sum::<f64>().sqrt();
            let written = steps[step - 1][2];
            assert!((norm - written).abs() < 1e-6 * norm, "{strategy}, step {step}: {norm} and {written}");
        }
    }
    let (plain, accumulate) = (&dumps["plain"], &dumps["accumulate"]);
    for name in ["initial.safetensors", "batches.safetensors"] {
        assert_eq!(fs::read(plain.join(name)).unwrap(), fs::read(accumulate.join(name)).unwrap(), "{name}");
    }
}

/// All gradients after backward, or each as soon as it is complete.
#[test]
fn gradients_are_dumped_as_they_are_applied() {
    let dir = TestFolder::new();
    let tiny = Tiny { layers: 2, d_model: 16, context: 16, batch_size: 3, ..Tiny::default() };
    dir.write(
        "tiny.toml",
        tiny.with(
            r#"
[measure]
warmup_steps = 1
steps = 2

[strategies.together]
[strategies.early]
update = "in_backward"
[strategies.early-on-host]
update = "in_backward"
loss_chunks = 2
offload.optimizer = true
[strategies.chunks]
loss_chunks = 2
"#,
        ),
    );
    dir.dump_sweep(&["--dump", "dumps"], 0);
    let dumps = dir.dumps();
    let read = |strategy: &str, file: &str| fs::read(dumps[strategy].join(file)).unwrap();
    // The columns step, loss and gradient norm.
    let steps = |strategy: &str| -> Vec<String> {
        let text = String::from_utf8(read(strategy, "steps.csv")).unwrap();
        text.lines().map(|line| line.split(',').take(3).collect::<Vec<_>>().join(",")).collect()
    };
    for (early, together) in [("early", "together"), ("early-on-host", "chunks")] {
        for file in ["gradients.safetensors", "final.safetensors"] {
            assert_eq!(read(early, file), read(together, file), "{file} of {early}");
        }
        assert_eq!(steps(early), steps(together));
        assert!(
            steps(early)[1].split(',').all(|figure| figure.parse::<f64>().is_ok_and(|figure| figure > 0.0))
        );
    }
}

#[test]
fn stored_run_dumps_like_fresh_run() {
    const FILES: [&str; 4] =
        ["initial.safetensors", "batches.safetensors", "gradients.safetensors", "final.safetensors"];
    let dir = test_folder(2);
    dir.dump_sweep(&["--dump", "dumps"], 0);
    let fresh = dir.dumps();
    let written = |file: &PathBuf| (file.clone(), fs::metadata(file).unwrap().modified().unwrap());
    let results = || -> Vec<(PathBuf, SystemTime)> {
        dir.find("results/tiny/*/*/1/result.json").iter().map(written).collect()
    };
    let before = results();
    fs::rename(dir.path("dumps"), dir.path("fresh")).unwrap();

    dir.dump_sweep(&["--dump", "dumps"], 0);
    assert_eq!(results(), before, "nothing was measured again");
    let stored = dir.dumps();
    assert_eq!(stored, fresh);
    for folder in stored.values() {
        let other = dir.path("fresh").join(folder.file_name().unwrap());
        for name in FILES {
            assert_eq!(fs::read(folder.join(name)).unwrap(), fs::read(other.join(name)).unwrap(), "{name}");
        }
    }

    let files: Vec<_> = dir.find("dumps/*/*").iter().map(written).collect();
    let said = dir.dump_sweep(&["--dump", "dumps"], 0);
    assert_eq!(said.matches("exists already").count(), 2, "{said}");
    assert_eq!(dir.find("dumps/*/*").iter().map(written).collect::<Vec<_>>(), files);
}

#[test]
fn unwritable_dump_folder_is_refused_before_any_run() {
    let dir = test_folder(1);
    dir.write("a-file", "");
    let said = dir.dump_sweep(&["--dump", "a-file"], 2);
    assert!(said.contains("cannot create the folder a-file") && said.contains("with --dump"), "{said}");
    assert!(dir.find("results/tiny/*/*").is_empty());
    assert_eq!(fs::read(dir.path("a-file")).unwrap(), b"");
}

#[test]
fn out_of_memory_run_has_no_dump() {
    let dir = test_folder(1);
    let said = dir.dump_sweep(&["--dump", "dumps", "--memory", "64KiB"], 0);
    assert_eq!(said.matches("nothing to dump: the run ran out of memory").count(), 2, "{said}");
    assert!(dir.dumps().is_empty());
}

#[test]
fn run_that_differs_from_result_is_not_dumped() {
    let dir = test_folder(1);
    dir.dump_sweep(&["--filter", "plain"], 0);
    dir.forge_digest();
    let said = dir.dump_sweep(&["--filter", "plain", "--dump", "dumps"], 1);
    assert!(said.contains("its final parameters differ from the result"), "{said}");
    assert_eq!(dir.in_dumps(), [""; 0]);
}

/// As after an update of the program that changed the order of summation.
#[test]
fn dump_of_other_result_is_rejected() {
    let dir = test_folder(1);
    dir.dump_sweep(&["--filter", "plain", "--dump", "dumps"], 0);
    dir.forge_digest();
    let said = dir.dump_sweep(&["--filter", "plain", "--dump", "dumps"], 1);
    assert!(
        said.contains("not dumped: dumps/") && said.contains("is not what --dump writes of this result"),
        "{said}"
    );
}

#[test]
fn interrupted_dump_leaves_no_partial_files() {
    let dir = test_folder(1000);
    let sweep =
        dir.dumping(&["--dump", "dumps"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a dump to begin", || !dir.find("dumps/.*/initial.safetensors").is_empty());
    Command::new("kill").args(["-INT", &sweep.id().to_string()]).status().unwrap();
    let said = ended_with(sweep.wait_with_output().unwrap(), 130);
    assert!(said.contains("the same command dumps what is missing"), "{said}");
    assert!(dir.in_dumps().iter().all(|name| !name.starts_with('.')), "{:?}", dir.in_dumps());
    dir.dump_sweep(&["--dump", "dumps"], 0);
    assert_eq!(dir.dumps().len(), 2);
}

/// Runs start from dumped weights with every `init`, and the contents of the weights are part of their identity.
#[test]
fn training_starts_from_dump() {
    let dir = test_folder(2);
    let dumped = dir.start_from_dump();
    let text = fs::read_to_string(dir.path("tiny.toml")).unwrap();
    let text = text.replace(
        "[strategies.again]",
        "[strategies.host]\ninit = \"host\"\n[strategies.lazy]\ninit = \"lazy\"",
    );
    dir.write("tiny.toml", format!("name = \"more\"\n{text}"));
    let said = dir.dump_sweep(&["--dump", "more"], 0);

    let rows = dir.rows_by_strategy("results/more.csv");
    let [plain, host, lazy] = ["plain", "host", "lazy"].map(|strategy| &rows[strategy]);
    assert_eq!((&host.digest, &lazy.digest), (&plain.digest, &plain.digest), "{said}");
    let fresh = &dir.rows_by_strategy("results/tiny.csv")["plain"];
    assert!(plain.loss_first.unwrap() < fresh.loss_first.unwrap(), "training starts from the dumped weights");
    assert!(host.effects.contains("copied at start-up"), "{}", host.effects);
    assert!(lazy.effects.contains("initialised at first use"), "{}", lazy.effects);
    assert!(lazy.first_step_ms.unwrap() > 0.0);
    assert_eq!(
        (lazy.start_peak_bytes.unwrap(), lazy.predicted_peak_bytes.unwrap()),
        (0, lazy.peak_bytes.unwrap())
    );
    assert!(host.host_peak_bytes.unwrap() > lazy.host_peak_bytes.unwrap());
    let begun = dir.find("more/*/initial.safetensors");
    assert_eq!(begun.len(), 4, "{begun:?}");
    for file in begun {
        assert_eq!(tensors(&file), tensors(&dumped.join("final.safetensors")), "{}", file.display());
    }

    let runs = dir.find("results/more/*/*/1").len();
    fs::copy(dumped.join("initial.safetensors"), dir.path("start.safetensors")).unwrap();
    dir.dump_sweep(&[], 0);
    assert_eq!(dir.find("results/more/*/*/1").len(), 2 * runs, "other weights make other runs");
    let others = dir.rows("results/more.csv");
    assert!(others.iter().all(|other| !rows.values().any(|row| row.digest == other.digest)));
}

/// Weights may be large: once their digest is cached, neither parent nor child reads the whole file again. A marker in
/// place of the digest proves that the cache is used.
#[test]
fn weights_are_digested_once() {
    let dir = test_folder(1);
    dir.start_from_dump();
    // Digests of files written a moment ago are not cached: such a file might change unnoticed.
    let kept = dir.path("results/.digests.json");
    let digests = || -> serde_json::Value { serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap() };
    let name = dir.path("start.safetensors").canonicalize().unwrap().display().to_string();
    let find = |digests: &serde_json::Value| {
        digests.as_object().unwrap().keys().find(|key| name.ends_with(key.trim_start_matches("./"))).cloned()
    };
    wait_for("a digest that is kept", || {
        dir.dump_sweep(&["--filter", "plain"], 0);
        kept.exists() && find(&digests()).is_some()
    });
    let mut marked = digests();
    let key = find(&marked).unwrap();
    marked[key]["sha256"] = "marker".into();
    fs::write(&kept, marked.to_string()).unwrap();
    let runs = dir.find("results/tiny/*/*/1").len();
    dir.dump_sweep(&["--filter", "plain"], 0);
    assert_eq!(dir.find("results/tiny/*/*/1").len(), runs + 1, "by that digest it is another run");
}
