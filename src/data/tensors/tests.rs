use std::fs;
use std::path::Path;

use super::npy::tests::npy;
use super::*;
use crate::{Batch, KeyedCount, Order, Part, PartRole, TrainingStep};
use ops::{DType, TensorType};
use tempfile::TempDir;

/// A model's parts: inputs of two numbers, and one of three classes.
fn parts(dtype: DType) -> Sample {
    let below = Some(KeyedCount { key: "model.sequential.layers", count: 3 });
    let class =
        Part { role: PartRole::Target, name: TARGETS, ty: TensorType::i32(&[]), below }.loaded_as(dtype);
    let input = Part { role: PartRole::Input, name: INPUT, ty: TensorType::f32(&[2]), below: None };
    Sample { parts: vec![input, class, crate::row::weights()], length: None }
}

fn regression() -> Sample {
    let part = |role, name| Part { role, name, ty: TensorType::f32(&[2]), below: None };
    Sample { parts: vec![part(PartRole::Input, INPUT), part(PartRole::Target, TARGETS)], length: None }
}

fn bytes<const SIZE: usize>(numbers: impl IntoIterator<Item = [u8; SIZE]>) -> Vec<u8> {
    numbers.into_iter().flatten().collect()
}

/// Ten inputs: 0, 1, then 2, 3, and so on.
fn inputs() -> Vec<u8> {
    npy("<f4", "(10, 2)", &bytes((0..20).map(|number| (number as f32).to_le_bytes())))
}

fn classes() -> Vec<u8> {
    npy("<i8", "(10,)", &bytes((0..10i64).map(|number| (number % 3).to_le_bytes())))
}

/// A safetensors file of tensors: name, type, shape, numbers.
fn safetensors(tensors: &[(&str, &str, &str, &[u8])]) -> Vec<u8> {
    let mut end = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, numbers)| {
            let begin = end;
            end += numbers.len();
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    tensors.iter().for_each(|(.., numbers)| file.extend(*numbers));
    file
}

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        fs::write(folder.path().join(name), contents).unwrap();
    }
    folder
}

fn pair(folder: &Path, input: &str, targets: &str) -> TensorSet {
    let samples = TensorSource::Pair { input: folder.join(input), targets: folder.join(targets) };
    TensorSet { samples, evaluate: None, scale: 1.0, split: 0.8 }
}

const STEP: TrainingStep =
    TrainingStep { seed: 7, number: 0, samples: 8, order: Order::Shuffled { keeps_last: true } };

