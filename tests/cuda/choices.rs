//! Autotuning of matmuls: timed, cached and stored with the run. Only on the emulated stack, whose second algorithm
//! sums in another order, and whose `EMULATED_PRODUCTS` sets which algorithm is fast.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::test_folder::{TestFolder, Tiny, said};
use base::units::Bytes;
use device::{
    Choice, CudaDevice, Device, DeviceError, Placed, Pool, Region, Source, Target, Tensor, Work, equip,
};
use ops::{DType, Linear, LinearWeightGradient, Op, TensorType};
use results::{Row, Status};
use sha2::{Digest, Sha256};

const MORE: &str = r#"
clip_norm = 1.0

[evaluation]
every = 10
batches = 1

[measure]
warmup_steps = 1
steps = 2

[strategies.plain]
precision = "bf16"
[strategies.recompute]
precision = "bf16"
recompute = "block"
[strategies.zero]
precision = "bf16"
gradients = "zero"
"#;

/// A test folder with an experiment, and a private cache that contains only the kernels.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let tiny = Tiny { d_model: 32, ..Tiny::default() }.with(MORE);
    place.write("small.toml", format!("baseline = \"plain\"\n{tiny}"));
    fs::create_dir(place.path("cache")).unwrap();
    let shared = PathBuf::from(std::env::var_os("RUNNER_CACHE_DIR").expect("as tests/cuda.sh sets it"));
    for kernel in files(&shared).into_iter().filter(|file| !is_product(file)) {
        fs::copy(&kernel, place.path("cache").join(kernel.file_name().unwrap())).unwrap();
    }
    place
}

impl TestFolder {
    /// Runs the sweep; `fast` is the value of `EMULATED_PRODUCTS`.
    fn sweep_with(&self, fast: &str, arguments: &[&str]) -> Output {
        self.failing_sweep(fast, arguments, "")
    }

