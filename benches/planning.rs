//! What planning costs, part by part: `cargo bench --bench planning`. Figures, never assertions.
//!
//! The model is GPT-2 124M, the sweep one whose runs all differ in memory.

use std::path::{Path, PathBuf};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use runner::compile::{Template, compile, verify};
use runner::device::{DeviceKind, Target};
use runner::memory::predict;
use runner::plan::{self, Experiment, Purpose};
use runner::spec::RunConfig;
use runner::units::Bytes;

fn main() {
    divan::main();
}

/// The strategies of the shipped experiment, by their labels.
const STRATEGIES: [&str; 4] = ["plain", "recompute", "accumulate/accumulate=8", "recompute-accumulate"];

fn experiment(overrides: &[String]) -> Experiment {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt2-124m.toml");
    plan::expand(&file, overrides, &|_| None).expect("the shipped experiment is right")
}

/// Batch sizes and contexts so that with the experiment's nine strategies there are at least this many runs.
fn sweep(runs: usize) -> Vec<String> {
    let points = runs.div_ceil(9);
    let batches: Vec<usize> = (1..=points.min(50)).map(|batch| 8 * batch).collect();
    let contexts: Vec<usize> = (0..points.div_ceil(batches.len())).map(|index| 1024 - index).collect();
    vec![
        format!("sweep.grid.\"train.batch_size\"={batches:?}"),
        format!("sweep.grid.\"model.transformer.context\"={contexts:?}"),
    ]
}

fn config(strategy: &str) -> RunConfig {
    let points = experiment(&[]).points;
    let point = points.into_iter().find(|point| point.strategy == strategy);
    point.and_then(|point| point.config.ok()).expect("the shipped experiment has it")
}

/// A card of 80 GiB, the same on every machine.
fn target() -> Target {
    Target {
        name: "a card".to_owned(),
        kind: DeviceKind::Cuda,
        capability: None,
        threads: 1,
        alignment: Bytes(256),
        page: Bytes(2 << 20),
        product_workspace: Bytes(32 << 20),
        context: Bytes(500 << 20),
        memory: Bytes(80 << 30),
        limited: false,
    }
}

#[divan::bench(args = [100, 10_000])]
fn expansion(bencher: Bencher, runs: usize) {
    let overrides = sweep(runs);
    let runs = experiment(&overrides).points.len();
    bencher.counter(ItemsCount::new(runs)).bench(|| experiment(black_box(&overrides)));
}

/// A program of the same structure gets the sizes of another run, and all of its storages their places.
#[divan::bench(args = STRATEGIES)]
fn resizing(bencher: Bencher, strategy: &str) {
    let (config, target) = (config(strategy), target());
    let mut template = Template::new(&config, &target).expect("it compiles");
    bencher.counter(ItemsCount::new(1usize)).bench_local(|| template.resize(black_box(&config)));
}

/// Every pass, and the verifier after each.
#[divan::bench(args = STRATEGIES)]
fn compilation(bencher: Bencher, strategy: &str) {
    let (config, target) = (config(strategy), target());
    bencher.counter(ItemsCount::new(1usize)).bench(|| compile(black_box(&config), &target));
}

#[divan::bench(args = STRATEGIES)]
fn verification(bencher: Bencher, strategy: &str) {
    let program = compile(&config(strategy), &target()).expect("it compiles");
    bencher.counter(ItemsCount::new(1usize)).bench(|| verify(black_box(&program)));
}

#[divan::bench(args = STRATEGIES)]
fn prediction(bencher: Bencher, strategy: &str) {
    let target = target();
    let program = compile(&config(strategy), &target).expect("it compiles");
    bencher.counter(ItemsCount::new(1usize)).bench(|| predict(black_box(&program), &target));
}

/// From expanded points to predictions, with the largest micro-batch that fits and the keys without effect.
#[divan::bench(args = [100, 1000, 10_000], sample_count = 5)]
fn whole_plan(bencher: Bencher, runs: usize) {
    let (overrides, target) = (sweep(runs), target());
    let count = experiment(&overrides).points.len();
    bencher
        .counter(ItemsCount::new(count))
        .with_inputs(|| experiment(&overrides))
        .bench_values(|experiment| plan::plan(experiment, &target, Purpose::Predict, &|_| String::new()));
}
