mod quantized;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

use std::fs;

use super::*;
use ops::Shape;

/// A name, a type, dimensions and bytes.
type Tensor<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

fn written(folder: &Path, tensors: &[Tensor]) -> PathBuf {
    let path = folder.join("a.safetensors");
    let views = tensors
        .iter()
        .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape.to_vec(), data).unwrap()));
    std::fs::write(&path, serialize(views, None).unwrap()).unwrap();
    path
}

/// A name and dimensions.
type NamedDims<'a> = (&'a str, &'a [usize]);

fn needed(tensors: &[NamedDims]) -> Vec<RequiredParameter> {
    tensors.iter().map(|(name, dims)| RequiredParameter::own((*name).to_owned(), Shape::new(dims))).collect()
}

#[test]
fn elements_are_read_from_any_index_as_f32() {
    let folder = tempfile::tempdir().unwrap();
    let count = 3 * (16 << 10) / 2 + 5;
    let numbers: Vec<f32> = (0..count).map(|number| (number % 256) as f32 - 100.0).collect();
    let f32s: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let bf16s: Vec<u8> =
        numbers.iter().flat_map(|number| ((number.to_bits() >> 16) as u16).to_le_bytes()).collect();
    // 1, -2, the smallest subnormal and the largest number.
    let f16s: Vec<u8> =
        [0x3C00u16, 0xC000, 0x0001, 0x7BFF].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let tensors: [Tensor; 3] = [
        ("a", Dtype::F32, &[count], &f32s),
        ("b", Dtype::BF16, &[count], &bf16s),
        ("c", Dtype::F16, &[2, 2], &f16s),
    ];
    let weights = Weights::open(&written(folder.path(), &tensors)).unwrap();
    let weights = weights.matched(&needed(&[("a", &[count]), ("b", &[count]), ("c", &[2, 2])])).unwrap();
    let read = |tensor, first, count| {
        let mut found = vec![[0; 4]; count];
        weights.read(tensor, first, &mut found).unwrap();
        found.into_iter().map(f32::from_ne_bytes).collect::<Vec<f32>>()
    };
    for tensor in ["a", "b"] {
        assert_eq!(read(tensor, 0, count), numbers, "{tensor}");
        assert_eq!(read(tensor, 7, count - 9), numbers[7..count - 2], "{tensor}");
    }
    assert_eq!(read("c", 0, 4), [1.0, -2.0, 2f32.powi(-24), 65504.0]);
}

#[test]
fn missing_mismatched_and_superfluous_tensors_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let tensors: [Tensor; 2] = [("a", Dtype::F32, &[2, 1], &[0; 8]), ("b", Dtype::I32, &[1], &[0; 4])];
    let path = written(folder.path(), &tensors);
    let weights = Weights::open(&path).unwrap();
    let message = |tensors: &[NamedDims]| {
        let error = weights.check(&needed(tensors)).unwrap_err();
        error.to_string().replace(&path.display().to_string(), "a.safetensors")
    };
    let cases: [(&[NamedDims], &str); 4] = [
        (&[("x", &[3])], "a.safetensors has no `x`, which the model needs as f32[3]"),
        (&[("a", &[1, 2])], "a.safetensors has `a` as f32[2, 1]; the model needs it as f32[1, 2]"),
        (&[("b", &[1])], "a.safetensors has `b` as i32[1]; the model needs it as f32[1]"),
        (&[("a", &[2, 1])], "a.safetensors has `b`, which the model does not"),
    ];
    for (tensors, expected) in cases {
        assert_eq!(message(tensors), expected);
    }
}

#[test]
fn truncated_file_is_an_error_at_any_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), &[("a", Dtype::F32, &[2], &[0; 8])]);
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let found = Weights::open(&path);
        assert!(matches!(found, Err(WeightsError::NotTensors { .. })), "{length}: {found:?}");
    }
    let missing = Weights::open(&folder.path().join("none"));
    assert!(matches!(missing, Err(WeightsError::Unreadable { .. })));
}