    /// The same with a failing library call; `failing` is the value of `EMULATED_FAIL`.
    fn failing_sweep(&self, fast: &str, arguments: &[&str], failing: &str) -> Output {
        let mut command = self.program(&["sweep", "small.toml", "--device", "cuda"]);
        command.args(arguments).env("EMULATED_PRODUCTS", fast).env("RUNNER_CACHE_DIR", self.path("cache"));
        command.env("EMULATED_FAIL", failing).output().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, fast: &str, arguments: &[&str]) {
        let output = self.sweep_with(fast, arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }

    fn cached_products(&self) -> Vec<PathBuf> {
        files(&self.path("cache")).into_iter().filter(|file| is_product(file)).collect()
    }

    fn clear_cache(&self) {
        let products = self.cached_products();
        assert!(!products.is_empty());
        products.iter().for_each(|file| fs::remove_file(file).unwrap());
    }

    /// The rows of all repeats in a results folder. Asserts that they match their predictions.
    fn good_rows(&self, out: &str) -> Vec<Row> {
        let rows = self.rows(&format!("{out}/small.csv"));
        for row in &rows {
            assert_eq!(row.status, Status::Ok, "{}", row.message);
            assert_eq!(row.peak_bytes, row.predicted_peak_bytes);
            assert_eq!(row.reserved_peak_bytes, row.predicted_reserved_peak_bytes);
        }
        rows
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map_or(Vec::new(), |entries| entries.map(|entry| entry.unwrap().path()).collect())
}

fn is_product(file: &Path) -> bool {
    file.file_name().unwrap().to_str().unwrap().starts_with("product-")
}

/// Number of shapes whose choice was timed, cached, stored with the run, and untimed.
fn sources(row: &Row) -> [u64; 4] {
    [row.products_timed, row.products_cached, row.products_stored, row.products_untimed].map(Option::unwrap)
}

/// The choices of a run's file, by shape.
fn table(file: &Path) -> BTreeMap<String, Choice> {
    let choices: Vec<Choice> =
        ::csv::Reader::from_path(file).unwrap().deserialize().collect::<Result<_, _>>().unwrap();
    choices.into_iter().map(|choice| (choice.product.clone(), choice)).collect()
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn repeats_use_the_stored_choices() {
    let place = place();
    let plain = ["--filter", "plain"];
    place.succeeds("first", &plain);
    let first = place.good_rows("results").remove(0);
    let shapes = sources(&first)[0];
    assert!(shapes > 5, "{first:?}");
    assert_eq!(sources(&first), [shapes, 0, 0, 0]);
    assert!(first.effects.ends_with(&format!("algorithms: {shapes} timed")), "{}", first.effects);

    place.clear_cache();
    place.succeeds("second", &[&plain[..], &["--dump", "dumps"]].concat());
    let dumped = table(&place.find("dumps/*/products.csv")[0]);
    assert_eq!(dumped.len() as u64, shapes);
    assert!(dumped.values().all(|choice| choice.source == Source::Stored), "{dumped:?}");
    let log = fs::read_to_string(&place.find("dumps/*/log.txt")[0]).unwrap();
    assert_eq!(log.matches("stored with the run, candidates in ms: ").count() as u64, shapes, "{log}");

    place.succeeds("second", &[&plain[..], &["--repeats", "2"]].concat());
    let rows = place.good_rows("results");
    assert_eq!(sources(&rows[1]), [0, 0, shapes, 0]);
    assert!(rows[1].effects.ends_with(&format!("algorithms: {shapes} stored")), "{}", rows[1].effects);
    assert_eq!(rows[1].digest, first.digest);

    // Without the stored and cached choices, the run gives other results.
    place.clear_cache();
    fs::remove_file(&place.find("results/small/*/*/1/products.csv")[0]).unwrap();
    let output = place.sweep_with("second", &[&plain[..], &["--dump", "others", "--repeats", "2"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("its final parameters differ from the result's"), "{}", said(&output));
    place.succeeds("second", &[&plain[..], &["--fresh"]].concat());
    let fresh = place.good_rows("results").remove(0);
    assert_eq!(sources(&fresh), [0, shapes, 0, 0], "the rejected dump had timed and cached them");
    assert_ne!(fresh.digest, first.digest);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn choices_of_another_card_or_library_are_rejected() {
    let place = place();
    let plain = ["--filter", "plain"];
    place.succeeds("first", &plain);
    let file = &place.find("results/small/*/*/1/products.csv")[0];
    let whole = fs::read_to_string(file).unwrap();
    let refused = |text: &str, problem: &str| {
        fs::write(file, text).unwrap();
        let output = place.sweep_with("first", &[&plain[..], &["--dump", "dumps"]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(problem), "{}", said(&output));
        assert!(said(&output).contains("measure it again with --fresh"), "{}", said(&output));
    };
    refused(
        &whole.replace("cuBLASLt 13.0.0", "cuBLASLt 12.9.1"),
        "was chosen on emulated GPU, compute capability 9.0, cuBLASLt 12.9.1, driver 13.0, but this is emulated GPU, \
         compute capability 9.0, cuBLASLt 13.0.0, driver 13.0;",
    );
    let foreign = foreign_algorithm(&table(file).values().next().unwrap().algorithm);
    let algorithm = &table(file).values().next().unwrap().algorithm.clone();
    refused(&whole.replace(algorithm, &foreign), "was rejected by the library;");
    let output = place.sweep_with("first", &[&plain[..], &["--fresh", "--dump", "dumps"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// An emulated algorithm consists of three words: a magic number, the digest of the problem, and the algorithm's
/// number.
fn foreign_algorithm(algorithm: &str) -> String {
    format!("{}{:016x}{}", &algorithm[..16], 12345, &algorithm[32..])
}

fn second_algorithm(algorithm: &str) -> String {
    format!("{}{:016x}{}", &algorithm[..32], 1, &algorithm[48..])
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn timed_choices_come_from_the_cache() {
    let place = place();
    place.succeeds("second", &["--out", "one"]);
    let one = place.good_rows("one");
    let shapes: u64 = sources(&one[0])[0];
    assert_eq!(sources(&one[0]), [shapes, 0, 0, 0]);
    for row in &one[1..] {
        // Recomputation and zeroed gradients use the same choices, and so change no bit.
        assert_eq!(sources(row), [0, shapes, 0, 0], "{}", row.strategy);
        assert_eq!(row.digest, one[0].digest, "{}", row.strategy);
    }
    place.succeeds("first", &["--out", "two", "--filter", "plain"]);
    let two = place.good_rows("two");
    assert_eq!(sources(&two[0]), [0, shapes, 0, 0]);
    assert_eq!(two[0].digest, one[0].digest);
    place.clear_cache();
    place.succeeds("first", &["--out", "three", "--filter", "plain"]);
    let three = place.good_rows("three");
    assert_eq!(sources(&three[0]), [shapes, 0, 0, 0]);
    assert_ne!(three[0].digest, one[0].digest, "another summation order");

    // Rejected and malformed entries are timed again.
    let entries = place.cached_products();
    let choice = |file: &Path| serde_json::from_slice::<Choice>(&fs::read(file).unwrap()[32..]).unwrap();
    let forge = |file: &Path, contents: &[u8]| {
        fs::write(file, [Sha256::digest(contents).as_slice(), contents].concat()).unwrap();
    };
    let mut foreign = choice(&entries[0]);
    foreign.algorithm = foreign_algorithm(&foreign.algorithm);
    forge(&entries[0], &serde_json::to_vec(&foreign).unwrap());
    forge(&entries[1], b"not a choice");
    place.succeeds("first", &["--out", "four"]);
    let four = place.good_rows("four");
    let timed: u64 = four.iter().map(|row| sources(row)[0]).sum();
    assert!((1..=2).contains(&timed), "{timed}: one entry may belong to the matmul of the rate measurement");
    assert_eq!(choice(&entries[0]).algorithm.len(), foreign.algorithm.len());
    assert_ne!(choice(&entries[0]), foreign);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn kernel_replaces_a_slow_library_epilogue() {
    let place = place();
    place.succeeds("apart", &["--out", "apart", "--filter", "plain"]);
    let apart = table(&place.find("apart/small/*/*/1/products.csv")[0]);
    place.clear_cache();
    place.succeeds("first", &["--out", "fused", "--filter", "plain"]);
    let fused = table(&place.find("fused/small/*/*/1/products.csv")[0]);
    assert!(apart.keys().eq(fused.keys()));
    let with_epilogue = |product: &&String| !product.contains(", default");
    assert!(apart.keys().filter(with_epilogue).count() >= 3, "{apart:?}");
    for product in apart.keys() {
        let wanted = if with_epilogue(&product) { "apart" } else { "algorithm 0" };
        assert!(apart[product].choice.starts_with(wanted), "{product}: {:?}", apart[product]);
        assert!(fused[product].choice.starts_with("algorithm 0"), "{product}: {:?}", fused[product]);
    }
    let [apart, fused] = ["apart", "fused"].map(|out| place.good_rows(out).remove(0));
    let (a, b) = (apart.loss_last.unwrap(), fused.loss_last.unwrap());
    assert!((a - b).abs() <= 1e-3 * b, "{a} and {b}");
}

fn target() -> Target {
    equip(0).expect("the emulated stack: run tests/cuda.sh").target(Bytes(0))
}

fn device(target: Target) -> CudaDevice {
    CudaDevice::new(target, 0).expect("a device that works")
}

fn work(device: &dyn Device, op: Op, inputs: &[TensorType]) -> Work {
    let outputs = op.outputs(inputs).unwrap();
    let workspace = op.workspace(inputs, &outputs, &device.target().workspace_limits(Pool::Device));
    let placed = |types: &[TensorType]| types.iter().map(|&ty| Placed::new(ty, 0)).collect::<Vec<_>>();
    Work { home: Pool::Device, inputs: placed(inputs), outputs: placed(&outputs), op, workspace }
}

/// Launches an operation with pseudorandom inputs and zeroed accumulators; returns the first output.
fn launch(device: &mut CudaDevice, work: &Work) -> Vec<u8> {
    let mut tensor = |placed: &Placed| {
        let buffer = device.allocate(Pool::Device, placed.end()).unwrap();
        Tensor { buffer, offset: placed.offset, ty: placed.ty }
    };
    let inputs: Vec<Tensor> = work.inputs.iter().map(&mut tensor).collect();
    let updated = |output: usize| work.op.updates().iter().find(|pair| pair.0 == output).map(|pair| pair.1);
    let outputs = work.outputs.iter().enumerate();
    let outputs: Vec<Tensor> =
        outputs.map(|(index, at)| updated(index).map_or_else(|| tensor(at), |input| inputs[input])).collect();
    let workspace = device.allocate(Pool::Device, work.workspace).unwrap();
    for (index, input) in inputs.iter().enumerate() {
        let zeros = work.op.updates().iter().any(|pair| pair.1 == index);
        let number = |i: u64| if zeros { 0.0 } else { ((i * 7919 + 13) % 1000) as f32 / 500.0 - 1.0 };
        let bytes = (0..input.ty.elements() as u64).flat_map(|i| match input.ty.dtype {
            DType::F32 => number(i).to_le_bytes().to_vec(),
            _ => number(i).to_le_bytes()[2..].to_vec(),
        });
        device.write(input.region(), &bytes.collect::<Vec<u8>>()).unwrap();
    }
    let workspace = Region { buffer: workspace, offset: 0, bytes: work.workspace };
    device.launch(&work.op, &inputs, &outputs, Some(workspace)).unwrap();
    let mut bytes = vec![0; outputs[0].ty.bytes() as usize];
    device.read(outputs[0].region(), &mut bytes).unwrap();
    bytes
}

/// Storing gradients and adding them to zeros give the same bits.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn accumulated_and_stored_gradients_use_the_same_algorithm() {
    let mut device = device(target());
    let op = |accumulate| {
        let gradients = DType::F32;
        Op::LinearWeightGradient(LinearWeightGradient { gradients, bias: false, accumulate, tf32: false })
    };
    let (x, dy) = (TensorType::new(DType::BF16, &[96, 64]), TensorType::new(DType::BF16, &[96, 32]));
    let stored = work(&device, op(false), &[x, dy]);
    let added = work(&device, op(true), &[x, dy, TensorType::f32(&[32, 64])]);
    device.choose(&[added.clone(), stored.clone()], &[]).unwrap();
    let [chosen] = <[Choice; 1]>::try_from(device.choices()).unwrap();

    let second = Choice { algorithm: second_algorithm(&chosen.algorithm), ..chosen };
    let mut other = self::device(target());
    other.choose(std::slice::from_ref(&stored), &[second]).unwrap();
    let bits = [launch(&mut device, &stored), launch(&mut other, &stored)];
    assert!(bits[0] != bits[1], "the algorithms sum in different orders");
    assert!(launch(&mut device, &added) == bits[0]);
    assert!(launch(&mut other, &added) == bits[1]);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn without_memory_for_timing_the_recommendation_is_used() {
    let op = Op::Linear(Linear { bias: true, activation: None, residual: false, tf32: false });
    let types = [[200, 72], [40, 72]].map(|shape| TensorType::new(DType::BF16, &shape));
    let types = [types[0], types[1], TensorType::new(DType::BF16, &[40])];
    // A workspace size that no earlier test has cached.
    let workspace = Bytes((1 << 20) + 256 * u64::from(std::process::id()));
    let target = || Target { product_workspace: workspace, ..target() };
    let mut small = device(target().with_memory(workspace));
    let work = work(&small, op, &types);
    small.choose(std::slice::from_ref(&work), &[]).unwrap();
    let choices = small.choices();
    assert_eq!(choices.len(), 2, "with and without bias: {choices:?}");
    for choice in &choices {
        assert_eq!((choice.source, choice.choice.starts_with("algorithm 0")), (Source::Untimed, true));
        assert_eq!(choice.candidates_ms, "");
        assert!(choice.to_string().ends_with("; not timed: too little memory"), "{choice}");
    }

    let mut large = device(target());
    large.begin_external_reading().unwrap();
    let before = large.external_reading().unwrap().unwrap().taken;
    large.choose(std::slice::from_ref(&work), &[]).unwrap();
    assert_eq!(large.external_reading().unwrap().unwrap().taken, before, "scratch memory is freed");
    assert!(
        large.choices().iter().all(|choice| choice.source != Source::Untimed),
        "untimed choices are not cached"
    );
    assert!(launch(&mut small, &work) == launch(&mut large, &work));
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn stored_choice_needs_no_scratch_memory() {
    let mut ample = device(target());
    let op = Op::Linear(Linear { bias: false, activation: None, residual: false, tf32: false });
    let types = [[64, 48], [40, 48]].map(|shape| TensorType::new(DType::F16, &shape));
    let work = work(&ample, op, &types);
    ample.choose(std::slice::from_ref(&work), &[]).unwrap();
    let mut small = device(target().with_memory(Bytes(1 << 20)));
    small.choose(std::slice::from_ref(&work), &ample.choices()).unwrap();
    assert_eq!(small.choices()[0].source, Source::Stored);

    let wrong = Choice { algorithm: "apart".to_owned(), ..ample.choices().remove(0) };
    let mut other = device(target());
    assert!(matches!(other.choose(&[work], &[wrong]), Err(DeviceError::StoredChoice { .. })));
}

/// cuBLASLt may be newer than this program: unknown status codes are handled as numbers.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn unknown_library_codes_are_handled() {
    let place = place();
    let plain = ["--filter", "plain"];
    // Of the two algorithms recommended for each shape, the first always has an error state.
    let states = (1..1000).step_by(2).map(|n| format!("cublasLtMatmulAlgoGetHeuristic.state:{n}:4242"));
    let output = place.failing_sweep("first", &plain, &states.collect::<Vec<_>>().join(","));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let chosen = table(&place.find("results/small/*/*/1/products.csv")[0]);
    assert!(chosen.len() > 5, "{chosen:?}");
    for choice in chosen.values() {
        assert!(choice.choice.starts_with("algorithm 1,") || choice.choice == "apart", "{choice:?}");
    }

    // All choices are cached, so the failing call is in training.
    let output = place.failing_sweep("first", &[&plain[..], &["--fresh"]].concat(), "cublasLtMatmul:30:4242");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let [row] = <[Row; 1]>::try_from(place.rows("results/small.csv")).unwrap();
    assert_eq!(row.status, Status::Failed);
    // With the matmul and its algorithm between.
    for part in ["cublasLtMatmul of ", " with algorithm ", " failed: an error unknown to this program (4242)"]
    {
        assert!(row.message.contains(part), "{}", row.message);
    }
}
