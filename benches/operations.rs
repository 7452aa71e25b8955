//! Benchmarks of each operation of three models' training steps, and of the machine's limits.
//!
//! `cargo bench -p benches --bench operations`, optionally with a part of a name after `--`. Items are floating-point
//! operations, so that `Gitem/s` reads as GFLOP/s. Bytes count each operand once. The FLOPs of attention count the
//! whole T x T, as is customary, although kernels skip most of the masked half.

use std::collections::BTreeMap;
use std::fmt;

use compile::{Action, SectionKind};
use device::{Device, DeviceChoice, Pool, Region, Target, Tensor, detect, open};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use ops::{
    self, Add, DType, GradientTerms, Linear, Member, Op, Rounding, Rule, Shape, StateFormat, TensorType,
    UpdateFormat, WeightFormat, lay_out,
};
use plan::compile;
use spec::{
    AdamW, Data, Decay, LastBatch, Measure, Model, Optimizer, Precision, RunConfig, Schedule, Strategy, Text,
    Train, Transformer,
};

const VOCABULARY: usize = 256;

fn main() {
    divan::main();
}

/// An operation with the types of its operands.
struct Case {
    name: String,
    op: Op,
    inputs: Vec<TensorType>,
    /// Whether the first output overwrites the first input, if the operation permits it.
    in_place: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[divan::bench(args = limits())]
fn limit(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

#[divan::bench(args = updates())]
fn update(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

/// The model of `experiments/gpt-mini.toml`.
#[divan::bench(args = operations(Precision::Fp32, 6, 384, 6, 256, 8))]
fn mini(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

#[divan::bench(args = operations(Precision::Bf16, 6, 384, 6, 256, 8))]
fn mini_bf16(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

#[divan::bench(args = operations(Precision::Fp16, 6, 384, 6, 256, 8))]
fn mini_fp16(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

#[divan::bench(args = operations(Precision::Fp32, 4, 384, 6, 1024, 1))]
fn long(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

#[divan::bench(args = operations(Precision::Fp32, 2, 128, 4, 64, 8))]
fn small(bencher: Bencher, case: &Case) {
    measure(bencher, case);
}

/// Each optimizer on a matrix of 2^24 elements (Muon on a smaller one); AdamW in each format of states, parameters and
/// gradients.
fn updates() -> Vec<Case> {
    let random = Rounding::Stochastic { seed: 0 };
    let states = [
        ("f32", StateFormat::F32),
        ("bf16", StateFormat::Bf16(Rounding::Nearest)),
        ("bf16 stochastic", StateFormat::Bf16(random)),
        ("8 bits", StateFormat::Quantized),
    ];
    let weights = [
        ("f32", DType::F32, WeightFormat::InPlace(Rounding::Nearest)),
        ("bf16", DType::BF16, WeightFormat::InPlace(Rounding::Nearest)),
        ("bf16 stochastic", DType::BF16, WeightFormat::InPlace(random)),
        ("bf16 with master", DType::BF16, WeightFormat::Master(DType::BF16)),
    ];
    let adam = ops::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1, decoupled: true };
    let adafactor = ops::Adafactor {
        beta2_decay: -0.8,
        epsilon: 1e-7,
        scale_epsilon: 1e-3,
        clip_threshold: 1.0,
        weight_decay: 0.1,
    };
    let muon = |dtype| ops::Muon {
        momentum: 0.95,
        nesterov: true,
        weight_decay: 0.1,
        steps: 5,
        epsilon: 1e-7,
        adjust: ops::Adjust::Original,
        dtype,
        tf32: false,
    };
    let others = [
        Rule::Adafactor(adafactor),
        Rule::Muon(muon(DType::F32)),
        Rule::Muon(muon(DType::BF16)),
        Rule::Lion(ops::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 }),
        Rule::Sgd(ops::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }),
        Rule::Sgd(ops::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 }),
    ];
    let adam = || Rule::Adam(adam.clone());
    let cases = states.map(|states| (adam(), states, weights[0])).into_iter();
    let cases = cases.chain(weights[1..].iter().map(|weights| (adam(), states[0], *weights)));
    let cases = cases.chain(others.into_iter().map(|rule| (rule, states[0], weights[0])));
    let update = |(rule, (name, states), (of_weights, dtype, weights)): (Rule, _, _)| {
        let format = UpdateFormat { states, weights };
        let (side, multiplied) = match &rule {
            Rule::Muon(muon) => (1536, format!(", products {}", muon.dtype)),
            _ => (4096, String::new()),
        };
        let tensor = Member::new(Shape::new(&[side; 2]), true, 0);
        let (members, ty) = lay_out(std::iter::once(tensor), dtype, format.narrowest());
        let gradients = GradientTerms { members: members.clone(), clip_norm: None, scaled: false };
        let op = ops::OptimizerStep { gradients, format, numbers_at: 0, rule };
        let states = op.kept().into_iter().map(|state| state.layout(&members, ty).1);
        let parameters = (!format.has_master()).then_some(ty);
        let inputs = parameters.into_iter().chain([ty]).chain(states);
        let inputs = inputs.chain([TensorType::f32(&[op.rule.numbers_len()])]).collect();
        let name = format!("{} {name}, parameters {of_weights}{multiplied}", op.rule.name());
        Case { name, op: Op::OptimizerStep(op), inputs, in_place: false }
    };
    cases.map(update).collect()
}

/// Matmuls large enough for peak throughput, and an addition to 64 MiB, which is limited by memory bandwidth.
fn limits() -> Vec<Case> {
    let limit = |name: String, op, ty| Case { name, op, inputs: vec![ty, ty], in_place: true };
    let products = [DType::F32, DType::BF16, DType::F16].map(|number| {
        let product = Linear { bias: false, activation: None, residual: false, tf32: false };
        limit(format!("product {number}"), Op::Linear(product), TensorType::new(number, &[1536, 1536]))
    });
    let memory = limit("memory".to_owned(), Op::Add(Add::PLAIN), TensorType::f32(&[1 << 24]));
    products.into_iter().chain([memory]).collect()
}

/// All operations of a step that differ in name or operand shapes.
fn operations(
    precision: Precision,
    layers: usize,
    d_model: usize,
    heads: usize,
    context: usize,
    batch_size: usize,
) -> Vec<Case> {
    let model = Transformer { vocabulary: VOCABULARY, ..Transformer::new(layers, d_model, heads, context) };
    let program = compile(&config(model, precision, batch_size), &target()).expect("a valid program");
    let steps =
        program.sections.iter().filter(|s| matches!(s.kind, SectionKind::First | SectionKind::Update));
    let mut cases = BTreeMap::new();
    for instruction in steps.flat_map(|section| &section.code) {
        if let Action::Launch { op, inputs, outputs, .. } = &instruction.action {
            let output = program.value(outputs[0]);
            let operands: Vec<String> =
                inputs.iter().take(2).map(|&id| program.ty(id).shape.to_string()).collect();
            let name = format!("{} {} -> {}", op.name(), operands.join(" "), output.ty.shape);
            let inputs = program.types(inputs);
            cases.entry(name.clone()).or_insert(Case { name, op: op.clone(), inputs, in_place: false });
        }
    }
    cases.into_values().collect()
}

fn config(model: Transformer, precision: Precision, batch_size: usize) -> RunConfig {
    let adamw = AdamW {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.1,
        decay: Decay::Matrices,
        groups: Vec::new(),
    };
    RunConfig {
        model: Model::Transformer(model),
        data: Data::Text(Text::new(Vec::new(), 1.0)),
        train: Train {
            batch_size,
            clip_norm: Some(1.0),
            seed: 0,
            shuffle: false,
            last_batch: LastBatch::Drop,
            optimizer: Optimizer::AdamW(adamw),
            schedule: Schedule::default(),
        },
        evaluation: None,
        measure: Measure { warmup_steps: 0, steps: 1, ..Measure::default() },
        strategy: Strategy { precision, ..Strategy::default() },
        data_len: None,
        lengths: None,
        all_packed: None,
    }
}

fn target() -> Target {
    detect(DeviceChoice::Auto, None).expect("a device")
}

fn measure(bencher: Bencher, case: &Case) {
    let target = target();
    let mut device = open(&target).expect("a device");
    let types = case.op.outputs(&case.inputs).expect("valid operand types");
    let inputs: Vec<Tensor> = case.inputs.iter().map(|&ty| operand(&mut *device, ty)).collect();
    let mut outputs: Vec<Tensor> = types.iter().map(|&ty| operand(&mut *device, ty)).collect();
    for &(output, input) in case.op.updates() {
        outputs[output] = inputs[input];
    }
    if case.in_place && case.op.may_overwrite().contains(&(0, 0)) {
        outputs[0] = inputs[0];
    }
    let workspace = match case.op.workspace(&case.inputs, &types, &target.workspace_limits(Pool::Device)) {
        0 => None,
        bytes => {
            let buffer = device.allocate(Pool::Device, bytes).expect("memory");
            Some(Region { buffer, offset: 0, bytes })
        }
    };
    let bytes: u64 = case.inputs.iter().chain(&types).map(TensorType::bytes).sum();
    bencher
        .counter(BytesCount::new(bytes as usize))
        .counter(ItemsCount::new(case.op.flops(&case.inputs, &types) as usize))
        .bench_local(|| {
            device.launch(&case.op, &inputs, &outputs, workspace).expect("a launch");
            device.synchronize().expect("the device works");
        });
}

/// Allocates an operand filled with numbers between 0 and 1, or with token ids.
fn operand(device: &mut dyn Device, ty: TensorType) -> Tensor {
    let buffer = device.allocate(Pool::Device, ty.bytes()).expect("memory");
    // Multiples of the golden ratio: evenly spread, without a pattern that could favour a kernel.
    let number = |index: usize| (index as f64 * 0.618_033_988_749_895).fract();
    let bytes = |index: usize| match ty.dtype {
        DType::F32 => (number(index) as f32).to_ne_bytes().to_vec(),
        // The upper half of an f32; read as f16, a number between 0 and 2.
        DType::BF16 | DType::F16 => (number(index) as f32).to_ne_bytes()[2..].to_vec(),
        DType::U8 | DType::U4 => vec![(number(index) * 256.0) as u8],
        DType::I32 => ((number(index) * VOCABULARY as f64) as i32).to_ne_bytes().to_vec(),
        DType::U16 => ((number(index) * VOCABULARY as f64) as u16).to_ne_bytes().to_vec(),
    };
    let bytes: Vec<u8> = (0..ty.elements()).flat_map(bytes).take(ty.bytes() as usize).collect();
    let tensor = Tensor { buffer, offset: 0, ty };
    device.write(tensor.region(), &bytes).expect("the device works");
    tensor
}
