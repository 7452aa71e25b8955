//! Configurations, devices and random cases for tests.

pub mod cases;
pub mod choice;
pub mod forward;
pub mod keys;
pub mod models;
pub mod mutation;
pub mod pairwise;
mod random_batch;
pub mod readers;
mod reusing_allocator;
mod sequential;
mod transformers;

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::{Just, Strategy as Any, any, prop_oneof};
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use base::units::Bytes;
pub use cases::{combinations, full, random_cases, seed, tenth};
use choice::{Choice, any_choice};
use compile::{Program, RecomputePlan, Violation};
use device::{
    CpuDevice, CudaDevice, Delay, Device, DeviceKind, RankGroup, Target, emulate_delay, open as open_device,
};
use graph::Graphs;
use keys::{BATCH_SIZE, KEYS, OPTIMIZERS, UNSAID, Updates};
/// Tests only train and predict verified programs.
pub use plan::compile_verified as compile;
use plan::{ParetoFronts, expand};
pub use random_batch::random_batch;
pub use reusing_allocator::ReusingAllocator;
use spec::*;

/// The device kind of tests: with `RUNNER_TEST_DEVICE=cuda` a GPU, or the emulated CUDA stack.
static KIND: LazyLock<DeviceKind> = LazyLock::new(|| match std::env::var("RUNNER_TEST_DEVICE").as_deref() {
    Err(_) | Ok("cpu") => DeviceKind::Cpu,
    Ok("cuda") => DeviceKind::Cuda,
    Ok(other) => panic!("RUNNER_TEST_DEVICE is `{other}`: use `cpu` or `cuda`"),
});

pub fn on_cuda() -> bool {
    *KIND == DeviceKind::Cuda
}

/// A synthetic target.
pub fn target() -> Target {
    Target {
        name: "test".to_owned(),
        kind: *KIND,
        // Small operations on several threads mostly wait for each other; tests of threads override this.
        threads: 1,
        alignment: Bytes(256),
        page: Bytes(4096),
        product_workspace: Bytes(1 << 20),
        context: Bytes(0),
        communicator: None,
        memory: Bytes(1 << 40),
        limited: false,
        host_memory: None,
        figures: device::Figures::Measured,
        rank: 0,
        capability: None,
    }
}

/// Opens the device that tests run on.
pub fn device(target: Target) -> Box<dyn Device> {
    open_device(&target).expect("the test device can be opened")
}

/// A device that delays the work of one queue for as long as events permit.
pub fn delayed_device(target: Target, delay: Delay) -> Box<dyn Device> {
    match target.kind {
        DeviceKind::Cpu => {
            Box::new(CpuDevice::with(target, Some(delay), None).expect("threads can be started"))
        }
        DeviceKind::Cuda => {
            emulate_delay(Some(delay));
            let device = device(target);
            emulate_delay(None);
            device
        }
    }
}

/// The device of one of several ranks, each on a thread of its own; on CUDA, each with a card. All delay the same queue, if
/// any.
pub fn rank_device(target: Target, delay: Option<Delay>, group: RankGroup) -> Box<dyn Device> {
    match target.kind {
        DeviceKind::Cpu => {
            Box::new(CpuDevice::with(target, delay, Some(group)).expect("threads can be started"))
        }
        DeviceKind::Cuda => {
            emulate_delay(delay);
            let card = group.rank().index;
            Box::new(CudaDevice::of_rank(target, card, group).expect("there is a card for each rank"))
        }
    }
}

/// The number of tokens in the tests' data where it is loaded whole: the training tokens and some more.
pub const TOKENS: usize = 1 << 13;

/// The recompute plan of a strategy.
pub fn recompute_plan(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
) -> Result<RecomputePlan, Violation> {
    Ok(ParetoFronts::default().recompute_plan(graphs, config, target)?.0)
}

/// Compiles forward passes that are not built from a model.
pub fn compile_graphs(graphs: &Graphs, config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    compile::compile(
        graphs,
        config,
        target,
        &recompute_plan(graphs, config, target)?,
        compile::Verification::AfterEveryPass,
    )
}

