//! Compares the engine with PyTorch: five steps from the same parameters on the same batches. Parameters, batches and
//! PyTorch's results are committed as test vectors.

mod changes;

use std::path::Path;

use safetensors::SafeTensors;

use crate::engine::Engine;
use base::units::Bytes;
use compile::{Parameter, Program};
use data::{Batch, Weights};
use device::to_f32;
use memory::Failure;
use ops::{DType, ValueId};
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

/// A change of a run's configuration.
type Change = fn(&mut RunConfig);

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
/// Layers in a list.
const SEQUENTIAL: Vectors = Vectors("../../tests/reference/vectors/sequential");
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
        match [DOCUMENTS.0, DROPOUT.0, SEQUENTIAL.0].contains(&self.0) {
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
        match config.draws() {
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
    assert_all_agree_with_pytorch(CHECKPOINTS, 22);
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

/// Each layer and each loss, also in uneven micro-batches, with segments and with modules recomputed.
#[test]
fn layers_in_a_list_agree_with_pytorch() {
    assert_all_agree_with_pytorch(SEQUENTIAL, 13);
    for (strategy, config) in SEQUENTIAL.runs() {
        let changes: [Change; 4] = [
            |config| config.strategy.accumulate = 3,
            |config| config.strategy.recompute = Recompute::Block,
            |config| config.strategy.recompute = Recompute::Segments(3),
            |config| config.strategy.loss_chunks = 3,
        ];
        // Micro-batches change the statistics of batch norm.
        let has_batch_norm = config.model.sequential().is_some_and(Sequential::has_batch_norm);
        for (number, change) in changes.iter().enumerate().skip(usize::from(has_batch_norm)) {
            let mut config = config.clone();
            change(&mut config);
            let found = differences(SEQUENTIAL, &strategy, &config);
            assert!(found.is_empty(), "change {number}: {}", found.join("\n"));
        }
    }
}

fn assert_all_agree_with_pytorch(vectors: Vectors, count: usize) {
    let runs = vectors.runs();
    assert_eq!(runs.len(), count);
    // On a GPU, experts are not supported.
    let has_experts =
        |config: &RunConfig| config.model.transformer().is_some_and(|model| model.experts.is_some());
    let trained = runs.iter().filter(|(_, config)| !(testing::on_cuda() && has_experts(config)));
    let found: Vec<String> =
        trained.flat_map(|(strategy, config)| differences(vectors, strategy, config)).collect();
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
