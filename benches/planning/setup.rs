//! What planning is measured on: GPT-2 124M as shipped, and a sweep whose runs all differ in memory.

use std::path::{Path, PathBuf};

use runner::device::{DeviceKind, Target};
use runner::plan::{self, Experiment};
use runner::spec::RunConfig;
use runner::units::Bytes;

pub(crate) fn experiment(overrides: &[String]) -> Experiment {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt2-124m.toml");
    plan::expand(&file, overrides, &|_| None).expect("the shipped experiment is right")
}

/// The experiment's strategies, by their labels.
pub(crate) fn strategies() -> Vec<String> {
    experiment(&[]).points.into_iter().map(|point| point.strategy).collect()
}

/// Batch sizes and contexts so that with the experiment's strategies there are at least this many runs.
pub(crate) fn sweep(runs: usize) -> Vec<String> {
    let points = runs.div_ceil(strategies().len());
    let batches: Vec<usize> = (1..=points.min(50)).map(|batch| 8 * batch).collect();
    let contexts: Vec<usize> = (0..points.div_ceil(batches.len())).map(|index| 1024 - index).collect();
    vec![
        format!("sweep.grid.\"train.batch_size\"={batches:?}"),
        format!("sweep.grid.\"model.transformer.context\"={contexts:?}"),
    ]
}

/// A run of one of the strategies, with this many layers instead of its own where that is said.
pub(crate) fn config(strategy: &str, layers: Option<usize>) -> RunConfig {
    let layers: Vec<String> =
        layers.iter().map(|layers| format!("model.transformer.layers={layers}")).collect();
    let points = experiment(&layers).points;
    let point = points.into_iter().find(|point| point.strategy == strategy);
    point.and_then(|point| point.config.ok()).expect("the shipped experiment has it")
}

/// A card of 80 GiB, or a processor, the same on every machine.
pub(crate) fn target(kind: DeviceKind) -> Target {
    Target {
        name: "a machine".to_owned(),
        kind,
        capability: None,
        threads: if kind == DeviceKind::Cuda { 1 } else { 2 },
        alignment: Bytes(256),
        page: Bytes(2 << 20),
        product_workspace: Bytes(32 << 20),
        context: Bytes(500 << 20),
        memory: Bytes(80 << 30),
        limited: false,
    }
}
