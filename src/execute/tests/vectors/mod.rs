//! Compares the engine with PyTorch: five steps from the same parameters on the same batches. Parameters, batches and
//! PyTorch's results are committed as test vectors.

use std::path::Path;

use safetensors::SafeTensors;

use crate::engine::Engine;
use base::units::Bytes;
use compile::{Parameter, Program};
use data::{Batch, Weights};
use device::to_f32;
use memory::Failure;
use ops::{Activation, DType, ValueId};
use spec::*;
use testing::compile;

/// Tolerances of losses and gradients: relative for a loss; for a tensor, the norm of the difference over the norm of
/// the tensor. (Elementwise relative errors are meaningless: a key bias's true gradient is zero.) In half precision the
/// two round at different points, so the tolerance follows from the dtype's significand; it doubles if the residual
/// stream is rounded, too.
fn tolerances(config: &RunConfig) -> [f64; 2] {
    match config.strategy.precision {
        Precision::Bf16 if config.strategy.residual == StorageDtype::Bf16 => [1e-4, 2f64.powi(-5)],
        Precision::Fp32 | Precision::Tf32 => [1e-5, 1e-5],
        Precision::Bf16 => [1e-4, 2f64.powi(-6)],
        Precision::Fp16 => [2e-5, 2f64.powi(-9)],
    }
}

const STEPS: usize = 5;