fn floats(batch: &Batch, name: &str) -> Vec<f32> {
    batch.part(name).unwrap().bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

fn open(set: &TensorSet, sample: &Sample) -> Box<dyn Source> {
    let source = set.open(sample, &mut DigestCache::default()).unwrap();
    set.check(source.contents(), sample, true).unwrap();
    source
}

fn evaluated(set: &TensorSet, sample: &Sample, count: usize) -> Batch {
    let mut batch = Batch::new(&sample.parts, count);
    open(set, sample).fill_evaluation(count as u64, 0..count as u64, &mut batch).unwrap();
    batch
}

fn error(set: &TensorSet, sample: &Sample) -> String {
    let inspected = set.inspect(&mut DigestCache::default());
    let found = inspected.map_err(|mut errors| errors.remove(0));
    let error = found.and_then(|contents| set.check(&*contents, sample, true)).unwrap_err();
    let text = error.to_string();
    format!("{:?}: {}", error.blame(), text.rsplit('/').next().unwrap())
}

#[test]
fn epoch_reads_each_sample_with_its_class() {
    let folder = folder(&[("x.npy", &inputs()), ("y.npy", &classes())]);
    let set = pair(folder.path(), "x.npy", "y.npy");
    for dtype in [DType::I32, DType::U16, DType::U8] {
        let sample = parts(dtype);
        let source = open(&set, &sample);
        let mut batch = Batch::new(&sample.parts, 8);
        source.fill_training(&STEP, 0..8, &mut batch).unwrap();
        let firsts: Vec<f32> = floats(&batch, INPUT).chunks(2).map(|input| input[0]).collect();
        let mut sorted = firsts.clone();
        sorted.sort_by(f32::total_cmp);
        assert_eq!(sorted, (0..8).map(|sample| 2.0 * sample as f32).collect::<Vec<_>>());
        let size = dtype.bytes() as usize;
        let classes = batch.part(TARGETS).unwrap().bytes.chunks(size).map(|class| f32::from(class[0]));
        let expected: Vec<f32> = firsts.iter().map(|first| first / 2.0 % 3.0).collect();
        assert_eq!(classes.collect::<Vec<_>>(), expected);
        assert_eq!(floats(&batch, "weights"), [1.0; 8]);
        // A part of a step is that of the whole.
        let mut part = Batch::new(&sample.parts, 2);
        source.fill_training(&STEP, 3..5, &mut part).unwrap();
        assert_eq!(floats(&part, INPUT), floats(&batch, INPUT)[6..10]);
    }
    let batch = evaluated(&set, &parts(DType::I32), 3);
    assert_eq!(floats(&batch, INPUT), [16.0, 17.0, 18.0, 19.0, 16.0, 17.0]);
}

#[test]
fn missing_samples_have_no_weight() {
    let folder = folder(&[("x.npy", &inputs()), ("y.npy", &classes())]);
    let sample = parts(DType::I32);
    let source = open(&pair(folder.path(), "x.npy", "y.npy"), &sample);
    let mut batch = Batch::new(&sample.parts, 6);
    source.fill_training(&TrainingStep { number: 1, samples: 6, ..STEP }, 0..6, &mut batch).unwrap();
    assert_eq!(floats(&batch, "weights"), [3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(floats(&batch, INPUT)[4..].iter().all(|number| *number == 0.0));
    assert!(batch.part(TARGETS).unwrap().bytes[8..].iter().all(|byte| *byte == u8::MAX));
}

#[test]
fn numbers_are_converted_and_scaled() {
    let numbers: [(&str, Vec<u8>); 7] = [
        ("U8", bytes((0..4u8).map(u8::to_le_bytes))),
        ("I32", bytes((0..4i32).map(i32::to_le_bytes))),
        ("I64", bytes((0..4i64).map(i64::to_le_bytes))),
        ("F16", bytes([0u16, 0x3C00, 0x4000, 0x4200].map(u16::to_le_bytes))),
        ("BF16", bytes([0u16, 0x3F80, 0x4000, 0x4040].map(u16::to_le_bytes))),
        ("F32", bytes([0.0, 1.0, 2.0, 3f32].map(f32::to_le_bytes))),
        ("F64", bytes([0.0, 1.0, 2.0, 3f64].map(f64::to_le_bytes))),
    ];
    for (dtype, numbers) in &numbers {
        let file = safetensors(&[("input", dtype, "[2,2]", numbers), ("targets", dtype, "[2,2]", numbers)]);
        let folder = folder(&[("a.safetensors", &file)]);
        let set = TensorSet {
            scale: 0.5,
            split: 0.5,
            ..pair(folder.path(), "a.safetensors", "a.safetensors#targets")
        };
        let batch = evaluated(&set, &regression(), 1);
        assert_eq!(
            (floats(&batch, INPUT), floats(&batch, TARGETS)),
            (vec![1.0, 1.5], vec![2.0, 3.0]),
            "{dtype}"
        );
    }
}

/// More numbers than are read at a time.
#[test]
fn long_samples_are_read_in_pieces() {
    let count = 5000;
    let doubles = bytes((0..2 * count).map(|number| f64::from(number).to_le_bytes()));
    let classes = bytes((0..2 * count).map(|number: i32| i64::from(number % 3).to_le_bytes()));
    let shape = format!("(2, {count})");
    let folder =
        folder(&[("x.npy", &npy("<f8", &shape, &doubles)), ("y.npy", &npy("<i8", &shape, &classes))]);
    let below = Some(KeyedCount { key: "model.sequential.layers", count: 3 });
    let ty = TensorType::f32(&[count as usize]);
    let class =
        Part { role: PartRole::Target, name: TARGETS, ty: TensorType { dtype: DType::I32, ..ty }, below };
    let parts = vec![Part { role: PartRole::Input, name: INPUT, ty, below: None }, class];
    let sample = Sample { parts, length: None };
    let batch = evaluated(&TensorSet { split: 0.5, ..pair(folder.path(), "x.npy", "y.npy") }, &sample, 1);
    assert!(floats(&batch, INPUT).iter().zip(count..).all(|(found, number)| *found == number as f32));
    let found = batch.part(TARGETS).unwrap().bytes.as_chunks().0;
    assert!(found.iter().zip(count..).all(|(found, number)| i32::from_ne_bytes(*found) == number % 3));
}

#[test]
fn one_file_per_sample_is_read_in_the_order_of_paths() {
    let sample = |number: u8| {
        let input = bytes([f32::from(number), 0.5].map(f32::to_le_bytes));
        safetensors(&[("input", "F32", "[2]", &input), ("targets", "U8", "[]", &[number % 3])])
    };
    let files: Vec<(String, Vec<u8>)> =
        (0..10).map(|number| (format!("{number}.safetensors"), sample(number))).collect();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, file)| (name.as_str(), file.as_slice())).collect();
    let folder = folder(&files);
    let paths = vec![folder.path().join("*.safetensors")];
    let set = TensorSet { samples: TensorSource::Files(paths), evaluate: None, scale: 1.0, split: 0.8 };
    let batch = evaluated(&set, &parts(DType::I32), 2);
    assert_eq!(floats(&batch, INPUT), [8.0, 0.5, 9.0, 0.5]);
    let contents = set.inspect(&mut DigestCache::default()).unwrap();
    assert_eq!(
        contents.notes()[0].text,
        "8 samples for training, 2 samples for evaluation: input f32[2], targets u8[] (integers 0 to 2)"
    );

    let source = open(&set, &parts(DType::I32));
    fs::write(folder.path().join("9.safetensors"), sample(8)).unwrap();
    let mut batch = Batch::new(&parts(DType::I32).parts, 2);
    let changed = source.fill_evaluation(2, 0..2, &mut batch).unwrap_err();
    assert!(changed.to_string().ends_with("9.safetensors changed during the run"), "{changed}");

    fs::write(folder.path().join("5.safetensors"), safetensors(&[("input", "F32", "[0]", &[])])).unwrap();
    assert_eq!(
        error(&set, &parts(DType::I32)),
        "Data(\"files\"): 5.safetensors has no tensor `targets`, but `input`"
    );
}

#[test]
fn evaluation_may_have_samples_of_its_own() {
    let file = safetensors(&[("a", "F32", "[1,2]", &[0; 8]), ("targets", "U8", "[1]", &[2])]);
    let folder = folder(&[("x.npy", &inputs()), ("y.npy", &classes()), ("e.safetensors", &file)]);
    let own = pair(folder.path(), "e.safetensors#a", "e.safetensors");
    let set = TensorSet { evaluate: Some(own.samples), ..pair(folder.path(), "x.npy", "y.npy") };
    let batch = evaluated(&set, &parts(DType::I32), 2);
    assert_eq!(floats(&batch, INPUT), [0.0; 4]);
    let inspect = |set: &TensorSet| set.inspect(&mut DigestCache::default()).unwrap();
    let contents = inspect(&set);
    assert_eq!(contents.samples(&parts(DType::I32)), 10);
    let digests = [&set, &pair(folder.path(), "x.npy", "y.npy")].map(|set| inspect(set).digest().to_owned());
    assert_ne!(digests[0], digests[1]);
}

#[test]
fn unfit_files_are_errors_with_their_place() {
    let (inputs, classes) = (inputs(), classes());
    let three = bytes((0..10i64).map(|number| (number % 4).to_le_bytes()));
    let negative = bytes((0..10i32).map(|number| (4 - number).to_le_bytes()));
    let halves = bytes([0.5f32; 10].map(f32::to_le_bytes));
    let folder = folder(&[
        ("x.npy", &inputs),
        ("y.npy", &classes),
        ("short.npy", &inputs[..200]),
        ("wide.npy", &npy("<f4", "(10, 1, 2)", &inputs[128..])),
        ("three.npy", &npy("<i8", "(10,)", &three)),
        ("negative.npy", &npy("<i4", "(10,)", &negative)),
        ("halves.npy", &npy("<f4", "(10,)", &halves)),
        ("nine.npy", &npy("<i8", "(9,)", &classes[128..200])),
        ("one.npy", &npy("<i8", "()", &classes[128..136])),
        ("bits.npy", &npy("|b1", "(10,)", &[0; 10])),
        ("a.safetensors", &safetensors(&[("x", "F32", "[10,2]", &inputs[128..])])),
        ("b.safetensors", &safetensors(&[("input", "BOOL", "[10,2]", &[0; 20])])),
        ("z.npz", b"PK\x03\x04 and more"),
    ]);
    let found = |input, targets| error(&pair(folder.path(), input, targets), &parts(DType::I32));
    for (input, expected) in [
        (
            "short.npy",
            "short.npy ends at byte 200; its header of 128 bytes declares f32[10, 2], which ends at byte 208",
        ),
        ("wide.npy", "wide.npy has inputs of f32[1, 2], but model.sequential.input is [2]"),
        ("x.npy#a", "x.npy is a NumPy file, which has no tensor `a`"),
        ("a.safetensors", "a.safetensors has no tensor `input`, but `x`"),
        (
            "b.safetensors",
            "b.safetensors has `input` as bool[10, 2], not u8, i32, i64, f16, bf16, f32 or f64",
        ),
        ("z.npz", "z.npz is a NumPy archive, neither .npy nor safetensors"),
    ] {
        assert_eq!(found(input, "y.npy"), format!("Data(\"input\"): {expected}"));
    }
    for (targets, expected) in [
        ("three.npy", "three.npy has class 3 for sample 3, at byte 152; the model has classes 0 to 2"),
        ("negative.npy", "negative.npy has class 4 for sample 0, at byte 128; the model has classes 0 to 2"),
        ("halves.npy", "halves.npy has targets of f32[], but classes are integers"),
        ("one.npy", "one.npy has one number, i64[], not one for each sample"),
        ("bits.npy", "bits.npy has numbers of type |b1, not u8, i32, i64, f16, bf16, f32 or f64"),
        ("x.npy", "x.npy has targets of f32[2], but the model needs i32[]"),
    ] {
        assert_eq!(found("x.npy", targets), format!("Data(\"targets\"): {expected}"));
    }
    assert!(found("x.npy", "nine.npy").ends_with("x.npy has 10 inputs"), "{}", found("x.npy", "nine.npy"));
    let all = TensorSet { split: 1.0, ..pair(folder.path(), "x.npy", "y.npy") };
    assert!(
        error(&all, &parts(DType::I32))
            .ends_with("the evaluation split has 0 samples; a sample needs at least 1")
    );
    let absent = pair(folder.path(), "none.npy", "y.npy").inspect(&mut DigestCache::default());
    assert!(absent.unwrap_err()[0].is_absence());
}

#[test]
fn changed_file_is_an_error() {
    let folder = folder(&[("x.npy", &inputs()), ("y.npy", &classes())]);
    let sample = parts(DType::I32);
    let source = open(&pair(folder.path(), "x.npy", "y.npy"), &sample);
    fs::OpenOptions::new().write(true).open(folder.path().join("x.npy")).unwrap().set_len(140).unwrap();
    let error = source.fill_training(&STEP, 0..8, &mut Batch::new(&sample.parts, 8)).unwrap_err();
    assert!(matches!(error, DataError::Changed { .. }), "{error}");
}
