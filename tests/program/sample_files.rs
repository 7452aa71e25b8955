//! Samples of layers in a list from files: `[data.tensors]`, `[data.idx]`, `[data.cifar]`,
//! `[data.images]`.

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

[strategies.ram]
loader = {{ workers = 1, prefetch = 1, source = "ram" }}

[strategies.device]
loader = {{ source = "device", dtype = "u8" }}

[strategies.fp16]
input_dtype = "fp16"
"#
    )
}

/// The last strategies of an experiment.
const DEVICE: &str = "[strategies.device]\nloader = { source = \"device\", dtype = \"u8\" }\n";
const FP16: &str = "[strategies.fp16]\ninput_dtype = \"fp16\"\n";

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

/// The share of correct classes does not depend on how a batch is divided, and is shown if it differs.
#[test]
fn accuracy_of_an_evaluation_is_a_column() {
    let folder = folder();
    let pair = "[data.tensors]\ninput = \"x.npy\"\ntargets = \"y.npy\"";
    let more = "[strategies.micro]\naccumulate = 3\n[strategies.slices]\nloss_chunks = 2\n\
                [strategies.untrained]\nset.\"train.optimizer.sgd\" = { lr = 1e-9 }\n";
    folder.write("a.toml", format!("{}\n{more}", experiment("[4]", pair)));
    let table = said(&folder.program(&["sweep", "a.toml", "--device", "cpu"]).output().unwrap());
    let rows = folder.rows_by_strategy("results/a.csv");
    let accuracy = |strategy: &str| rows[strategy].accuracy.unwrap();
    assert_eq!(accuracy("plain"), 1.0);
    assert_eq!([accuracy("micro"), accuracy("slices")], [1.0; 2]);
    assert!(accuracy("untrained") < 1.0);
    assert!(table.contains("acc"), "{table}");
    let file = folder.find("results/a/*/*/*/evaluations.csv").remove(0);
    assert!(std::fs::read_to_string(file).unwrap().starts_with("step,loss,accuracy\n"));
}

/// Trains on the CPU; returns the loss of evaluation, which all loaders share.
#[track_caller]
fn trained(folder: &TestFolder, text: &str) -> f64 {
    folder.write("a.toml", text);
    folder.runner(&["sweep", "a.toml", "--device", "cpu"]);
    let rows = folder.rows_by_strategy("results/a.csv");
    for (strategy, row) in &rows {
        assert_eq!(row.status, Status::Ok, "{}", row.message);
        assert!(row.loss_eval == rows["plain"].loss_eval || strategy == "fp16", "{strategy}");
    }
    assert_eq!(rows.len(), text.matches("[strategies.").count());
    rows["plain"].loss_eval.unwrap()
}

#[test]
fn models_learn_from_tensors_in_both_forms() {
    let folder = folder();
    let pair = "[data.tensors]\ninput = \"x.npy\"\ntargets = \"y.npy\"";
    let loss = trained(&folder, &experiment("[4]", pair));
    assert!(loss < 0.5, "{loss}");
    std::fs::remove_dir_all(folder.path("results")).unwrap();
    let files = "[data.tensors]\nfiles = [\"*.safetensors\"]";
    assert_eq!(trained(&folder, &experiment("[4]", files)), loss, "the same samples");
    insta::assert_snapshot!("tensors_checked", checked(&folder, &experiment("[4]", pair)));
}

/// A list that embeds ids, with the experiment's data.
fn embeds(data: &str) -> String {
    let layers = "[{ embedding = { count = 8, dim = 16 } }, \"mean_pool\", { linear = 4 }]";
    experiment("[3]", data).replace("[{ linear = 4 }]", layers)
}

/// Ids of which the first shows the class, in i32.
fn ids() -> Vec<u8> {
    let sample = |sample: usize| [class(sample) as i32, 4 + sample as i32 % 4, 7];
    (0..SAMPLES).flat_map(sample).flat_map(i32::to_le_bytes).collect()
}

