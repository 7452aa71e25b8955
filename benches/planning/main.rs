//! Benchmarks of the parts of planning: `cargo bench -p benches --bench planning`. They print figures and assert
//! nothing.

mod setup;

use compile::verify;
use device::DeviceKind;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use memory::{RunSchedule, predict};
use plan::Compiler;
use plan::Purpose;
use plan::compile;
use plan::compile_verified;
use spec::{AllocConf, Budget, Recompute};

use setup::{DEEP, config, deep_config, experiment, strategies, sweep, target};

fn main() {
    divan::main();
}

#[divan::bench(args = [100, 10_000])]
fn expansion(bencher: Bencher, runs: usize) {
    let overrides = sweep(runs);
    let runs = experiment(&overrides).points.len();
    bencher.counter(ItemsCount::new(runs)).bench(|| experiment(black_box(&overrides)));
}

/// Instantiates a program of the same structure at other sizes, including all offsets.
#[divan::bench(args = strategies())]
fn resizing(bencher: Bencher, strategy: &str) {
    let (config, target) = (config(strategy), target(DeviceKind::Cuda));
    let mut compiler = Compiler::new(&target);
    compiler.compile(&config).expect("it compiles");
    bencher.counter(ItemsCount::new(1usize)).bench_local(|| compiler.compile(black_box(&config)).is_ok());
}

/// All passes, and the verifier after the last.
#[divan::bench(args = strategies())]
fn compilation(bencher: Bencher, strategy: &str) {
    let (config, target) = (config(strategy), target(DeviceKind::Cuda));
    bencher.counter(ItemsCount::new(1usize)).bench(|| compile(black_box(&config), &target));
}

/// All passes, and the verifier after each, as for training.
#[divan::bench(args = strategies())]
fn compilation_verified(bencher: Bencher, strategy: &str) {
    let (config, target) = (config(strategy), target(DeviceKind::Cuda));
    bencher.counter(ItemsCount::new(1usize)).bench(|| compile_verified(black_box(&config), &target));
}

/// Models with many layers, on both kinds of device. Time should be linear in the number of layers.
#[divan::bench(args = deep(), sample_count = 3)]
fn deep_compilation(bencher: Bencher, (kind, name, layers): &(DeviceKind, &str, usize)) {
    let (config, target) = (deep_config(name, *layers), target(*kind));
    bencher.counter(ItemsCount::new(*layers)).bench(|| compile(black_box(&config), &target));
}

fn deep() -> Vec<(DeviceKind, &'static str, usize)> {
    let kinds = [DeviceKind::Cpu, DeviceKind::Cuda];
    let cases = kinds.into_iter().flat_map(|kind| DEEP.iter().map(move |(name, ..)| (kind, *name)));
    cases.flat_map(|(kind, name)| [1000, 4096].map(|layers| (kind, name, layers))).collect()
}

/// The recompute budget search for half of the memory: with GPT-2's 12 blocks, and with 80.
#[divan::bench(args = [12, 80], sample_count = 5)]
fn budget(bencher: Bencher, layers: usize) {
    let (mut config, target) = (deep_config("bf16", layers), target(DeviceKind::Cuda));
    config.strategy.recompute = Recompute::Budget(Budget::Share(0.5));
    bencher.counter(ItemsCount::new(layers)).bench(|| compile(black_box(&config), &target));
}

/// PyTorch's allocator requests of four steps, and their replay.
#[divan::bench(args = ["fp32", "bf16", "fp16"])]
fn pytorch_memory(bencher: Bencher, name: &str) {
    pytorch_of(bencher, &config(name));
}

/// 32 layers, as Llama 8B has.
#[divan::bench(args = ["fp32", "bf16"])]
fn pytorch_memory_of_32_layers(bencher: Bencher, name: &str) {
    pytorch_of(bencher, &deep_config(name, 32));
}

fn pytorch_of(bencher: Bencher, config: &spec::RunConfig) {
    let card = pytorch::Card::named("NVIDIA A100-SXM4-80GB").expect("a known card");
    bencher.counter(ItemsCount::new(1usize)).bench(|| {
        let sequence = pytorch::sequence(
            black_box(config),
            card,
            spec::TorchVersion::default(),
            spec::TorchOptions::default(),
        )?;
        Ok::<_, pytorch::NotCovered>(pytorch::replay(&sequence, None, AllocConf::default()))
    });
}

#[divan::bench(args = strategies())]
fn verification(bencher: Bencher, strategy: &str) {
    let program = compile(&config(strategy), &target(DeviceKind::Cuda)).expect("it compiles");
    bencher.counter(ItemsCount::new(1usize)).bench(|| verify(black_box(&program)));
}

#[divan::bench(args = strategies())]
fn prediction(bencher: Bencher, strategy: &str) {
    let target = target(DeviceKind::Cuda);
    let config = config(strategy);
    let (program, run_schedule) = (compile(&config, &target).expect("it compiles"), RunSchedule::of(&config));
    bencher.counter(ItemsCount::new(1usize)).bench(|| predict(black_box(&program), &target, run_schedule));
}

/// From expanded points to predictions, including the largest micro-batch that fits and the detection of keys without
/// effect.
#[divan::bench(args = [100, 1000, 10_000], sample_count = 5)]
fn whole_plan(bencher: Bencher, runs: usize) {
    let (overrides, target) = (sweep(runs), target(DeviceKind::Cuda));
    let count = experiment(&overrides).points.len();
    bencher.counter(ItemsCount::new(count)).with_inputs(|| experiment(&overrides)).bench_values(
        |experiment| plan::plan(experiment, &target, Purpose::Predict, &|_| Some(String::new())),
    );
}
