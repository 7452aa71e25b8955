//! Samples of layers in a list from files: `[data.tensors]`.

use crate::test_folder::{TestFolder, said};
use results::Status;

const CLASSES: usize = 4;
const SAMPLES: usize = 80;

/// An experiment whose data has this table, and a model with this input.
fn experiment(input: &str, data: &str) -> String {
    format!(
        r#"
[model.sequential]
input = {input}
layers = [{{ linear = {CLASSES} }}]

{data}

[train]
batch_size = 8
optimizer.sgd = {{ lr = 0.5 }}
shuffle = true

[evaluation]

[measure]
warmup_steps = 1
steps = 40

[strategies.plain]

[strategies.workers]
loader = {{ workers = 2, prefetch = 2, dtype = "u8" }}
"#
    )
}

/// A NumPy file of version 1.
fn npy(descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
    let fields = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{fields:<117}\n");
    [b"\x93NUMPY\x01\0", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), numbers].concat()
}

fn class(sample: usize) -> usize {
    sample * 7 % CLASSES
}

/// Inputs that show their class: 1 at its index.
fn one_hot() -> Vec<u8> {
    let number = |sample, index| if index == class(sample) { 1f32 } else { 0.0 };
    let samples = (0..SAMPLES).flat_map(|sample| (0..CLASSES).map(move |index| number(sample, index)));
    samples.flat_map(f32::to_le_bytes).collect()
}

fn classes(width: usize) -> Vec<u8> {
    (0..SAMPLES).flat_map(|sample| class(sample).to_le_bytes()[..width].to_vec()).collect()
}

/// A safetensors file with the tensors of one sample.
fn sample_file(sample: usize) -> Vec<u8> {
    let input = &one_hot()[16 * sample..][..16];
    let header = r#"{"input":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"targets":{"dtype":"U8","shape":[],"data_offsets":[16,17]}}"#;
    [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), input, &[class(sample) as u8]]
        .concat()
}

/// A folder with the samples in both forms.
fn folder() -> TestFolder {
    let folder = TestFolder::new();
    folder.write("x.npy", npy("<f4", &format!("({SAMPLES}, {CLASSES})"), &one_hot()));
    folder.write("y.npy", npy("<i8", &format!("({SAMPLES},)"), &classes(8)));
    (0..SAMPLES).for_each(|sample| folder.write(&format!("{sample:02}.safetensors"), sample_file(sample)));
    folder
}

/// The lines of `check`'s output, or of its errors, without the path of the folder.
fn checked(folder: &TestFolder, text: &str) -> String {
    folder.write("a.toml", text);
    let output = folder.program(&["check", "a.toml"]).output().unwrap();
    let place = folder.path("").display().to_string();
    // The program may write another path of the same folder.
    said(&output).replace(&place, "")
}

/// Trains on the CPU; returns the losses of evaluation by strategy.
#[track_caller]
fn trained(folder: &TestFolder, text: &str) -> [f64; 2] {
    folder.write("a.toml", text);
    folder.runner(&["sweep", "a.toml", "--device", "cpu"]);
    let rows = folder.rows_by_strategy("results/a.csv");
    ["plain", "workers"].map(|strategy| {
        let row = &rows[strategy];
        assert_eq!(row.status, Status::Ok, "{}", row.message);
        row.loss_eval.unwrap()
    })
}

#[test]
fn models_learn_from_tensors_in_both_forms() {
    let folder = folder();
    let pair = "[data.tensors]\ninput = \"x.npy\"\ntargets = \"y.npy\"";
    let losses = trained(&folder, &experiment("[4]", pair));
    assert_eq!(losses[0], losses[1], "the loader does not change results");
    assert!(losses[0] < 0.5, "{losses:?}");
    std::fs::remove_dir_all(folder.path("results")).unwrap();
    let files = "[data.tensors]\nfiles = [\"*.safetensors\"]";
    assert_eq!(trained(&folder, &experiment("[4]", files)), losses, "the same samples");
    insta::assert_snapshot!("tensors_checked", checked(&folder, &experiment("[4]", pair)));
}

#[test]
fn mistakes_with_tensors_are_reported() {
    let folder = folder();
    folder.write("short.npy", &npy("<f4", &format!("({SAMPLES}, {CLASSES})"), &one_hot())[..1000]);
    folder.write("five.npy", npy("|u1", "(80,)", &[&classes(1)[..79], &[4]].concat()));
    folder.write("floats.npy", npy("<f4", "(80,)", &[0; 320]));
    let pair = |input: &str, targets: &str| {
        experiment("[4]", &format!("[data.tensors]\ninput = \"{input}\"\ntargets = \"{targets}\""))
    };
    let good = pair("x.npy", "y.npy");
    let experiments = [
        pair("short.npy", "five.npy"),
        pair("x.npy", "five.npy"),
        pair("x.npy", "floats.npy"),
        pair("none.npy", "y.npy"),
        good.replace("input = [4]", "input = [2, 2]"),
        good.replace("targets = \"y.npy\"\n", ""),
        good.replace("targets = \"y.npy\"\n", "files = [\"*.safetensors\"]\n"),
        experiment("[4]", "[data.tensors]"),
        good.replace(
            "targets = \"y.npy\"",
            "targets = \"y.npy\"\nsplit = 0.5\nevaluate = { files = [\"*.safetensors\"] }",
        ),
        good.replace("targets = \"y.npy\"", "targets = \"y.npy\"\nevaluate = { input = \"x.npy\" }"),
        good.replace("dtype = \"u8\"", "source = \"ram\""),
        experiment("[4]", "[data.tensors]\nfiles = [\"y.npy\"]"),
    ];
    let errors = experiments.map(|text| checked(&folder, &text));
    insta::assert_snapshot!("tensors_with_mistakes", errors.join("\n"));
}