#[test]
fn models_learn_from_ids_and_their_mistakes_are_reported() {
    let folder = folder();
    folder.write("ids.npy", npy("<i4", "(80, 3)", &ids()));
    folder.write("numbers.npy", npy("<f4", "(80, 3)", &[0; 960]));
    let beyond = [&ids()[..956], 8i32.to_le_bytes().as_slice()].concat();
    folder.write("beyond.npy", npy("<i4", "(80, 3)", &beyond));
    folder.write("negative.npy", npy("<i4", "(80, 3)", &[&ids()[..956], &[0xff; 4]].concat()));
    let pair = |input: &str| {
        let data = format!("[data.tensors]\ninput = \"{input}.npy\"\ntargets = \"y.npy\"");
        embeds(&data).replace(FP16, "")
    };
    let loss = trained(&folder, &pair("ids"));
    assert!(loss < 0.5, "{loss}");
    let mistakes = [
        pair("numbers"),
        pair("beyond"),
        pair("negative"),
        pair("ids").replace("targets =", "scale = 0.5\ntargets ="),
    ];
    let reported: Vec<String> = mistakes.iter().map(|text| checked(&folder, text)).collect();
    insta::assert_snapshot!("ids_mistaken", reported.join("\n"));
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
        good.replace("input_dtype = \"fp16\"", "input_dtype = \"u8\""),
        experiment("[4]", "[data.random]\nsamples = 9")
            .replace("[strategies.plain]", "[defaults]\ninput_dtype = \"u8\"\n\n[strategies.plain]"),
        experiment("[4]", "[data.random]")
            .replace("[strategies.plain]", "[strategies.plain.loader]\nsource = \"ram\""),
        experiment("[4]", "[data.tensors]\nfiles = [\"y.npy\"]"),
    ];
    let errors = experiments.map(|text| checked(&folder, &text));
    insta::assert_snapshot!("tensors_with_mistakes", errors.join("\n"));
}

/// An IDX file of u8.
fn idx(sizes: &[u32], numbers: &[u8]) -> Vec<u8> {
    let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
    [&[0, 0, 8, (sizes.len() / 4) as u8], sizes.as_slice(), numbers].concat()
}

/// Images of 2 by 2 pixels that show their class: a white pixel at its index.
fn white_pixels() -> Vec<u8> {
    (0..SAMPLES)
        .flat_map(|sample| (0..CLASSES).map(move |at| if at == class(sample) { 255 } else { 0 }))
        .collect()
}

/// Records of CIFAR-10: the class sets a quarter of the red rows.
fn records() -> Vec<u8> {
    let record = |sample: usize| {
        let red = move |at: usize| if at / 256 == class(sample) { 255 } else { 0 };
        std::iter::once(class(sample) as u8).chain((0..3072).map(red))
    };
    (0..SAMPLES).flat_map(record).collect()
}

/// A folder with images in both formats, the last 16 samples in files of their own.
fn image_folder() -> TestFolder {
    let folder = TestFolder::new();
    let (pixels, labels, records) = (white_pixels(), classes(1), records());
    folder.write("images", idx(&[64, 2, 2], &pixels[..256]));
    folder.write("labels", idx(&[64], &labels[..64]));
    folder.write("test-images", idx(&[16, 2, 2], &pixels[256..]));
    folder.write("test-labels", idx(&[16], &labels[64..]));
    folder.write("data_batch_1.bin", &records[..40 * 3073]);
    folder.write("data_batch_2.bin", &records[40 * 3073..64 * 3073]);
    folder.write("test_batch.bin", &records[64 * 3073..]);
    folder
}

const IDX: &str = "[data.idx]\nimages = \"images\"\nlabels = \"labels\"\n\
                   evaluate = { images = \"test-images\", labels = \"test-labels\" }";

const CIFAR: &str = "[data.cifar]\npaths = [\"data_batch_*.bin\"]\nevaluate = [\"test_batch.bin\"]";

/// CIFAR has ten classes.
fn cifar(keys: &str) -> String {
    experiment("[3072]", &format!("{CIFAR}\n{keys}"))
        .replace("linear = 4", "linear = 10")
        .replace("lr = 0.5", "lr = 0.01")
}

#[test]
fn models_learn_from_images() {
    let folder = image_folder();
    for (data, bound) in [
        (experiment("[4]", IDX), 0.8),
        (experiment("[4]", &format!("{IDX}\nmean = [0.25]\nstd = [0.4]")), 0.3),
        // Pixels have the results of numbers.
        (cifar("").replace(".fp16]\ninput_dtype = \"fp16\"", ".u8]\ninput_dtype = \"u8\""), 0.5),
        // The device holds no samples that change.
        (cifar("crop = 4\nflip = true").replace(DEVICE, ""), 0.8),
    ] {
        let loss = trained(&folder, &data);
        assert!(loss < bound, "{loss}: {data}");
        std::fs::remove_dir_all(folder.path("results")).unwrap();
    }
    let checked = [experiment("[4]", IDX), cifar("")].map(|text| checked(&folder, &text));
    insta::assert_snapshot!("images_checked", checked.join("\n"));
}