/// A file with this JSON header and as many bytes of data.
fn with_header(folder: &Path, header: &str, data: usize) -> PathBuf {
    let path = folder.join("a.safetensors");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn bytes_of_no_tensor_or_of_two_are_errors() {
    const INVALID: &str = "its header: invalid offset for tensor `b`";
    let folder = tempfile::tempdir().unwrap();
    let two = |first: [usize; 2], second: [usize; 2]| {
        let tensor = |offsets: [usize; 2]| serde_json::json!({ "dtype": "U8", "shape": [offsets[1] - offsets[0]], "data_offsets": offsets });
        serde_json::json!({ "a": tensor(first), "b": tensor(second) }).to_string()
    };
    for (first, second, data, problem) in [
        ([0, 4], [4, 8], 8, None),
        ([4, 8], [0, 4], 8, None),
        ([0, 0], [0, 8], 8, None),
        ([0, 4], [4, 8], 9, Some("its last 1 bytes belong to no tensor")),
        ([0, 4], [5, 8], 8, Some(INVALID)),
        ([4, 6], [2, 4], 6, Some(INVALID)),
        ([0, 4], [3, 8], 8, Some(INVALID)),
        ([0, 8], [4, 8], 8, Some(INVALID)),
        ([0, 4], [4, 9], 8, Some("the data of `b`, u8[5], is incomplete")),
    ] {
        let path = with_header(folder.path(), &two(first, second), data);
        let found = Weights::open(&path).err().map(|error| error.to_string());
        let expected =
            problem.map(|problem| format!("{} is not a safetensors file: {problem}", path.display()));
        assert_eq!(found, expected);
    }
    let long = with_header(folder.path(), &" ".repeat((32 << 20) + 1), 0);
    let expected = "its header has 32.0 MiB; the maximum is 32.0 MiB";
    assert!(Weights::open(&long).unwrap_err().to_string().ends_with(expected));
}

/// More files than a process may have open by default.
#[test]
fn checkpoint_of_many_files_is_read() {
    let folder = tempfile::tempdir().unwrap();
    const FILES: usize = 3000;
    let mut map = serde_json::Map::new();
    for file in 0..FILES {
        let path =
            written(folder.path(), &[(&format!("t{file}"), Dtype::F32, &[1], &(file as f32).to_le_bytes())]);
        let name = format!("{file}.safetensors");
        fs::rename(path, folder.path().join(&name)).unwrap();
        map.insert(format!("t{file}"), name.into());
    }
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let names: Vec<String> = (0..FILES).map(|file| format!("t{file}")).collect();
    let named: Vec<NamedDims> = names.iter().map(|name| (name.as_str(), &[1][..])).collect();
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    let stored = Weights::open(&index).unwrap().matched(&needed(&named)).unwrap();
    assert!(open_files() < before + 500);
    let read = |name: &str| {
        let mut found = [[0; 4]];
        stored.read(name, 0, &mut found).map(|()| f32::from_ne_bytes(found[0]))
    };
    for file in [0, 1, 255, 256, 2999] {
        assert_eq!(read(&names[file]).unwrap(), file as f32);
    }
    let last = map["t999"].as_str().unwrap();
    fs::write(folder.path().join(last), "changed").unwrap();
    assert!(matches!(read("t999"), Err(WeightsError::Changed { .. })));
}

/// The error of a checkpoint that does not match.
fn error_message(file: &Path, needed: &[RequiredParameter]) -> String {
    let error = Weights::open(file).and_then(|weights| weights.matched(needed)).unwrap_err();
    error.to_string().replace(&format!("{}/", file.parent().unwrap().display()), "")
}

/// Parameters with an `a` of shape [3, 2] that consists of these tensors.
fn parameters_from(naming: TensorNaming, stored: &[(&str, usize, Form)]) -> Vec<RequiredParameter> {
    let stored =
        stored.iter().map(|&(tensor, rows, form)| CheckpointTensor { tensor: tensor.to_owned(), rows, form });
    let needed = |name: &str, dims: &[usize], stored| RequiredParameter {
        name: name.to_owned(),
        shape: Shape::new(dims),
        elsewhere: vec![(naming, stored)],
    };
    let table = match naming {
        TensorNaming::Gpt2 => "wte.weight",
        _ => "embed_tokens.weight",
    };
    let table = CheckpointTensor { tensor: table.to_owned(), rows: 1, form: Form::Plain };
    vec![needed("table", &[1], vec![table]), needed("a", &[3, 2], stored.collect())]
}

/// Parameter `a`, read at once and in all ranges.
fn all(file: &Path, needed: &[RequiredParameter]) -> Vec<f32> {
    let stored = Weights::open(file).unwrap().matched(needed).unwrap();
    let read = |first: usize, count: usize| {
        let mut found = vec![[0; 4]; count];
        stored.read("a", first as u64, &mut found).unwrap();
        found.into_iter().map(f32::from_ne_bytes).collect::<Vec<f32>>()
    };
    let whole = read(0, 6);
    for (first, count) in (0..6).flat_map(|first| (0..=6 - first).map(move |count| (first, count))) {
        assert_eq!(read(first, count), whole[first..first + count], "{count} from {first}");
    }
    whole
}

fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn parameters_are_assembled_from_foreign_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let six = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let eight = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let (whole, turned) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let table = f32s(&[0.0]);
    let (f32, dims) = (Dtype::F32, &[1][..]);
    type Case<'a> = (TensorNaming, &'a [(&'a str, usize, Form)], Vec<Tensor<'a>>, [f32; 6]);
    let cases: [Case; 4] = [
        (
            TensorNaming::Llama,
            &[("q", 1, Form::Plain), ("k", 2, Form::Plain)],
            vec![
                ("model.embed_tokens.weight", f32, dims, &table),
                ("model.q", f32, &[1, 2], &six[..8]),
                ("model.k", f32, &[2, 2], &six[8..]),
                // A copy of the table.
                ("lm_head.weight", f32, dims, &table),
            ],
            whole,
        ),
        (
            TensorNaming::Gpt2,
            &[("c", 3, Form::Transposed)],
            vec![
                ("wte.weight", f32, dims, &table),
                ("c", f32, &[2, 3], &six),
                ("h.0.attn.bias", f32, dims, &table),
            ],
            turned,
        ),
        // The last row of the tensor first.
        (
            TensorNaming::Llama,
            &[("c", 1, Form::Slice { first: 2, of: 3 }), ("c", 2, Form::Slice { first: 0, of: 3 })],
            vec![("model.embed_tokens.weight", f32, dims, &table), ("model.c", f32, &[3, 2], &six)],
            [5.0, 6.0, 1.0, 2.0, 3.0, 4.0],
        ),
        (
            TensorNaming::Gpt2,
            &[("wpe.weight", 3, Form::FirstRows)],
            vec![
                ("transformer.wte.weight", f32, dims, &table),
                ("transformer.wpe.weight", f32, &[4, 2], &eight),
            ],
            whole,
        ),
    ];
    for (naming, stored, tensors, expected) in cases {
        let file = written(folder.path(), &tensors);
        assert_eq!(all(&file, &parameters_from(naming, stored)), expected, "{stored:?}");
    }
}

#[test]
fn mismatched_foreign_tensors_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (table, six) = (f32s(&[0.0]), f32s(&[0.0; 6]));
    let of = |tensors: &[Tensor], stored: &[(&str, usize, Form)]| {
        let table: Tensor = ("wte.weight", Dtype::F32, &[1], &table);
        let file = written(folder.path(), &[&[table], tensors].concat());
        error_message(&file, &parameters_from(TensorNaming::Gpt2, stored))
    };
    let c = |dims: &'static [usize]| -> Tensor { ("c", Dtype::F32, dims, &six) };
    let turned = [("c", 3, Form::Transposed)];
    let expected = "a.safetensors has no `c`, which the model needs as f32[2, 3]";
    assert_eq!(of(&[], &turned), expected);
    let expected = "a.safetensors has `c` as f32[3, 2]; the model needs it as f32[2, 3]";
    assert_eq!(of(&[c(&[3, 2])], &turned), expected);
    let expected = "a.safetensors has `c` as f32[2, 3]; the model needs it as f32[3, 2] or with more rows";
    assert_eq!(of(&[c(&[2, 3])], &[("c", 3, Form::FirstRows)]), expected);
    let more: Vec<String> = (0..6).map(|number| format!("h.{number}.x")).collect();
    let more = more.iter().map(|name| -> Tensor { (name, Dtype::F32, &[1], &six[..4]) });
    let expected =
        "a.safetensors has `h.0.x`, `h.1.x`, `h.2.x`, `h.3.x` and 2 more, which the model does not";
    let all: Vec<Tensor> = [c(&[2, 3])].into_iter().chain(more).collect();
    assert_eq!(of(&all, &turned), expected);
}