/// A folder of vectors.
#[derive(Clone, Copy)]
struct Vectors(&'static str);

/// One model with many strategies and optimizers.
const STRATEGIES: Vectors = Vectors("../../tests/reference/vectors");
/// Many models.
const MODELS: Vectors = Vectors("../../tests/reference/vectors/models");
/// Separate documents, padded or packed.
const DOCUMENTS: Vectors = Vectors("../../tests/reference/vectors/documents");
/// Models with dropout.
const DROPOUT: Vectors = Vectors("../../tests/reference/vectors/dropout");
/// Checkpoints, with the results of the library that saved them.
const CHECKPOINTS: Vectors = Vectors("../../tests/reference/vectors/hugging_face");

impl Vectors {
    fn read(self, name: &str) -> Tensors {
        Tensors(std::fs::read(Path::new(self.0).join(format!("{name}.safetensors"))).unwrap())
    }

    /// The initial parameters of a run. `None` if the model has weights of its own.
    fn initial(self, strategy: &str, config: &RunConfig) -> Option<Tensors> {
        if config.model.weights().is_some() {
            return None;
        }
        Some(match self.0 != STRATEGIES.0 {
            true => self.read(&format!("{strategy}-initial")),
            // LoRA runs have the same base with initial factors.
            false => self.read(if config.strategy.lora.is_some() { "initial-lora" } else { "initial" }),
        })
    }

    /// The batches of a run.
    fn batches(self, strategy: &str, config: &RunConfig) -> Vec<Batch> {
        match [DOCUMENTS.0, DROPOUT.0].contains(&self.0) {
            true => batches(&self.read(&format!("{strategy}-batches")), config),
            false => batches(&STRATEGIES.read("batches"), config),
        }
    }

    /// The runs, by strategy.
    fn runs(self) -> Vec<(String, RunConfig)> {
        let experiment = Path::new(self.0).join("experiment.toml");
        let experiment = plan::expand(&experiment, &[], &|_| None).unwrap();
        experiment.points.into_iter().map(|point| (point.strategy, point.config.unwrap())).collect()
    }

    fn run(self, strategy: &str) -> RunConfig {
        let found = self.runs().into_iter().find(|(name, _)| name == strategy);
        found.unwrap_or_else(|| panic!("there is no {strategy}")).1
    }
}

/// A file of tensors.
struct Tensors(Vec<u8>);

impl Tensors {
    fn all(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.all().tensor(name).unwrap_or_else(|_| panic!("there is no {name}")).data()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        let dtype = match self.all().tensor(name).unwrap_or_else(|_| panic!("there is no {name}")).dtype() {
            safetensors::Dtype::BF16 => DType::BF16,
            safetensors::Dtype::F32 => DType::F32,
            other => panic!("{name} is {other:?}"),
        };
        to_f32(dtype, self.bytes(name))
    }
}

/// The results of a run.
struct Trained {
    losses: Vec<f32>,
    /// Norms before clipping. `None` without clipping.
    norms: Vec<Option<f32>>,
    /// Gradients by name, as in the files: `<step>.<parameter>`.
    gradients: Vec<(String, Vec<f32>)>,
}

fn batches(file: &Tensors, config: &RunConfig) -> Vec<Batch> {
    let batch = |step: usize| {
        let bytes = |name| {
            let bytes = file.bytes(name);
            let size = bytes.len() / STEPS;
            &bytes[step * size..(step + 1) * size]
        };
        let mut batch = config.empty_batch(config.train.batch_size);
        for filled in batch.parts_mut() {
            filled.bytes.copy_from_slice(bytes(filled.part.name));
        }
        match config.model.draws() {
            true => batch.with("seeds", bytes("seeds").as_chunks::<4>().0.iter().copied()),
            false => batch,
        }
    };
    (0..STEPS).map(batch).collect()
}

/// Trains with freed memory poisoned.
fn train(config: &RunConfig, batches: &[Batch], initial: Option<&Tensors>) -> Trained {
    let program = compile(config, &testing::target()).unwrap();
    let stored = config.model.weights().map(|file| Weights::open(file).unwrap());
    let stored = stored.map(|weights| weights.matched(&graph::needed(&config.model)).unwrap());
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.set_weights(stored.as_ref());
    engine.start().unwrap();
    if let Some(initial) = initial {
        write_parameters(initial, &program, &mut engine);
    }
    let mut trained = Trained { losses: Vec::new(), norms: Vec::new(), gradients: Vec::new() };
    for (step, batch) in (1..).zip(batches) {
        let taken = step - engine.counts().skipped_steps as usize;
        engine.gradients(batch, &config.numbers(taken)).unwrap();
        let kept = (step == 1 || step == STEPS).then(|| gradients(&program, &mut engine, step));
        let report = engine.update().unwrap();
        // Gradients of an overflowed step are not compared.
        let overflowed = report.gradient_norm.is_some_and(|norm| !norm.is_finite());
        trained.gradients.extend(kept.into_iter().flatten().filter(|_| !overflowed));
        trained.losses.push(report.loss);
        trained.norms.push(report.gradient_norm);
    }
    engine.close().unwrap();
    trained
}

/// Writes the initial parameters. Parameters in 16 bits are only checked.
fn write_parameters(initial: &Tensors, program: &Program, engine: &mut Engine) {
    assert_eq!(initial.all().len(), program.parameters.len());
    for parameter in &program.parameters {
        let numbers = initial.f32(&program.full_name(parameter.value));
        if program.ty(parameter.value).dtype == DType::F32 {
            engine.write_value(parameter.value, &numbers).unwrap();
        } else {
            // A master weight may exist already, so only check that the parameter began as these numbers, rounded.
            let begun = numbers_of(program, engine, parameter.value);
            assert!(distance(&begun, &numbers) < 2f64.powi(-8));
        }
    }
}

fn gradients(program: &Program, engine: &mut Engine, step: usize) -> Vec<(String, Vec<f32>)> {
    let scale = engine.loss_scale().unwrap().unwrap_or(1.0);
    let read = |parameter: &Parameter| {
        let mut gradient = numbers_of(program, engine, parameter.gradient?);
        gradient.iter_mut().for_each(|number| *number /= scale);
        Some((format!("{step}.{}", program.full_name(parameter.value)), gradient))
    };
    program.parameters.iter().filter_map(read).collect()
}

/// The elements of a value in f32.
fn numbers_of(program: &Program, engine: &mut Engine, value: ValueId) -> Vec<f32> {
    let mut bytes = Vec::new();
    let read = engine.read(value, |piece| -> Result<(), Failure> {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    read.unwrap();
    to_f32(program.ty(value).dtype, &bytes)
}

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(&f, &e)| f64::from(f) - f64::from(e)));
    // The gradient of a LoRA factor is zero while the other factor is.
    if difference == 0.0 {
        return 0.0;
    }
    difference / norm(&mut expected.iter().map(|&value| f64::from(value)))
}