/// Two layers, two heads, 16 positions, four sequences a step.
pub fn small() -> RunConfig {
    RunConfig {
        model: Model::Transformer(Transformer::new(2, 32, 2, 16)),
        data: Data::Text(Text::new(vec![PathBuf::from("/nowhere")], 0.9)),
        train: Train {
            batch_size: 4,
            clip_norm: Some(1.0),
            seed: 7,
            shuffle: false,
            last_batch: LastBatch::Drop,
            optimizer: Optimizer::AdamW(AdamW {
                lr: 1e-2,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.1,
                decay: Decay::Matrices,
                groups: Vec::new(),
            }),
            schedule: Schedule::default(),
        },
        evaluation: Some(Evaluation { every: 2, batches: 2, ..Evaluation::default() }),
        measure: Measure { warmup_steps: 1, steps: 3, ..Measure::default() },
        strategy: Strategy::default(),
        data_len: Some(TOKENS),
        lengths: None,
        all_packed: None,
    }
}

/// Text from a nonexistent path, with this arrangement of documents.
pub fn of_documents(documents: DocumentArrangement) -> Data {
    Data::Text(Text { documents, ..Text::new(vec![PathBuf::from("/nowhere")], 0.9) })
}

/// A run with other values of its strategy's keys, parsed like every experiment. Unset keys are removed.
pub fn with(config: &RunConfig, choice: &Choice) -> Result<RunConfig, spec::Error> {
    let unset = |line: &&str| {
        KEYS.iter()
            .any(|key| choice.value(key.name) == UNSAID && line.starts_with(&format!("{} = ", key.name)))
    };
    let toml = config.to_toml("run", "plain");
    let set: Vec<&str> = toml.lines().filter(|line| !unset(line)).collect();
    changed(&set.join("\n"), &choice.settings())
}

/// A run with another optimizer, in experiment syntax.
pub fn with_optimizer(config: &RunConfig, updates: Updates) -> RunConfig {
    // Ranks divide tensors, which some optimizers need whole.
    let needs_tensors = ["muon", "adafactor"].iter().any(|name| updates[0].contains(name));
    let updates = if config.shards_states() && needs_tensors { OPTIMIZERS[0] } else { updates };
    let settings: Vec<String> = updates.iter().map(|update| format!("train.{update}")).collect();
    let read = changed(&config.to_toml("run", "plain"), &settings);
    let read = read.unwrap_or_else(|error| panic!("{updates:?}: {error}"));
    RunConfig { data_len: config.data_len, ..read }
}

/// The run of a one-run experiment, with overrides.
pub fn changed(toml: &str, settings: &[String]) -> Result<RunConfig, spec::Error> {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("run.toml");
    std::fs::write(&file, toml).expect("a file for the test");
    let mut experiment = expand(&file, settings, &|_| None)?;
    Ok(experiment.points.remove(0).config.expect("an invalid one-run experiment fails to expand"))
}

/// The small run with other values of its strategy's keys.
pub fn small_with(choice: &Choice) -> RunConfig {
    let mut config = small();
    config.train.batch_size = BATCH_SIZE;
    let config = with(&config, choice).unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    models::with_data(RunConfig { data_len: Some(TOKENS), ..config })
}

/// These values of these keys, by position, with the values that they require of other keys if they are compatible;
/// otherwise defaults.
pub fn choice(values: &[(usize, usize)]) -> Choice {
    let with_needs = pairwise::legal(KEYS, values);
    let mut choice = Choice::plain();
    values.iter().for_each(|&(key, value)| choice.0[key] = value);
    let filled = with_needs.into_iter().flatten().enumerate();
    filled.for_each(|(key, value)| choice.0[key] = value.unwrap_or(0));
    choice
}

/// Combinations that cover every pair of values of different keys.
pub fn pairwise() -> Vec<Choice> {
    let mut keys = KEYS.to_vec();
    if on_cuda() {
        keys[keys::position(KEYS, keys::MODEL)].values = models::ON_GPU;
        let ranks = &mut keys[keys::position(KEYS, keys::PARALLEL)];
        ranks.values = ranks.values.split_at(1).0;
    }
    pairwise::pairwise(&keys)
}

/// Random combinations, reproducible by seed.
pub fn sample(count: usize) -> Vec<Choice> {
    let mut runner = TestRunner::new(random_cases(count));
    let choice = any_choice();
    let mut draw = || choice.new_tree(&mut runner).expect("nothing is rejected").current();
    (0..count).map(|_| draw()).collect()
}

