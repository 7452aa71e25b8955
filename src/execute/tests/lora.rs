//! LoRA: its cost and savings, the storage of its base, and the equivalence of its factors to a change of the base
//! weights.
//!
//! L layers, N rows, C d_model, V vocabulary, T context, R rank.

use std::collections::HashMap;

use super::strategies::{BATCH, C, L, T, V, launches, live_in, program, with, work};
use super::{STEPS, batch, trace};
use crate::engine::Engine;
use compile::{Program, SectionKind};
use device::{Pool, Position, Role, to_f32};
use memory::{Failure, live_at};
use ops::{CodeFormat, DType, DynamicMap, NF4, NF4_BLOCK, QUANTIZED_BLOCK, Storage, ValueId};
use spec::*;

const R: u64 = 4;
const N: u64 = BATCH * T;
/// In and out features of a block's linear layers, in the order of execution.
const LAYERS: [(u64, u64); 4] = [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)];
/// Elements of their weights.
const WEIGHTS: u64 = 12 * C * C;

const BASES: [(LoraBase, bool); 6] = [
    (LoraBase::Params, false),
    (LoraBase::Bf16, false),
    (LoraBase::Int8, false),
    (LoraBase::Nf4, false),
    (LoraBase::Nf4, true),
    (LoraBase::Fp16, false),
];

fn adapted(targets: &[&str], (base, double_quantization): (LoraBase, bool)) -> RunConfig {
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    let lora = Lora { base, double_quantization, ..Lora::new(R as usize, 12.0, targets) };
    with(|strategy| strategy.lora = Some(lora))
}

/// The factor B is initially zero.
#[test]
fn first_loss_equals_that_of_the_full_model() {
    let full = trace(&testing::small());
    for (targets, recompute) in
        [(&["*"][..], Recompute::None), (&["*"], Recompute::Block), (&["mlp.up"], Recompute::None)]
    {
        let mut config = adapted(targets, BASES[0]);
        config.strategy.recompute = recompute;
        let found = trace(&config);
        // A GPU may fuse the activation into the matmul if nothing is added to its result.
        let tolerance = if testing::on_cuda() { 1e-6 } else { 0.0 };
        let (first, expected) = (found.losses[0], full.losses[0]);
        assert!((first - expected).abs() <= tolerance * expected, "{targets:?}: {first} for {expected}");
        assert_ne!(found.losses[1], full.losses[1]);
    }
}

/// The bytes of a value.
fn bytes(engine: &mut Engine, id: ValueId) -> Vec<u8> {
    let mut all = Vec::new();
    let read = engine.read(id, |piece| -> Result<(), Failure> {
        all.extend_from_slice(piece);
        Ok(())
    });
    read.unwrap();
    all
}

fn f32s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_ne_bytes(*bytes))).collect()
}

/// The numbers of all parameters, by name. Codes are decoded by the definition of their format, not by the kernels.
fn numbers(program: &Program, engine: &mut Engine) -> HashMap<String, Vec<f64>> {
    let mut all = HashMap::new();
    for parameter in &program.parameters {
        let stored = bytes(engine, parameter.value);
        let scales: Vec<Vec<u8>> = parameter.scales.iter().map(|&id| bytes(engine, id)).collect();
        let ty = program.ty(parameter.value);
        let numbers: Vec<f64> = match program.buckets[parameter.bucket].storage {
            Storage::Plain => f32s(&stored),
            Storage::Numbers(_) => to_f32(ty.dtype, &stored).into_iter().map(f64::from).collect(),
            Storage::Codes(CodeFormat::Int8) => {
                let steps = f32s(&scales[0]);
                let step = |index: usize| steps[index / ty.shape.last()];
                stored.iter().enumerate().map(|(i, &code)| (f64::from(code) - 128.0) * step(i)).collect()
            }
            Storage::Codes(CodeFormat::Nf4 { double }) => {
                let scale = |block: usize| match double {
                    false => f32s(&scales[0])[block],
                    true => {
                        let of_scales = f32s(&scales[1]);
                        let share = DynamicMap::Signed.share(scales[0][block]);
                        share * of_scales[1 + block / QUANTIZED_BLOCK] + of_scales[0]
                    }
                };
                let share = |index: usize| {
                    let code = stored[index / 2] >> (4 * (index % 2)) & 15;
                    f64::from(NF4[usize::from(code)])
                };
                (0..ty.elements()).map(|index| share(index) * scale(index / NF4_BLOCK)).collect()
            }
        };
        all.insert(program.full_name(parameter.value), numbers);
    }
    all
}