#[test]
fn mistakes_with_images_are_reported() {
    let folder = image_folder();
    folder.write("short", &idx(&[64, 2, 2], &white_pixels())[..200]);
    folder.write("images.gz", b"\x1f\x8b\x08\0\0\0\0\0");
    folder.write("floats", [0, 0, 13, 1, 0, 0, 0, 0]);
    folder.write("five", idx(&[64], &[4; 64]));
    folder.write("cut.bin", &records()[..3000]);
    folder.write("fine.bin", vec![1; 3074 * 2]);
    folder.write("other.bin", vec![11; 3073]);
    let idx = experiment("[4]", IDX);
    let experiments = [
        idx.replace("images = \"images\"", "images = \"short\""),
        idx.replace("images = \"images\"", "images = \"images.gz\""),
        idx.replace("images = \"images\"", "images = \"floats\""),
        idx.replace("images = \"images\"", "images = \"labels\""),
        idx.replace("labels = \"labels\"", "labels = \"five\""),
        idx.replace("input = [4]", "input = [1, 4, 4]"),
        experiment("[4]", &format!("{IDX}\nmean = [0.1, 0.2]")),
        experiment("[4]", &format!("{IDX}\nsplit = 0.8")),
        experiment("[4]", "[data.idx]\nimages = \"images\""),
        cifar("").replace("data_batch_*", "cut"),
        cifar("").replace("data_batch_*", "fine"),
        cifar("").replace("data_batch_*", "other"),
        cifar("").replace("linear = 10", "linear = 4"),
        cifar("classes = 20"),
        cifar("std = [0.2]"),
        cifar("crop = 4")
            .replace(DEVICE, "")
            .replace("[strategies.plain]", "[defaults]\nloader.source = \"device\"\n\n[strategies.plain]"),
    ];
    let errors = experiments.map(|text| checked(&folder, &text));
    insta::assert_snapshot!("images_with_mistakes", errors.join("\n"));
}

/// A folder for each class, with images of 8 by 2 pixels; the white quarter is the class.
fn class_folders() -> TestFolder {
    let folder = TestFolder::new();
    for sample in 0..SAMPLES {
        let class = class(sample);
        let of_class = folder.path(&format!("images/{class}"));
        std::fs::create_dir_all(&of_class).unwrap();
        // Other whites, so that no two files are the same.
        let white = 255 - sample as u8;
        let shade = |x: u32, _| image::Luma([if x as usize / 2 == class { white } else { 0 }]);
        let ending = if sample % 2 == 0 { "png" } else { "jpg" };
        image::GrayImage::from_fn(8, 2, shade).save(of_class.join(format!("{sample}.{ending}"))).unwrap();
    }
    folder
}

/// A model of images with one channel, one row and four pixels.
fn images(keys: &str) -> String {
    experiment("[1, 1, 4]", &format!("[data.images]\nfolder = \"images\"\n{keys}"))
}

#[test]
fn models_learn_from_folders_of_images() {
    let folder = class_folders();
    let loss = trained(&folder, &images("mean = [0.25]\nstd = [0.4]"));
    assert!(loss < 0.6, "{loss}");
    insta::assert_snapshot!("folders_checked", checked(&folder, &images("")));
}

#[test]
fn mistakes_with_folders_of_images_are_reported() {
    let folder = class_folders();
    std::fs::create_dir_all(folder.path("val/9")).unwrap();
    folder.write("val/9/0.png", "no image");
    std::fs::create_dir_all(folder.path("text/0")).unwrap();
    folder.write("text/0/0.png", "no image");
    let experiments = [
        images("").replace("\"images\"", "\"none\""),
        images("").replace("\"images\"", "\"images/0\""),
        images("").replace("\"images\"", "\"text\""),
        images("evaluate = \"val\""),
        images("mean = [0.1, 0.2, 0.3]"),
        images("").replace("[1, 1, 4]", "[4]"),
        images("").replace("linear = 4", "linear = 3"),
    ];
    let errors = experiments.map(|text| checked(&folder, &text));
    insta::assert_snapshot!("folders_with_mistakes", errors.join("\n"));
}
