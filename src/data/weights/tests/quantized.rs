//! Weights that a library stored in fewer bits.

use super::*;

/// Weights as libraries quantize them, and as these dequantize them (tests/reference/quantized/make.py).
#[test]
fn quantized_weights_are_read_as_their_libraries_dequantize_them() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/quantized"));
    let plain = Weights::open(&folder.join("dequantized.safetensors")).unwrap();
    let types: Vec<(String, Vec<usize>)> =
        plain.files[0].names().map(|name| (name.clone(), plain.files[0].tensor(&name).dims)).collect();
    let needed: Vec<RequiredParameter> =
        types.iter().map(|(name, dims)| RequiredParameter::own(name.clone(), Shape::new(dims))).collect();
    let plain = plain.matched(&needed).unwrap();
    let stored = Weights::open(&folder.join("stored.safetensors")).unwrap().matched(&needed).unwrap();
    assert_eq!(types.len(), 10);
    for (name, dims) in &types {
        let count: usize = dims.iter().product();
        let read = |from: &StoredParameters, range: std::ops::Range<usize>| {
            let mut numbers = vec![[0; 4]; range.len()];
            from.read(name, range.start as u64, &mut numbers).unwrap();
            numbers.into_iter().map(f32::from_ne_bytes).collect::<Vec<f32>>()
        };
        let expected = read(&plain, 0..count);
        assert!(expected.iter().any(|number| *number != 0.0));
        assert_eq!(read(&stored, 0..count), expected, "{name}");
        // From within a block and a byte, across pieces.
        for range in [7..count - 9, count - 2..count, 1..2] {
            assert_eq!(read(&stored, range.clone()), expected[range], "{name}");
        }
    }
}