/// The number of leading values of `recompute` that are not budgets.
pub const RECOMPUTED_WITHOUT_SEARCH: usize = 7;

/// Any run with a model of two to four layers. Sizes are small, so that different dimensions are often equal: a context
/// as long as the embedding is wide, one head, one sample.
pub fn any_config() -> impl Any<Value = RunConfig> {
    let train = (0..=9usize, any::<bool>());
    let data = (0..100u64, select(DocumentArrangement::ALL));
    // A budget search compiles hundreds of programs, so few runs include one.
    let searches = (0..8usize, 0..RECOMPUTED_WITHOUT_SEARCH);
    let all = (train, any_choice(), 0..OPTIMIZERS.len(), data, searches);
    all.prop_flat_map(|(train, mut choice, optimizer, (seed, documents), (searches, instead))| {
        let (more, evaluates) = train;
        let recompute = keys::position(KEYS, "recompute");
        if searches > 0 && !full() && choice.0[recompute] >= RECOMPUTED_WITHOUT_SEARCH {
            choice.0[recompute] = instead;
        }
        let kind = small_with(&choice.plain_of_model()).model;
        let drawn = choice.value("input_dtype").trim_matches('"');
        let drawn = InputDtype::ALL.iter().copied().find(|dtype| dtype.keyword() == drawn);
        let mut config = with_optimizer(&small_with(&choice.of_own_model()), OPTIMIZERS[optimizer]);
        config.train.batch_size = (config.strategy.accumulate + more).max(config.ranks());
        config.train.clip_norm = config.train.clip_norm.map(|_| 0.5);
        config.train.seed = seed;
        config.evaluation = config.evaluation.filter(|_| evaluates);
        models::any_alike(&kind).prop_map(move |model| {
            let is_held = config.strategy.loader.source != DataResidence::Stream;
            let sees_all = model.transformer().is_some_and(|model| !model.causal);
            let documents = if sees_all || is_held { DocumentArrangement::Joined } else { documents };
            let mut config = RunConfig { data: of_documents(documents), ..config.clone() };
            if model.sequential().is_some_and(|model| model.ids().is_none()) {
                config.strategy.input_dtype = drawn.unwrap_or(InputDtype::Fp32);
            }
            with_possible_ranks(models::with_model(config, model))
        })
    })
}

/// The run on one device if its other keys allow no ranks.
pub fn with_possible_ranks(mut config: RunConfig) -> RunConfig {
    if RANK_CONFLICTS.iter().any(|conflict| (conflict.check)(&config).is_some()) {
        config.strategy.parallel = Parallel::default();
    }
    config
}

/// A run with a modified transformer.
pub fn reshaped(mut config: RunConfig, change: impl FnOnce(&mut Transformer)) -> RunConfig {
    let mut model = config.model.transformer().expect("tests reshape transformers").clone();
    let before = model.clone();
    change(&mut model);
    // Values that default to the model's other sizes follow them here too.
    let Transformer { d_model, heads, .. } = model;
    if before.d_ff == 4 * before.d_model && model.d_ff == before.d_ff {
        model.d_ff = 4 * d_model;
    }
    if before.kv_heads == before.heads && model.kv_heads == before.kv_heads {
        model.kv_heads = heads;
    }
    if before.head_dim * before.heads == before.d_model && model.head_dim == before.head_dim {
        model.head_dim = d_model / heads;
    }
    config.model = Model::Transformer(model);
    config
}

/// Targets that vary every property that memory depends on.
pub fn any_target() -> impl Any<Value = Target> {
    let kind = prop_oneof![Just(DeviceKind::Cpu), Just(DeviceKind::Cuda)];
    let workspace = prop_oneof![Just(0u64), Just(1 << 12), Just(1 << 20)];
    (kind, 1..=4usize, 6..=9u32, 12..=14u32, workspace).prop_map(
        |(kind, threads, alignment, page, workspace)| Target {
            kind,
            threads,
            alignment: Bytes(1 << alignment),
            page: Bytes(1 << page),
            product_workspace: Bytes(workspace),
            ..target()
        },
    )
}