/// Messages for all losses, norms and gradients that differ from PyTorch's by more than the tolerance.
fn differences(vectors: Vectors, strategy: &str, config: &RunConfig) -> Vec<String> {
    let [of_loss, of_gradient] = tolerances(&vectors.run(strategy));
    let trained =
        train(config, &vectors.batches(strategy, config), vectors.initial(strategy, config).as_ref());
    let expected = vectors.read(strategy);
    let (losses, norms) = (expected.f32("losses"), expected.f32("gradient_norms"));
    assert_eq!([losses.len(), norms.len()], [STEPS; 2]);
    assert_eq!(expected.all().len(), 2 + trained.gradients.len());
    let mut distances = Vec::new();
    for step in 0..STEPS {
        let off = distance(&[trained.losses[step]], &[losses[step]]);
        distances.push((format!("{}.loss", step + 1), off, of_loss));
        match trained.norms[step] {
            Some(norm) if norm.is_finite() || norms[step].is_finite() => {
                distances.push((
                    format!("{}.norm", step + 1),
                    distance(&[norm], &[norms[step]]),
                    of_gradient,
                ));
            }
            _ => {}
        }
    }
    for (name, gradient) in &trained.gradients {
        distances.push((name.clone(), distance(gradient, &expected.f32(name)), of_gradient));
    }
    // NaN exceeds the tolerance, too.
    let messages = distances.iter().filter(|(_, distance, limit)| distance.is_nan() || distance > limit);
    messages.map(|(name, distance, _)| format!("{strategy}: {name} is off by {distance:.1e}")).collect()
}

#[test]
fn every_strategy_agrees_with_pytorch() {
    assert_all_agree_with_pytorch(STRATEGIES, 37);
}

#[test]
fn every_model_agrees_with_pytorch() {
    assert_all_agree_with_pytorch(MODELS, 22);
}

#[test]
fn every_checkpoint_agrees_with_its_library() {
    assert_all_agree_with_pytorch(CHECKPOINTS, 6);
}

/// The loss is the mean over all targets of a step, for any micro-batches and loss slices.
#[test]
fn separate_documents_agree_with_pytorch() {
    assert_all_agree_with_pytorch(DOCUMENTS, 4);
    for (strategy, config) in DOCUMENTS.runs() {
        let changes: [Change; 4] = [
            |config| config.strategy.accumulate = 2,
            |config| config.strategy.accumulate = 4,
            |config| config.strategy.loss_chunks = 5,
            |config| config.strategy.attention = Attention::Materialized,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut config = config.clone();
            change(&mut config);
            let found = differences(DOCUMENTS, &strategy, &config);
            assert!(found.is_empty(), "change {number}: {}", found.join("\n"));
        }
    }
}