/// A library that quantizes the layers of GPT-2 stores them in the usual layout, though others of them are transposed.
#[test]
fn quantized_layers_of_gpt2_are_not_transposed() {
    let folder = tempfile::tempdir().unwrap();
    let scales: Vec<u8> = [127f32, 254.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let path = written(
        folder.path(),
        &[
            ("wte.weight", Dtype::F32, &[1, 2], &[0; 8]),
            ("h.0.attn.c_proj.weight", Dtype::I8, &[2, 2], &[1, 2, 3, 4]),
            ("h.0.attn.c_proj.SCB", Dtype::F32, &[2], &scales),
        ],
    );
    let tensor = |tensor: &str, rows, form| CheckpointTensor { tensor: tensor.to_owned(), rows, form };
    let needed = |name: &str, dims: &[usize], stored| RequiredParameter {
        elsewhere: vec![(TensorNaming::Gpt2, vec![stored])],
        ..RequiredParameter::own(name.to_owned(), Shape::new(dims))
    };
    let needed = [
        needed("e", &[1, 2], tensor("wte.weight", 1, Form::Plain)),
        needed("p", &[2, 2], tensor("h.0.attn.c_proj.weight", 2, Form::Transposed)),
    ];
    let weights = Weights::open(&path).unwrap().matched(&needed).unwrap();
    let mut numbers = [[0; 4]; 4];
    weights.read("p", 0, &mut numbers).unwrap();
    let numbers = numbers.map(f32::from_ne_bytes);
    for (found, expected) in numbers.into_iter().zip([1.0, 2.0, 6.0, 8.0]) {
        assert!((found - expected).abs() < 1e-6, "{numbers:?}");
    }
}

#[test]
fn unsuitable_quantized_tensors_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let state = br#"{"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [2, 64]}"#;
    let other = br#"{"quant_type": "nf4", "blocksize": 4, "dtype": "float32", "shape": [2, 64]}"#;
    const STATE: &str = "a.weight.quant_state.bitsandbytes__nf4";
    let codes: Tensor = ("a.weight", Dtype::U8, &[64, 1], &[0; 64]);
    let absmax: Tensor = ("a.weight.absmax", Dtype::F32, &[2], &[0; 8]);
    let map: Tensor = ("a.weight.quant_map", Dtype::F32, &[16], &[0; 64]);
    let f8: Tensor = ("a.weight", Dtype::F8_E4M3, &[2, 64], &[0; 128]);
    let gptq: [Tensor; 3] = [
        ("a.qweight", Dtype::I32, &[1], &[0; 4]),
        ("a.qzeros", Dtype::I32, &[1], &[0; 4]),
        ("a.g_idx", Dtype::I32, &[1], &[0; 4]),
    ];
    let cases: [(&[Tensor], &str); 9] = [
        (&[codes, absmax, map, (STATE, Dtype::U8, &[76], state)], ""),
        (
            &[codes, map, (STATE, Dtype::U8, &[76], state)],
            "`a.weight`, quantized, but its `a.weight.absmax` is missing: 2 floating-point numbers",
        ),
        (
            &[codes, absmax, map, (STATE, Dtype::U8, &[75], other)],
            "`a.weight`, quantized, but it has blocks of 4 numbers, not 16 to 1048576",
        ),
        (
            &[codes, absmax, map, (STATE, Dtype::U8, &[2], b"{}")],
            "`a.weight`, quantized, but its `a.weight.quant_state.bitsandbytes__nf4`: missing field `blocksize`",
        ),
        (
            &[("a.weight", Dtype::U8, &[3], &[0; 3]), absmax, map, (STATE, Dtype::U8, &[76], state)],
            "`a.weight`, quantized, but it has 3 bytes for 128 numbers of 4 bits",
        ),
        (
            &[f8, ("a.weight_scale_inv", Dtype::F32, &[3, 1], &[0; 12])],
            "`a.weight`, quantized, but its `a.weight_scale_inv` is f32[3, 1]; it needs one scale, 2 (one per row) or 1 x 1 (one per block)",
        ),
        (
            &[
                f8,
                ("a.weight_scale", Dtype::F32, &[1], &[0; 4]),
                ("a.input_scale", Dtype::F32, &[1], &[0; 4]),
            ],
            "",
        ),
        (&gptq, "`a.qweight`, quantized by GPTQ, which runner does not read"),
        (&gptq[..2], "`a.qweight`, quantized by AWQ, which runner does not read"),
    ];
    for (tensors, expected) in cases {
        let path = written(folder.path(), tensors);
        let found = Weights::open(&path).unwrap().check(&needed(&[("a.weight", &[2, 64])]));
        let message = found.err().map_or(String::new(), |error| {
            assert!(!error.help().is_empty());
            error.to_string().replace(&format!("{} has ", path.display()), "")
        });
        assert!(message.starts_with(expected) && message.is_empty() == expected.is_empty(), "{message}");
    }
}

#[test]
fn scales_may_be_in_another_file_than_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let numbers: Tensor = ("model.a.weight", Dtype::F8_E4M3, &[1, 2], &[0x38, 0xC0]);
    let scale = 3f32.to_le_bytes();
    let scale: Tensor = ("model.a.weight_scale", Dtype::F32, &[1], &scale);
    let tokens: Tensor = ("model.embed_tokens.weight", Dtype::F32, &[1, 1], &[0; 4]);
    for (name, tensors) in [("1", &[numbers, tokens][..]), ("2", &[scale])] {
        fs::rename(written(folder.path(), tensors), folder.path().join(name)).unwrap();
    }
    let map = serde_json::json!({
        "model.a.weight": "1", "model.embed_tokens.weight": "1", "model.a.weight_scale": "2",
    });
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let needed = needed(&[("a.weight", &[1, 2]), ("embed_tokens.weight", &[1, 1])]);
    let weights = Weights::open(&index).unwrap().matched(&needed).unwrap();
    let mut found = [[0; 4]; 2];
    weights.read("a.weight", 0, &mut found).unwrap();
    assert_eq!(found.map(f32::from_ne_bytes), [3.0, -6.0]);
}
