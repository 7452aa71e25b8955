//! Experiments for the planning benchmarks: the shipped GPT-2 124M, and a sweep whose runs all differ in memory.

use std::path::{Path, PathBuf};

use base::units::Bytes;
use device::{DeviceKind, Figures, Target};
use plan::Experiment;
use spec::RunConfig;

pub(crate) fn experiment(overrides: &[String]) -> Experiment {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut files = folders.map(|folder| folder.join("experiments/gpt2-124m.toml"));
    let file: PathBuf = files.find(|file| file.is_file()).expect("the experiment is shipped");
    plan::expand(&file, overrides, &|_| None).expect("the shipped experiment is valid")
}

/// The labels of the experiment's strategies.
pub(crate) fn strategies() -> Vec<String> {
    experiment(&[]).points.into_iter().map(|point| point.strategy).collect()
}

/// Overrides with enough batch sizes and contexts for at least `runs` runs.
pub(crate) fn sweep(runs: usize) -> Vec<String> {
    let points = runs.div_ceil(strategies().len());
    let batches: Vec<usize> = (1..=points.min(50)).map(|batch| 8 * batch).collect();
    let contexts: Vec<usize> = (0..points.div_ceil(batches.len())).map(|index| 1024 - index).collect();
    vec![
        format!("sweep.grid.\"train.batch_size\"={batches:?}"),
        format!("sweep.grid.\"model.transformer.context\"={contexts:?}"),
    ]
}

/// A run with one of the strategies.
pub(crate) fn config(strategy: &str) -> RunConfig {
    config_with(strategy, &[])
}

fn config_with(strategy: &str, overrides: &[String]) -> RunConfig {
    let points = experiment(overrides).points;
    let point = points.into_iter().find(|point| point.strategy == strategy);
    point.and_then(|point| point.config.ok()).expect("the shipped experiment contains the strategy")
}

/// Cases for deep models: name, strategy of the experiment, additional overrides.
pub(crate) const DEEP: &[(&str, &str, &[&str])] = &[
    ("fp32", "fp32", &[]),
    ("tf32", "tf32", &[]),
    ("bf16", "bf16", &[]),
    ("fp16", "fp16", &[]),
    ("graph", "graph", &[]),
    ("direct", "direct", &[]),
    ("accumulate", "bf16", &["defaults.accumulate=4"]),
    ("recompute", "recompute", &[]),
    ("recompute-accumulate", "recompute-accumulate", &[]),
    ("loss_chunks", "bf16", &["defaults.loss_chunks=8"]),
    ("release=scope", "bf16", &["defaults.release=\"scope\""]),
    ("release=step", "bf16", &["defaults.release=\"step\""]),
    ("gradients=zero", "bf16", &["defaults.gradients=\"zero\""]),
    ("evaluation_pass=grad", "bf16", &["defaults.evaluation_pass=\"grad\""]),
    ("sgd", "bf16", &["train.optimizer={ sgd = { lr = 0.1, momentum = 0.9 } }"]),
    ("accumulate+scope", "bf16", &["defaults.accumulate=4", "defaults.release=\"scope\""]),
    ("accumulate+zero", "bf16", &["defaults.accumulate=4", "defaults.gradients=\"zero\""]),
    ("recompute+scope", "recompute", &["defaults.release=\"scope\""]),
    ("fp32+recompute", "recompute", &["defaults.precision=\"fp32\""]),
    ("fp32+accumulate", "fp32", &["defaults.accumulate=4"]),
    (
        "all",
        "recompute-accumulate",
        &[
            "defaults.precision=\"fp16\"",
            "defaults.loss_chunks=8",
            "defaults.release=\"scope\"",
            "defaults.gradients=\"zero\"",
            "defaults.evaluation_pass=\"grad\"",
        ],
    ),
];

/// A run of one of these cases with `layers` layers.
pub(crate) fn deep_config(name: &str, layers: usize) -> RunConfig {
    let found = DEEP.iter().find(|(known, ..)| *known == name);
    let (_, strategy, overrides) = found.expect("names come from the list");
    let mut overrides: Vec<String> = overrides.iter().map(|&setting| setting.to_owned()).collect();
    overrides.push(format!("model.transformer.layers={layers}"));
    config_with(strategy, &overrides)
}

/// A GPU with 80 GiB, or a CPU, independent of the machine.
pub(crate) fn target(kind: DeviceKind) -> Target {
    Target {
        name: "a machine".to_owned(),
        kind,
        capability: None,
        threads: if kind == DeviceKind::Cuda { 1 } else { 2 },
        alignment: Bytes(256),
        page: Bytes(if kind == DeviceKind::Cuda { 2 << 20 } else { 4 << 10 }),
        product_workspace: Bytes(32 << 20),
        context: Bytes(500 << 20),
        communicator: None,
        memory: Bytes(80 << 30),
        limited: false,
        host_memory: None,
        figures: Figures::Measured,
        rank: 0,
    }
}