#[test]
fn index_joins_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let (table, six) = (f32s(&[0.0]), f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let shard = |name: &str, tensors: &[Tensor]| {
        fs::rename(written(folder.path(), tensors), folder.path().join(name)).unwrap();
    };
    shard("1.safetensors", &[("model.embed_tokens.weight", Dtype::F32, &[1], &table)]);
    shard("2.safetensors", &[("model.q", Dtype::F32, &[3, 2], &six)]);
    let index = folder.path().join("model.safetensors.index.json");
    let write =
        |map: &str| fs::write(&index, format!("{{\"metadata\": {{}}, \"weight_map\": {map}}}")).unwrap();
    let needed = parameters_from(TensorNaming::Llama, &[("q", 3, Form::Plain)]);
    write("{\"model.embed_tokens.weight\": \"1.safetensors\", \"model.q\": \"2.safetensors\"}");
    assert_eq!(all(&index, &needed), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    // Another shard changes the digest.
    let digest =
        || Weights::open(&index).unwrap().digest(&mut DigestCache::read(Path::new("/nowhere"))).unwrap();
    let before = digest();
    shard("2.safetensors", &[("model.q", Dtype::F32, &[3, 2], &f32s(&[1.0; 6]))]);
    assert_ne!(digest(), before);

    let mistakes = [
        (
            "{\"model.q\": \"1.safetensors\"}",
            "is not an index of safetensors files: it lists `model.q` in 1.safetensors, which lacks it",
        ),
        (
            "{\"model.q\": \"../1.safetensors\"}",
            "is not an index of safetensors files: `../1.safetensors` is not a file name",
        ),
        ("[]", "is not an index of safetensors files: invalid type"),
        ("{\"model.q\": \"2.safetensors\"}", "has no `table`, which the model needs as f32[1]"),
    ];
    for (map, expected) in mistakes {
        write(map);
        let message = error_message(&index, &needed);
        assert!(message.starts_with(&format!("model.safetensors.index.json {expected}")), "{message}");
    }
    write("{\"model.q\": \"3.safetensors\"}");
    assert!(error_message(&index, &needed).starts_with("cannot read 3.safetensors"));
}

/// Data parallelism, `torch.compile` and PEFT wrap a model, also one in another.
#[test]
fn prefixes_of_wrappers_change_no_parameter() {
    let folder = tempfile::tempdir().unwrap();
    let (table, six) = (f32s(&[0.0]), f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let needed = parameters_from(TensorNaming::Llama, &[("q", 3, Form::Plain)]);
    for prefix in [
        "",
        "module.",
        "_orig_mod.",
        "base_model.model.",
        "module._orig_mod.",
        "_orig_mod.module.base_model.model.",
    ] {
        for inner in ["", "model."] {
            let names = ["embed_tokens.weight", "q"].map(|name| format!("{prefix}{inner}{name}"));
            let tensors: [Tensor; 2] =
                [(&names[0], Dtype::F32, &[1], &table), (&names[1], Dtype::F32, &[3, 2], &six)];
            let file = written(folder.path(), &tensors);
            assert_eq!(all(&file, &needed), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "{prefix}{inner}");
        }
    }
    // A prefix of some names only belongs to them.
    let tensors: [Tensor; 2] = [("a", Dtype::F32, &[1], &table), ("module.b", Dtype::F32, &[1], &table)];
    let file = written(folder.path(), &tensors);
    assert!(Weights::open(&file).unwrap().check(&self::needed(&[("a", &[1]), ("module.b", &[1])])).is_ok());
}

#[test]
fn other_formats_are_named_with_their_conversion() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, begin: &[u8]| {
        let file = folder.path().join(name);
        fs::write(&file, [begin, &[0; 64]].concat()).unwrap();
        let error = Weights::open(&file).unwrap_err();
        (error.to_string(), error.help().into_owned())
    };
    let (zip, pickle) = (b"PK\x03\x04".as_slice(), [0x80, 2, 0x8a, 10].as_slice());
    for (name, begin, format) in [
        ("pytorch_model.bin", zip, "a checkpoint of PyTorch (zip)"),
        ("a.pt", pickle, "a checkpoint of PyTorch (pickle)"),
        ("a.pth", zip, "a checkpoint of PyTorch (zip)"),
        ("a.ckpt", pickle, "a checkpoint of PyTorch (pickle)"),
    ] {
        let (message, help) = refused(name, begin);
        assert!(message.ends_with(&format!("{name} is {format}, not a safetensors file")), "{message}");
        assert!(help.contains("torch.load(") && help.contains(name) && help.contains("save_file("), "{help}");
    }
    assert!(refused("a.gguf", b"GGUF").0.contains("is a GGUF file"));
    // The length of a header, 640 bytes, begins as a pickle does.
    let length: [u8; 8] = 640_u64.to_le_bytes();
    assert!(length.starts_with(&[0x80, 2]));
    let (message, _) = refused("model.safetensors", &length);
    assert!(message.contains("its header declares 640 bytes, but the file has 72"), "{message}");
    // In a model's folder, the library converts it.
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let (_, help) = refused("pytorch_model.bin", zip);
    assert!(help.contains("AutoModelForCausalLM.from_pretrained("), "{help}");
    let (message, help) = refused("pytorch_model.bin.index.json", b"{}");
    assert!(
        message.contains("the index of a checkpoint of PyTorch") && help.contains("AutoModel"),
        "{message}{help}"
    );
}

#[test]
fn one_shard_leads_to_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| {
        let file = folder.path().join(name);
        fs::rename(written(folder.path(), &[("a", Dtype::F32, &[1], &f32s(&[0.0]))]), &file).unwrap();
        Weights::open(&file).map_err(|error| format!("{error}; {}", error.help()))
    };
    let error = of("model-00001-of-00003.safetensors").unwrap_err();
    assert!(error.contains("is one of 3 files of a checkpoint; use its index, "), "{error}");
    assert!(error.contains("model.safetensors.index.json, which is not there"), "{error}");
    fs::write(folder.path().join("model.safetensors.index.json"), "{}").unwrap();
    let error = of("model-00001-of-00003.safetensors").unwrap_err();
    assert!(error.ends_with("model.safetensors.index.json"), "{error}");
    for whole in ["model-00001-of-00001.safetensors", "run-of-4.safetensors"] {
        assert!(of(whole).is_ok(), "{whole}");
    }
}

/// As the library chooses; a file to convert only if there is nothing else.
#[test]
fn folder_s_weights_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let found =
        || weights_in(folder.path()).map(|file| file.file_name().unwrap().to_string_lossy().into_owned());
    assert_eq!(found(), None);
    for name in [
        "config.json",
        "training_args.bin",
        "adapter_model.safetensors",
        "model.ckpt",
        "a.safetensors",
        "pytorch_model.bin",
        "model.safetensors.index.json",
        "model.safetensors",
    ] {
        fs::write(folder.path().join(name), "").unwrap();
        let is_other = ["config", "training_args", "adapter"].iter().any(|other| name.starts_with(other));
        let expected = (!is_other).then(|| name.to_owned());
        assert_eq!(found(), expected, "{name}");
    }
}