/// Replaces W, or rows of a stacked W, by `W + alpha/rank B A`. Returns the number of adapted layers.
fn merge(parameters: &mut HashMap<String, Vec<f64>>, factor: f64) -> usize {
    let adapted: Vec<String> =
        parameters.keys().filter_map(|name| name.strip_suffix(".lora_A")).map(str::to_owned).collect();
    for layer in &adapted {
        let [a, b] = ["A", "B"].map(|name| parameters.remove(&format!("{layer}.lora_{name}")).unwrap());
        let inner = a.len() / R as usize;
        let (stacked, part) = match parameters.contains_key(&format!("{layer}.weight")) {
            true => (layer.clone(), 0),
            false => graph::stacked_layer(layer).unwrap(),
        };
        let weight = parameters.get_mut(&format!("{stacked}.weight")).unwrap();
        let rows = b.len() / R as usize;
        for (row, weight) in weight.chunks_mut(inner).skip(part * rows).take(rows).enumerate() {
            for (r, b) in b[row * R as usize..(row + 1) * R as usize].iter().enumerate() {
                let a = &a[r * inner..(r + 1) * inner];
                weight.iter_mut().zip(a).for_each(|(weight, a)| *weight += factor * b * a);
            }
        }
    }
    adapted.len()
}

/// For every storage of the base, and for whole stacked layers and their parts.
#[test]
fn factors_can_be_merged_into_the_base() {
    let parts = (&["attention.q", "attention.k", "attention.v"][..], BASES[0], 3);
    for (targets, base, count) in BASES.map(|base| (&["*"][..], base, 4)).into_iter().chain([parts]) {
        let config = adapted(targets, base);
        let adapted = program(&config);
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&adapted, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        let batch = |step| batch(&config, step, config.train.batch_size);
        let before = engine.evaluate(&batch(9)).unwrap();
        for step in 1..=STEPS {
            engine.step(&batch(9), &config.numbers(step)).unwrap();
        }
        let expected = engine.evaluate(&batch(9)).unwrap();
        assert!(expected < 0.999 * before, "{base:?} has learnt: {before} and {expected}");
        let mut parameters = numbers(&adapted, &mut engine);
        engine.close().unwrap();
        assert_eq!(merge(&mut parameters, 12.0 / R as f64), count * L as usize);

        let plain = program(&testing::small());
        let mut engine = Engine::new(&plain, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        assert_eq!(parameters.len(), plain.parameters.len());
        for parameter in &plain.parameters {
            let numbers = &parameters[&plain.full_name(parameter.value)];
            let numbers: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
            engine.write_value(parameter.value, &numbers).unwrap();
        }
        let merged = engine.evaluate(&batch(9)).unwrap();
        assert!((merged - expected).abs() <= 1e-5 * expected, "{base:?}: {merged} for {expected}");
        engine.close().unwrap();
    }
}

/// Bytes of a bucket, from the bytes of its tensors, each of which begins at a multiple of 256 bytes.
fn bucket(bytes: &[u64]) -> u64 {
    bytes.iter().map(|bytes| bytes.next_multiple_of(256)).sum()
}

/// Bytes of a block's frozen parameters. Norms and biases have a bucket of their own unless all have the same storage.
fn base_bytes((base, double): (LoraBase, bool)) -> u64 {
    let weights = LAYERS.map(|(inner, out)| inner * out);
    let others = bucket(&[C, C, 3 * C, C, C, C, 4 * C, C].map(|numbers| 4 * numbers));
    let of = |bits: u64| bucket(&weights.map(|numbers| numbers * bits / 8));
    let blocks = weights.map(|numbers| numbers.div_ceil(64));
    match (base, double) {
        (LoraBase::Params | LoraBase::Fp32, _) => others + of(32),
        (LoraBase::Bf16 | LoraBase::Fp16, _) => others + of(16),
        (LoraBase::Int8, _) => others + of(8) + bucket(&LAYERS.map(|(_, out)| 4 * out)),
        (LoraBase::Nf4, false) => others + of(4) + bucket(&blocks.map(|blocks| 4 * blocks)),
        (LoraBase::Nf4, true) => {
            let of_scales = blocks.map(|blocks| 4 * (1 + blocks.div_ceil(256)));
            others + of(4) + bucket(&blocks) + bucket(&of_scales)
        }
    }
}

#[test]
fn base_takes_the_bytes_of_its_format_and_no_gradients() {
    for base in BASES {
        let program = program(&adapted(&["attention.qkv", "mlp"], base));
        let live = |kind, role| live_in(&program, Pool::Device, kind, role, |_| true);
        let targets = [LAYERS[0], LAYERS[2], LAYERS[3]];
        let factors = targets.map(|(inner, out)| [4 * R * inner, 4 * out * R]);
        let factors = L * bucket(factors.as_flattened());
        let others = bucket(&[4 * V * C, 4 * T * C]) + bucket(&[4 * C, 4 * C]);
        let parameters = others + L * base_bytes(base) + factors;
        assert_eq!(live(SectionKind::Update, Role::Parameter), parameters, "{base:?}");
        assert_eq!(live(SectionKind::First, Role::Gradient), factors, "{base:?}");
        assert_eq!(live(SectionKind::Update, Role::Optimizer), 2 * factors, "{base:?}");
        let numbers = (V + T) * C + 2 * C + L * (WEIGHTS + 13 * C);
        let trained = L * targets.iter().map(|(inner, out)| R * (inner + out)).sum::<u64>();
        assert_eq!(program.parameter_count(|bucket| bucket.trainable), trained);
        assert_eq!(program.parameter_count(|_| true), numbers + trained);
    }
}

/// Factors of parts, tables in bf16, and an embedding that is trained in full.
#[test]
fn adapters_of_parts_take_their_bytes() {
    let mut config = adapted(&["attention.q", "attention.v"], BASES[0]);
    let factors = L * bucket(&[4 * R * C, 4 * C * R].repeat(2));
    let live = |config: &RunConfig, kind, role| live_in(&program(config), Pool::Device, kind, role, |_| true);
    assert_eq!(live(&config, SectionKind::First, Role::Gradient), factors);
    assert_eq!(program(&config).parameter_count(|bucket| bucket.trainable), L * 2 * 2 * R * C);
    let parameters = live(&config, SectionKind::Update, Role::Parameter);
    config.strategy.lora.as_mut().unwrap().tables = Some(StorageDtype::Bf16);
    let tables = [bucket(&[4 * V * C, 4 * T * C]), bucket(&[2 * V * C, 2 * T * C])];
    assert_eq!(live(&config, SectionKind::Update, Role::Parameter), parameters - tables[0] + tables[1]);
    config.strategy.lora.as_mut().unwrap().trained = vec!["embedding".to_owned()];
    assert_eq!(live(&config, SectionKind::Update, Role::Parameter), parameters);
    assert_eq!(live(&config, SectionKind::First, Role::Gradient), factors + tables[0]);
    assert!(trace(&config).losses.iter().all(|loss| loss.is_finite()));
}

/// Each adapter drops elements of its own in training: backward keeps its input after dropout in place of the shared one.
#[test]
fn dropout_of_adapters_keeps_an_input_for_each() {
    let mut config = adapted(&["attention.q", "attention.v", "mlp.up"], BASES[0]);
    let kept = |config: &RunConfig| {
        let program = program(config);
        live_in(
            &program,
            Pool::Device,
            SectionKind::First,
            Role::Activation,
            launches("cross-entropy-with-gradient"),
        )
    };
    let dropouts = |config: &RunConfig, kind| {
        let program = program(config);
        let sections = program.sections.iter().filter(|section| section.kind == kind);
        sections
            .flat_map(|section| &section.code)
            .filter(|instruction| launches("dropout")(instruction))
            .count()
    };
    let (plain, without) = (kept(&config), trace(&config));
    config.strategy.lora.as_mut().unwrap().dropout = 0.5;
    assert_eq!(kept(&config), plain + L * 4 * N * C);
    // Forward and backward, except the gradient of the first block's input, which nothing needs.
    assert_eq!(dropouts(&config, SectionKind::First), 3 * L as usize + 3 * L as usize - 2);
    assert_eq!(dropouts(&config, SectionKind::Evaluation), 0);
    let with = trace(&config);
    // B is zero at first.
    assert_eq!(with.losses[0], without.losses[0]);
    assert_ne!(with.losses[1], without.losses[1]);
    config.strategy.recompute = Recompute::Block;
    assert_eq!(trace(&config), with);
}

#[test]
fn rslora_scales_by_the_root_of_the_rank() {
    let lora = Lora::new(16, 8.0, Vec::new());
    assert_eq!((lora.factor(), Lora { rslora: true, ..lora }.factor()), (0.5, 2.0));
}

/// Peak live bytes of casts in a section.
fn peak_cast_bytes(program: &Program, kind: SectionKind) -> u64 {
    let section = program.sections.iter().position(|section| section.kind == kind).unwrap();
    let live = (0..program.sections[section].code.len()).map(|instruction| {
        let position = Position { section: section as u32, instruction: instruction as u32 };
        let values = live_at(program, &testing::target(), Pool::Device, position);
        values.iter().filter(|value| value.role == Role::Cast).map(|value| value.bytes).sum()
    });
    live.max().unwrap()
}

/// In initialisation, forward, backward and evaluation.
#[test]
fn base_is_dequantized_one_layer_at_a_time() {
    let largest = 4 * 4 * C * C;
    for base in &BASES[1..] {
        for recompute in [Recompute::None, Recompute::Block] {
            let mut config = adapted(&["*"], *base);
            config.strategy.recompute = recompute;
            let program = program(&config);
            for kind in [SectionKind::Start, SectionKind::First, SectionKind::Evaluation] {
                assert_eq!(peak_cast_bytes(&program, kind), largest, "{base:?} in {}", kind.name());
            }
            config.strategy.precision = Precision::Bf16;
            let program = super::strategies::program(&config);
            let last = launches("cross-entropy-with-gradient");
            let live = live_in(&program, Pool::Device, SectionKind::First, Role::Cast, last);
            // Casts of biases, the head's table and the factors are kept until backward has read them.
            let plain = 2 * (L * (WEIGHTS + 8 * C) + V * C);
            assert!(live < plain - L * WEIGHTS, "{live} of {plain}");
        }
    }
    assert_eq!(peak_cast_bytes(&program(&adapted(&["*"], BASES[0])), SectionKind::First), 0);
}

#[test]
fn lora_adds_flops_of_factors_and_saves_those_of_weight_gradients() {
    let plain = work(&testing::small()).0;
    let trained = |layers: &[(u64, u64)]| layers.iter().map(|(inner, out)| R * (inner + out)).sum::<u64>();
    // Gradients of weights, including the head's table, and of the first layer's input.
    let saved = L * 2 * N * WEIGHTS + 2 * N * V * C + 2 * N * 3 * C * C;
    // Each factor has a forward matmul, a gradient and an input gradient, except the input gradient of the first.
    let added = 3 * 2 * N * L * trained(&LAYERS) - 2 * N * R * C;
    for base in BASES {
        let (counts, effects) = work(&adapted(&["*"], base));
        assert_eq!(counts.flops, plain.flops + 2 * added - 2 * saved, "{base:?}");
        assert_eq!(counts.trained_parameters, 2 * L * trained(&LAYERS));
        // Forward and backward; the first layer needs no input gradient.
        let times = 4 * L + 4 * L - 1;
        let codes = matches!(base.0, LoraBase::Int8 | LoraBase::Nf4);
        let halves = matches!(base.0, LoraBase::Bf16 | LoraBase::Fp16);
        assert_eq!(counts.dequantized, if codes { 2 * times } else { 0 }, "{base:?}");
        assert_eq!(counts.casts, if halves { 2 * times + 4 * L } else { 0 }, "{base:?}");
        let expected = match base.0 {
            LoraBase::Params | LoraBase::Fp32 => String::new(),
            LoraBase::Bf16 | LoraBase::Fp16 => format!(", {times} casts"),
            LoraBase::Int8 | LoraBase::Nf4 => format!(", {times} weights dequantized"),
        };
        assert_eq!(effects, format!("34.2k parameters without gradients{expected}"));
    }
    // Backward ends at the first factor.
    let (counts, _) = work(&adapted(&["mlp.up"], BASES[2]));
    assert_eq!(counts.dequantized, 2 * (4 * L + 4 * (L - 1) + 1));
    // Recomputation of a block needs all of its matmuls but the last.
    let mut config = adapted(&["*"], BASES[2]);
    config.strategy.recompute = Recompute::Block;
    assert_eq!(work(&config).0.dequantized, 2 * (4 * L + 4 * L - 1 + 3 * L));
}

/// Codes and scales are transferred, not dequantized numbers.
#[test]
fn offloaded_base_is_transferred_as_codes() {
    let travel = |base| {
        let mut config = adapted(&["*"], base);
        config.strategy.offload.parameters = true;
        work(&config).0.bytes_to_device
    };
    // Forward and backward, except the first layer's weight in backward.
    let (numbers, rows) = (2 * L * WEIGHTS - 3 * C * C, 2 * L * 9 * C - 3 * C);
    assert_eq!(travel(BASES[0]) - travel(BASES[2]), 2 * (3 * numbers - 4 * rows));
    assert_eq!(travel(BASES[0]) - travel(BASES[1]), 2 * 2 * numbers);
}

/// Only the factors change.
#[test]
fn base_is_not_trained() {
    for base in BASES {
        let config = adapted(&["mlp"], base);
        let program = program(&config);
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        let before = numbers(&program, &mut engine);
        for step in 0..STEPS {
            let batch = batch(&config, step, config.train.batch_size);
            engine.step(&batch, &config.numbers(step + 1)).unwrap();
        }
        let after = numbers(&program, &mut engine);
        engine.close().unwrap();
        for (name, numbers) in &before {
            assert_eq!(after[name] != *numbers, name.contains("lora"), "{name} of {base:?}");
        }
        assert!(before.keys().any(|name| name == "blocks.1.mlp.up.lora_A"));
        for parameter in &program.parameters {
            let (name, dtype) = (program.full_name(parameter.value), program.ty(parameter.value).dtype);
            let is_stored =
                name.starts_with("blocks.") && name.ends_with(".weight") && !name.contains("norm");
            assert_eq!(dtype != DType::F32, is_stored && base.0 != LoraBase::Params, "{name} of {base:?}");
        }
    }
}

/// An explicit `lora.base` overrides `params`; without one, the base is stored as `params`.
#[test]
fn explicit_base_overrides_params() {
    for params in [StorageDtype::Fp32, StorageDtype::Bf16, StorageDtype::Fp16] {
        for (base, expected) in [
            (LoraBase::Params, params.dtype()),
            (LoraBase::Fp32, DType::F32),
            (LoraBase::Bf16, DType::BF16),
            (LoraBase::Fp16, DType::F16),
            (LoraBase::Int8, DType::U8),
        ] {
            let mut config = adapted(&["mlp"], (base, false));
            (config.strategy.params, config.strategy.gradient_dtype) = (params, params);
            config.strategy.precision = match params {
                StorageDtype::Fp32 => Precision::Fp32,
                StorageDtype::Bf16 => Precision::Bf16,
                StorageDtype::Fp16 => Precision::Fp16,
            };
            let program = program(&config);
            for parameter in &program.parameters {
                let name = program.full_name(parameter.value);
                let of_base =
                    name.starts_with("blocks.") && name.ends_with(".weight") && !name.contains("norm");
                let dtype = if of_base { expected } else { params.dtype() };
                assert_eq!(program.ty(parameter.value).dtype, dtype, "{name} of {base:?} beside {params:?}");
            }
            assert!(trace(&config).losses.iter().all(|loss| loss.is_finite()), "{base:?} beside {params:?}");
        }
    }
}