/// The dropped elements do not depend on micro-batches or recomputation.
#[test]
fn dropout_agrees_with_pytorch() {
    assert_all_agree_with_pytorch(DROPOUT, 5);
    for (strategy, config) in DROPOUT.runs() {
        let changes: [Change; 5] = [
            |config| config.strategy.accumulate = 4,
            |config| config.strategy.recompute = Recompute::Block,
            |config| config.strategy.attention = Attention::Materialized,
            |config| config.strategy.offload.activations = ActivationOffload::From(Bytes(1)),
            |config| {
                config.strategy.attention = Attention::Materialized;
                config.strategy.recompute = Recompute::Block;
                config.strategy.accumulate = 2;
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut config = config.clone();
            change(&mut config);
            let found = differences(DROPOUT, &strategy, &config);
            assert!(found.is_empty(), "change {number}: {}", found.join("\n"));
        }
    }
}

#[test]
fn changed_dropout_is_noticed() {
    let changes: [(&str, Change); 3] = [
        ("rate of the embedding", |config| change_model(config, |model| model.dropout.embedding = 0.201)),
        ("rate of attention weights", |config| change_model(config, |model| model.dropout.attention = 0.301)),
        ("rate of residuals", |config| change_model(config, |model| model.dropout.residual = 0.251)),
    ];
    assert_noticed(DROPOUT, "gpt2", &changes);
}

#[test]
fn attention_between_documents_is_noticed() {
    for strategy in ["packed", "packed-llama"] {
        let config = DOCUMENTS.run(strategy);
        let mut batches = DOCUMENTS.batches(strategy, &config);
        for batch in &mut batches {
            batch.parts_mut().iter_mut().filter(|filled| filled.part.name == "starts").for_each(|filled| {
                filled.bytes.fill(0);
            });
        }
        let trained = train(&config, &batches, DOCUMENTS.initial(strategy, &config).as_ref());
        let expected = DOCUMENTS.read(strategy).f32("losses");
        assert!(distance(&trained.losses, &expected) > 1e-4, "{strategy}: {:?}", trained.losses);
    }
}

fn assert_all_agree_with_pytorch(vectors: Vectors, count: usize) {
    let runs = vectors.runs();
    assert_eq!(runs.len(), count);
    let found: Vec<String> =
        runs.iter().flat_map(|(strategy, config)| differences(vectors, strategy, config)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// 8 sequences as 3 + 3 + 2 and as 4 times 2; one batch in PyTorch.
#[test]
fn uneven_micro_batches_agree_with_pytorch() {
    for (vectors, strategy) in [
        (STRATEGIES, "plain"),
        (STRATEGIES, "recompute-unclipped"),
        (STRATEGIES, "sgd-nesterov"),
        (MODELS, "llama"),
    ] {
        for accumulate in [3, 5] {
            let mut config = vectors.run(strategy);
            config.strategy.accumulate = accumulate;
            let found = differences(vectors, strategy, &config);
            assert!(found.is_empty(), "accumulate = {accumulate}: {}", found.join("\n"));
        }
    }
}

type Change = fn(&mut RunConfig);

#[test]
fn changed_adamw_is_noticed() {
    let changes: [(&str, Change); 7] = [
        ("learning rate", |config| change_adamw(config, |adamw| adamw.lr *= 1.0001)),
        ("first moment", |config| change_adamw(config, |adamw| adamw.beta1 *= 1.0001)),
        ("second moment", |config| change_adamw(config, |adamw| adamw.beta2 *= 0.999)),
        ("epsilon", |config| change_adamw(config, |adamw| adamw.epsilon = 1e-6)),
        ("amount of decay", |config| change_adamw(config, |adamw| adamw.weight_decay *= 1.1)),
        ("extent of decay", |config| change_adamw(config, |adamw| adamw.decay = Decay::All)),
        ("clipping", |config| config.train.clip_norm = Some(1.001)),
    ];
    assert_noticed(STRATEGIES, "plain", &changes);
}

#[test]
fn changed_sgd_is_noticed() {
    let changes: [(&str, Change); 7] = [
        ("learning rate", |config| change_sgd(config, |sgd| sgd.lr *= 1.0002)),
        ("momentum", |config| change_sgd(config, |sgd| sgd.momentum *= 1.001)),
        ("kind of momentum", |config| change_sgd(config, |sgd| sgd.nesterov = false)),
        ("amount of decay", |config| change_sgd(config, |sgd| sgd.weight_decay *= 1.1)),
        ("extent of decay", |config| change_sgd(config, |sgd| sgd.decay = Decay::All)),
        ("clipping", |config| config.train.clip_norm = Some(1.001)),
        ("optimizer", |config| config.train.optimizer = STRATEGIES.run("plain").train.optimizer),
    ];
    assert_noticed(STRATEGIES, "sgd-nesterov", &changes);
}

#[test]
fn changed_schedule_is_noticed() {
    let cosine = |warmup, total, floor| Schedule::Cosine(Cosine { warmup, total: Some(total), floor });
    assert_eq!(STRATEGIES.run("cosine").train.schedule, cosine(2, 8, 0.2));
    let changes: [(&str, Change); 5] = [
        ("warm-up", |config| config.train.schedule = Schedule::Constant(Constant { warmup: 3 })),
        ("length", |config| change_cosine(config, |cosine| cosine.total = Some(9))),
        ("floor", |config| change_cosine(config, |cosine| cosine.floor = 0.21)),
        ("beginning", |config| change_cosine(config, |cosine| cosine.warmup = 1)),
        ("shape", |config| {
            config.train.schedule = Schedule::Linear(Linear { warmup: 2, total: Some(8), floor: 0.2 });
        }),
    ];
    assert_noticed(STRATEGIES, "cosine", &changes);
}

#[test]
fn changed_group_is_noticed() {
    let changes: [(&str, Change); 5] = [
        ("learning rate", |config| change_adamw(config, |adamw| adamw.groups[0].lr = Some(1.001e-3))),
        ("amount of decay", |config| {
            change_adamw(config, |adamw| adamw.groups[2].weight_decay = Some(0.55));
        }),
        ("extent of decay", |config| change_adamw(config, |adamw| adamw.groups[2].weight_decay = None)),
        ("match", |config| change_adamw(config, |adamw| adamw.groups[3].parameters.push_str(".mlp"))),
        ("order", |config| change_adamw(config, |adamw| adamw.groups.swap(0, 3))),
    ];
    assert_noticed(STRATEGIES, "groups", &changes);
}

#[test]
fn changed_adafactor_is_noticed() {
    let changes: [(&str, Change); 7] = [
        ("learning rate", |config| change_adafactor(config, |adafactor| adafactor.lr = 0.101)),
        ("exponent", |config| change_adafactor(config, |adafactor| adafactor.beta2_decay = -0.51)),
        ("epsilon", |config| change_adafactor(config, |adafactor| adafactor.epsilon = 1e-3)),
        ("scale of small parameters", |config| {
            change_adafactor(config, |adafactor| adafactor.scale_epsilon = 0.011);
        }),
        ("clipping", |config| change_adafactor(config, |adafactor| adafactor.clip_threshold = 1.0)),
        ("group", |config| change_adafactor(config, |adafactor| adafactor.groups[0].lr = Some(1.01e-2))),
        ("decay", |config| {
            change_adafactor(config, |adafactor| adafactor.groups[1].weight_decay = Some(0.21));
        }),
    ];
    assert_noticed(STRATEGIES, "adafactor-groups", &changes);
}

#[test]
fn changed_muon_is_noticed() {
    let changes: [(&str, Change); 9] = [
        ("learning rate", |config| change_muon(config, |muon| muon.lr = 1.001e-2)),
        ("learning rate of the rest", |config| change_muon(config, |muon| muon.adamw.lr = 3.003e-3)),
        ("momentum", |config| change_muon(config, |muon| muon.momentum = 0.951)),
        ("Nesterov momentum", |config| change_muon(config, |muon| muon.nesterov = false)),
        ("weight decay", |config| change_muon(config, |muon| muon.weight_decay = 0.11)),
        ("number of iterations", |config| change_muon(config, |muon| muon.ns_steps = 4)),
        ("least norm", |config| change_muon(config, |muon| muon.epsilon = 1.0)),
        ("adjustment", |config| change_muon(config, |muon| muon.adjust = Adjust::MatchRmsAdamW)),
        ("epsilon of the rest", |config| change_muon(config, |muon| muon.adamw.epsilon = 1e-4)),
    ];
    assert_noticed(STRATEGIES, "muon", &changes);
    let changes: [(&str, Change); 3] = [
        ("rate of a group", |config| change_muon(config, |muon| muon.groups[0].lr = Some(5.05e-3))),
        ("decay of a group", |config| change_muon(config, |muon| muon.groups[0].weight_decay = Some(0.31))),
        ("rate of another group", |config| change_muon(config, |muon| muon.groups[1].lr = Some(1.01e-2))),
    ];
    assert_noticed(STRATEGIES, "muon-groups", &changes);
}

fn change_cosine(config: &mut RunConfig, change: fn(&mut Cosine)) {
    let Schedule::Cosine(cosine) = &mut config.train.schedule else { panic!("the run has a cosine") };
    change(cosine);
}

#[test]
fn changed_states_are_noticed() {
    let changes: [(&str, Change); 3] = [
        ("dtype of states", |config| config.strategy.optimizer_state = OptimizerState::Fp32),
        ("quantized tensors", |config| config.strategy.quantize.from = 257),
        ("quantized tables", |config| config.strategy.quantize.embeddings = false),
    ];
    assert_noticed(STRATEGIES, "8bit", &changes);
}

#[test]
fn changed_model_is_noticed() {
    let changes: [(&str, Change); 6] = [
        ("base of rotations", |config| change_model(config, |model| model.rotary.base = 101.0)),
        ("scaling of rotations", |config| change_model(config, |model| model.rotary.scaling = None)),
        ("factor of the scaling", |config| change_scaling(config, |scaling| scaling.factor = 8.1)),
        ("range of the scaling", |config| change_scaling(config, |scaling| scaling.low = 0.9)),
        ("epsilon", |config| change_model(config, |model| model.norm_epsilon = 1e-5)),
        ("gate", |config| {
            change_model(config, |model| model.activation = MlpActivation::Gate(Activation::Gelu))
        }),
    ];
    assert_noticed(MODELS, "llama", &changes);
    let gelu: [(&str, Change); 1] = [("GELU", |config| {
        change_model(config, |model| model.activation = MlpActivation::Gate(Activation::GeluTanh))
    })];
    assert_noticed(MODELS, "geglu", &gelu);
    let windows: [(&str, Change); 3] = [
        ("window", |config| change_model(config, |model| model.window = Some(6))),
        ("block with global attention", |config| change_model(config, |model| model.global_every = None)),
        ("scale", |config| change_model(config, |model| model.attention_scale = Some(0.35))),
    ];
    assert_noticed(MODELS, "windows", &windows);
    let caps: [(&str, Change); 3] = [
        ("cap", |config| change_model(config, |model| model.attention_softcap = Some(0.51))),
        ("missing cap", |config| change_model(config, |model| model.attention_softcap = None)),
        ("scale", |config| change_model(config, |model| model.attention_scale = None)),
    ];
    assert_noticed(MODELS, "soft-capped", &caps);
    let ahead: [(&str, Change); 1] = [("mask", |config| change_model(config, |model| model.causal = true))];
    assert_noticed(MODELS, "not-causal", &ahead);
}

/// Asserts that a run with any of these changes does not agree with PyTorch's run without it.
fn assert_noticed(vectors: Vectors, strategy: &str, changes: &[(&str, Change)]) {
    for (what, change) in changes {
        let mut other = vectors.run(strategy);
        change(&mut other);
        let found = differences(vectors, strategy, &other);
        assert!(!found.is_empty(), "a change of the {what} makes no difference");
    }
}

fn change_adamw(config: &mut RunConfig, change: impl Fn(&mut AdamW)) {
    let Optimizer::AdamW(adamw) = &mut config.train.optimizer else { panic!("the run has AdamW") };
    change(adamw);
}

fn change_adafactor(config: &mut RunConfig, change: impl Fn(&mut Adafactor)) {
    let Optimizer::Adafactor(adafactor) = &mut config.train.optimizer else {
        panic!("the run has Adafactor")
    };
    change(adafactor);
}

fn change_muon(config: &mut RunConfig, change: impl Fn(&mut Muon)) {
    let Optimizer::Muon(muon) = &mut config.train.optimizer else { panic!("the run has Muon") };
    change(muon);
}

fn change_sgd(config: &mut RunConfig, change: impl Fn(&mut Sgd)) {
    let Optimizer::Sgd(sgd) = &mut config.train.optimizer else { panic!("the run has SGD") };
    change(sgd);
}

fn change_model(config: &mut RunConfig, change: impl FnOnce(&mut Transformer)) {
    *config = testing::reshaped(config.clone(), change);
}

fn change_scaling(config: &mut RunConfig, change: impl FnOnce(&mut RotaryScaling)) {
    change_model(config, |model| change(model.rotary.scaling.as_mut().expect("rotations are scaled")));
}
