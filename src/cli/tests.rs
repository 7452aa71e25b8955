//! What commands say of files that are wrong in ways that nobody thought of: every kind that they read, mutated.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::data_sets::DataSets;
use super::failure::Failure;
use super::{check, files, output};
use compare::{Format, Options, render};
use data::{RequiredParameter, Weights};
use ops::Shape;
use results::{Row, Store, csv};
use spec::read_target;
use testing::readers::read_mutated;
use testing::target;

/// Every table and every key that an experiment may have.
const EVERYTHING: &str = r#"
name = "everything"
baseline = "lean/accumulate=2"
requires = "cuda"

[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32
vocabulary = 256
weights = "${PWD}/../final.safetensors"

[data.text]
paths = ["*.txt", "${PWD}/../**/*.rs"]
tokens = "bytes"
split = 0.9

[train]
batch_size = 8
clip_norm = 1.0
seed = 0
optimizer.adamw = { lr = 3e-4, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.1, decay = "matrices" }

[evaluation]
every = 10
batches = 2
batch_size = 4

[measure]
warmup_steps = 3
steps = 20
repeats = 2

[target]
memory = "24 GiB"

[plan]
as = "pytorch"
alloc_conf = "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:8]"

[defaults]
precision = "fp16"
loss_scale.dynamic = { initial = 1024, backoff = 0.5, growth = 2.0, interval = 10 }
release = "scope"
gradients = "zero"
allocator = "arena"
evaluation_pass = "no_grad"

[strategies.plain]
graph = true
loss_chunks = 4

[strategies.lean]
recompute = "block"
sweep.accumulate = [1, 2]

[strategies.leaner]
extends = "lean"
set."train.clip_norm" = "off"
set."evaluation.collect" = { what = "logits", to = "host", concatenate = true }
set.train.optimizer.sgd = { lr = 0.1, momentum = 0.9, nesterov = true }

[sweep.grid]
"train.batch_size" = [8, 16]
model.transformer.heads = [1, 2]
[[sweep.zip]]
"model.transformer.context" = [32, 64]
"train.seed" = [0, 1]
[[sweep.exclude]]
strategy = "plain*"
"train.batch_size" = 16
[[sweep.include]]
strategy = "plain"
"train.batch_size" = 32
"#;

/// The repository's folder.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What a user reads of an error.
fn told(error: impl Display) -> String {
    output::visible(&Failure::input(error).to_string()).into_owned()
}

fn shipped(name: &str) -> PathBuf {
    Path::new(ROOT).join("experiments").join(name)
}

/// A folder with the files that shipped experiments extend.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("base")).unwrap();
    for file in ["base/small-text.toml", "gpt-mini.toml"] {
        fs::copy(shipped(file), place.path().join(file)).unwrap();
    }
    place
}

/// What `check` prints of the experiment `a.toml` in a folder.
fn checked(place: &Path, overrides: &[String]) -> Result<String, String> {
    let file = place.join("a.toml").to_str().unwrap().to_owned();
    let experiments = files::expand_all(&[file], overrides, |_| true)
        .map_err(|failure| output::visible(&failure.to_string()).into_owned())?;
    let text: String = experiments.iter().map(|e| check::summary(e) + &check::resolved(e)).collect();
    Ok(output::visible(&text).into_owned())
}

#[test]
fn experiments() {
    let place = place();
    let names = ["cpu-shapes", "gpt-mini", "gpt2-124m", "precision", "quickstart", "state"];
    let mut seeds: Vec<Vec<u8>> =
        names.iter().map(|name| fs::read(shipped(&format!("{name}.toml"))).unwrap()).collect();
    seeds.push(EVERYTHING.into());
    fs::write(place.path().join("a.toml"), &seeds[4]).unwrap();
    let environment = |_: &str| None;
    let quickstart = plan::expand(&place.path().join("a.toml"), &[], &environment).unwrap();
    // As a run's own folder has it.
    seeds.push(quickstart.points[0].config.as_ref().unwrap().to_toml("run", "plain").into());
    read_mutated("experiments", &seeds, &[place.path().to_str().unwrap()], |text| {
        fs::write(place.path().join("a.toml"), text).unwrap();
        checked(place.path(), &[])
    });
}

#[test]
fn bases() {
    let place = place();
    fs::copy(shipped("quickstart.toml"), place.path().join("a.toml")).unwrap();
    let base = place.path().join("base/small-text.toml");
    let seeds = [fs::read(&base).unwrap()];
    read_mutated("bases", &seeds, &[place.path().to_str().unwrap()], |text| {
        fs::write(&base, text).unwrap();
        checked(place.path(), &[])
    });
}

#[test]
fn configurations() {
    let place = place();
    let experiment = "[model.hf]\nconfig = 'config.json'\ndropout = false\n[data.synthetic]\ntokens = 16\n[train]\nbatch_size = 2\n\
                      optimizer.sgd = { lr = 0.1 }\n[strategies.plain]\n";
    fs::write(place.path().join("a.toml"), experiment).unwrap();
    let vectors = Path::new(ROOT).join("tests/reference/vectors/hugging_face");
    let families =
        ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "starcoder2", "gpt_neo"];
    let seeds = families.map(|family| fs::read(vectors.join(family).join("config.json")).unwrap());
    read_mutated("configurations", &seeds, &[place.path().to_str().unwrap()], |text| {
        fs::write(place.path().join("config.json"), text).unwrap();
        checked(place.path(), &[])
    });
}

#[test]
fn overrides() {
    let place = place();
    fs::copy(shipped("quickstart.toml"), place.path().join("a.toml")).unwrap();
    let seeds: Vec<Vec<u8>> = [
        "train.optimizer.adamw.lr=1e-3",
        "train.optimizer.sgd={ lr = 0.1, momentum = 0.9 }",
        "accumulate=2",
        "recompute=block",
        "strategies.plain.loss_chunks=2",
        "defaults.release=\"step\"",
        "sweep.grid.\"train.batch_size\"=[4, 8]",
        "measure.repeats=3",
        "target.memory=64 MiB",
        "name=other",
    ]
    .map(Into::into)
    .into();
    read_mutated("overrides", &seeds, &["a.toml", "the command line"], |text| {
        checked(place.path(), &[String::from_utf8_lossy(text).into_owned()])
    });
}

#[test]
fn targets() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("target.toml");
    let card = "name = \"a card\"\nkind = \"cuda\"\ncapability = \"9.0\"\nthreads = 1\nalignment = \"256 B\"\n\
                page = \"2 MiB\"\nproduct_workspace = \"32 MiB\"\ncontext = \"500 MiB\"\nmemory = \"80 GiB\"\n\
                limited = false\n";
    let by_hand = "name = \"mine\"\nkind = \"cuda\"\nmemory = 25769803776\ncapability = \"8.9\"\nfigures = \"data sheet\"\n";
    let seeds = [toml::to_string(&target()).unwrap().into_bytes(), card.into(), by_hand.into()];
    read_mutated("targets", &seeds, &["target.toml"], |text| {
        fs::write(&file, text).unwrap();
        let target = read_target(&file).map_err(told)?.target;
        Ok(output::visible(&super::messages::device(&target, None)).into_owned())
    });
}

/// Rows as runs leave them: two strategies at two points, twice each, and some that came to nothing.
fn rows() -> Vec<Row> {
    let row = |strategy: &str, batch: usize, repeat: usize| {
        let mut row = Row {
            experiment: "e".into(),
            run_id: format!("{strategy}-{batch}"),
            strategy: strategy.into(),
            repeat,
            device: "a processor".into(),
            model: "transformer 2x64".into(),
            batch_size: Some(batch),
            micro_batch: Some(batch),
            precision: "fp32".into(),
            version: "0.1.0".into(),
            baseline: "plain".into(),
            predicted_peak_bytes: Some(batch as u64 * 1000),
            fits_micro_batch: Some(7),
            limit_bytes: Some(1 << 30),
            axes: vec![("train.batch_size".into(), batch.to_string())],
            ..Row::default()
        };
        row.measured.peak_bytes = Some(batch as u64 * 1000);
        row.measured.tokens_per_s = Some(1e5 / batch as f64);
        row.measured.step_ms_median = Some(3.5);
        row.measured.step_ms_ci95 = Some(0.1);
        row.measured.loss_last = Some(2.25);
        row
    };
    let mut rows: Vec<Row> = ["plain", "lean/accumulate=2"]
        .iter()
        .flat_map(|strategy| [8, 32].map(|batch| [0, 1].map(|repeat| row(strategy, batch, repeat))))
        .flatten()
        .collect();
    let status = [results::Status::Oom, results::Status::Failed];
    for (row, status) in rows.iter_mut().rev().zip(status) {
        (row.status, row.message) = (status, "=no room, \"quoted\"".into());
    }
    rows
}

/// Everything that `compare` may print of rows.
fn compared(rows: &[Row]) -> Result<String, String> {
    let mut out = String::new();
    for format in [Format::Table, Format::Markdown, Format::Csv, Format::Json] {
        out.push_str(&render(rows, &Options::default(), format).map_err(told)?.to_string());
    }
    Ok(output::visible(&out).into_owned())
}

#[test]
fn tables_of_results() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("results.csv");
    let mut seed = Vec::new();
    csv::write(&rows(), &[], &mut seed).unwrap();
    let old =
        b"experiment,run_id,strategy,repeat,status,device,model,precision,no_effect,message,version,limited,\
                configuration,sweep.precision\ne,id,plain,0,ok,cpu,m,fp32,,,0.1.0,false,c,\"\"\"bf16\"\"\"\n";
    read_mutated("tables of results", &[seed, old.to_vec()], &["results.csv"], |text| {
        fs::write(&file, text).unwrap();
        let rows = csv::read(&file).map_err(told)?;
        if rows.is_empty() { Ok(String::new()) } else { compared(&rows) }
    });
}

#[test]
fn results() {
    let place = tempfile::tempdir().unwrap();
    let rows = rows();
    let folder = Store::at(place.path(), "e").repeat_folder("plain-8", 0);
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("result.json");
    let seeds = [&rows[0], &Row { message: "x\ny".into(), ..rows[0].clone() }]
        .map(|row| serde_json::to_vec_pretty(row).unwrap());
    read_mutated("results", &seeds, &["result.json"], |text| {
        fs::write(&file, text).unwrap();
        let found = Store::at(place.path(), "e").finished_repeats("plain-8").map_err(told)?;
        if found.is_empty() { Ok(String::new()) } else { compared(&found) }
    });
}

#[test]
fn weights() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("a.safetensors");
    let numbers: Vec<u8> = (0..24).collect();
    let tensor = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("a", tensor(Dtype::F32, &[2, 3], &numbers)),
        ("b", tensor(Dtype::BF16, &[12], &numbers)),
        ("c", tensor(Dtype::F16, &[1, 2, 1], &numbers[..4])),
    ];
    let seed = safetensors::serialize(tensors, None).unwrap();
    let needed = [("a", &[2, 3][..]), ("b", &[12]), ("c", &[1, 2, 1])];
    let needed = needed.map(|(name, dims)| RequiredParameter::own(name.to_owned(), Shape::new(dims)));
    read_mutated("weights", &[seed], &[place.path().to_str().unwrap()], |text| {
        fs::write(&file, text).unwrap();
        let weights = Weights::open(&file).map_err(told)?;
        let weights = weights.matched(&needed).map_err(told)?;
        for needed in &needed {
            weights.read(&needed.name, 0, &mut vec![[0; 4]; needed.shape.elements()]).map_err(told)?;
        }
        Ok(String::new())
    });
}

#[test]
fn digests() {
    let place = tempfile::tempdir().unwrap();
    let text = place.path().join("text.txt");
    fs::write(&text, "text").unwrap();
    let version = r#"{"bytes": 4, "inode": 3, "modified": [1, 2], "changed": [3, 4]}"#;
    let seed = format!("{{\n  {text:?}: {{\n \"version\": {version},\n \"sha256\": \"00ff\"}}\n}}");
    read_mutated("digests", &[seed.into()], &[], |text| {
        fs::write(place.path().join(".digests.json"), text).unwrap();
        DataSets::new(place.path()).keep().map_err(told)?;
        Ok(String::new())
    });
}

/// A step of one operation, as a run would have written it.
const TIMELINE: &str = "\
section,phase,scope,operation,value,times_per_step,parameter_bytes,activation_bytes
start,start-up,embedding,allocate,embedding.parameters,0,4096,0
first,forward,blocks.0.mlp,allocate,blocks.0.mlp.hidden,1,4096,1024
first,forward,blocks.0.mlp,linear-gelu,blocks.0.mlp.hidden,1,4096,1024
first,backward,blocks.0.mlp,free,blocks.0.mlp.hidden,1,4096,0
update,update,head,adamw,embedding.parameters,2,4096,0
";

#[test]
fn mutated_files_of_runs_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("abc/1");
    fs::create_dir_all(&folder).unwrap();
    let (memory, steps) = (folder.join("memory.csv"), folder.join("steps.csv"));
    fs::write(folder.join("run.toml"), "").unwrap();
    fs::write(&memory, TIMELINE).unwrap();
    fs::write(&steps, "step,loss\n1,3.5\n").unwrap();
    let row = Row { run_id: "abc".into(), repeat: 1, strategy: "plain".into(), ..Row::default() };
    let tables = report::Tables { folders: vec![place.path().into()], ..report::Tables::default() };
    let read = |file: &Path, text: &[u8]| {
        fs::write(file, text).unwrap();
        let report = report::Report::read(std::slice::from_ref(&row), &Options::default(), &tables);
        let report = report.map_err(told)?;
        let plots = report.plots();
        plots.iter().try_for_each(|plot| report.svg(plot).map(drop)).map_err(told)?;
        Ok(format!("{plots:?} {}", report.page().len()))
    };
    read_mutated("timelines", &[TIMELINE.into()], &["memory.csv"], |text| read(&memory, text));
    fs::write(&memory, TIMELINE).unwrap();
    let losses = b"step,loss,ms\n1,3.5,20\n2,NaN,21.5\n3,-1e300,22\n";
    read_mutated("losses", &[losses.to_vec()], &["steps.csv"], |text| read(&steps, text));
}
