//! Cost and savings of `init` and of stored weights, from the model's dimensions. Bitwise equality is tested in
//! `placement`.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::offload::{WEIGHTS, parameters};
use super::strategies::{program, with, work};
use super::{batch, hold};
use crate::dump::tensor_file::{TensorFile, TensorHeader};
use crate::engine::Engine;
use crate::metrics::Counts;
use base::units::Bytes;
use compile::{Action, Parameter, Program, SectionKind};
use data::{StoredParameters, Weights};
use device::{Delay, Device, Phase, Pool, Role, Usage};
use memory::{Failure, Prediction, RunSchedule, predict, rounded};
use spec::*;

fn started(init: Init, allocator: Allocator) -> RunConfig {
    with(|strategy| (strategy.init, strategy.allocator) = (init, allocator))
}

fn predicted(config: &RunConfig) -> Prediction {
    predict(&program(config), &testing::target(), RunSchedule::of(config))
}

fn at_start(usage: &Usage, role: Role) -> u64 {
    usage.phase_peak(Phase::Start).live[role]
}

/// Bytes of all parameters, each rounded as allocated by itself.
fn tensors(program: &Program) -> u64 {
    let bytes = |id| rounded(program, id, &testing::target());
    program.parameters.iter().map(|parameter| bytes(parameter.value)).sum()
}

/// Bytes of all parameter buckets, rounded as allocated.
fn buckets(program: &Program) -> u64 {
    let bytes = |id| rounded(program, id, &testing::target());
    program.buckets.iter().map(|bucket| bytes(bucket.parameters)).sum()
}

#[test]
fn host_init_holds_the_whole_model_on_the_host() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let config = started(Init::Host, allocator);
        let (program, found) = (program(&config), predicted(&config));
        let whole = tensors(&program);
        assert_eq!(at_start(&found.host, Role::Parameter), whole);
        assert_eq!(at_start(&found.pinned, Role::Parameter), 0, "the model is in pageable memory");
        assert_eq!(
            found.host.steady_peak().live[Role::Parameter],
            0,
            "the host's copy is freed after the transfer"
        );
        let plain = predicted(&started(Init::Device, allocator));
        for phase in Phase::ALL {
            let live = |found: &Prediction| found.device.phase_peak(phase).live;
            assert_eq!(live(&found), live(&plain), "device memory is that of `init = \"device\"`");
        }
        assert_eq!(at_start(&plain.host, Role::Parameter), 0);

        let (counts, effects) = work(&config);
        assert_eq!(counts.bytes_at_start, WEIGHTS);
        assert_eq!((counts.bytes_to_host, counts.bytes_to_device), (0, 0));
        assert!(effects.starts_with(&format!("{} copied at start-up", Bytes(WEIGHTS))), "{effects}");
    }
}

/// Offloaded parameters are initialised on the host in any case.
#[test]
fn offloaded_parameters_are_not_copied_at_start_up() {
    let mut config = started(Init::Host, Allocator::Arena);
    config.strategy.offload.parameters = true;
    let plain = RunConfig { strategy: Strategy { init: Init::Device, ..config.strategy.clone() }, ..config };
    let made = with(|strategy| (strategy.init, strategy.offload.parameters) = (Init::Host, true));
    assert_eq!(program(&made), program(&plain), "the key has no effect");
    assert_eq!(work(&made).0.bytes_at_start, 0);
    let [all, _] = parameters(&program(&made));
    assert_eq!(at_start(&predicted(&made).host, Role::Parameter), all);
}

/// Writes the initial parameters of a run to a file, as a dump does.
fn dump(config: &RunConfig, file: &Path) {
    let program = program(config);
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let entry = |id| TensorHeader::new(program.full_name(id), program.ty(id));
    let entries: Vec<TensorHeader> =
        program.parameters.iter().map(|parameter| entry(parameter.value)).collect();
    let mut written = TensorFile::create(file, &entries).unwrap();
    for parameter in &program.parameters {
        let write = |piece: &[u8]| -> Result<(), Failure> {
            written.write(piece).unwrap();
            Ok(())
        };
        engine.read(parameter.value, write).unwrap();
    }
    written.finish().unwrap();
}

/// The digest after `steps` steps. Asserts that memory is as predicted.
fn digest(config: &RunConfig, weights: Option<&StoredParameters>, steps: usize) -> String {
    let program = program(config);
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.set_weights(weights);
    engine.start().unwrap();
    hold(&mut engine, config).unwrap();
    for step in 0..steps {
        let batch = batch(config, step, config.train.batch_size);
        engine.step(&batch, &config.numbers(step + 1)).unwrap();
    }
    let predicted = predict(&program, &testing::target(), RunSchedule { steps, evaluations: None });
    for (home, usage) in [(Pool::Device, predicted.device), (Pool::Host, predicted.host)] {
        assert_eq!(engine.ledger().usage_at(home), &usage, "{:?}", config.strategy);
    }
    engine.digest().unwrap()
}

/// The same run with weights from a file.
fn from_file(config: &RunConfig, file: &Path) -> RunConfig {
    testing::reshaped(config.clone(), |model| model.weights = Some(file.to_owned()))
}

/// Checkpoint tensors of the small model.
fn stored(file: &Path) -> StoredParameters {
    Weights::open(file).unwrap().matched(&graph::needed(&testing::small().model)).unwrap()
}

/// A file with the initial parameters of another seed.
fn dumped() -> (TempDir, PathBuf, StoredParameters) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.safetensors");
    let mut other = testing::small();
    other.train.seed = 8;
    dump(&other, &file);
    let weights = stored(&file);
    (folder, file, weights)
}

#[test]
fn run_with_dumped_weights_continues_from_them() {
    let (_folder, file, weights) = dumped();
    let choices = testing::sample(12)
        .into_iter()
        .map(|choice| testing::small_with(&choice.of_own_model().of_one_rank()));
    let inits = [Init::Device, Init::Host, Init::Lazy].map(|init| started(init, Allocator::Direct));
    for mut config in inits.into_iter().chain(choices) {
        // LoRA factors are not in the file.
        config.strategy.lora = None;
        let plain = RunConfig { train: Train { seed: 8, ..config.train.clone() }, ..config.clone() };
        let stored = from_file(&config, &file);
        let [expected, found] = [(&plain, None), (&stored, Some(&weights))]
            .map(|(config, weights)| [0, 2].map(|steps| digest(config, weights, steps)));
        assert_eq!(found[0], expected[0], "{:?}", config.strategy);
        assert_ne!(found[0], digest(&config, None, 0), "{:?}", config.strategy);
        // Stochastic rounding depends on the seed.
        if config.strategy.rounding == Rounding::Nearest {
            assert_eq!(found[1], expected[1], "{:?}", config.strategy);
        }
    }
}

/// LoRA factors are drawn, the base is loaded: the first loss is that of the stored model.
#[test]
fn lora_starts_from_stored_weights() {
    let (_folder, file, weights) = dumped();
    let losses = |config: &RunConfig, weights| {
        let program = program(config);
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.set_weights(weights);
        engine.start().unwrap();
        let batch = batch(&testing::small(), 0, config.train.batch_size);
        [1, 2].map(|step| engine.step(&batch, &config.numbers(step)).unwrap().loss)
    };
    let expected = losses(&from_file(&testing::small(), &file), Some(&weights));
    let drawn = losses(&testing::small(), None);
    for (init, base) in
        [(Init::Device, LoraBase::Params), (Init::Host, LoraBase::Int8), (Init::Lazy, LoraBase::Nf4)]
    {
        let targets = vec!["attention.qkv".to_owned()];
        let lora = Lora { base, double_quantization: true, ..Lora::new(2, 4.0, targets) };
        let mut config = from_file(&testing::small(), &file);
        (config.strategy.init, config.strategy.lora) = (init, Some(lora));
        let found = losses(&config, Some(&weights));
        let share = if base == LoraBase::Params { 0.0 } else { 0.01 };
        assert!((found[0] - expected[0]).abs() <= share * expected[0], "{base:?}: {found:?}, {expected:?}");
        assert!(found[0] != drawn[0] && found[1] < found[0], "{base:?}: {found:?}");
    }
}

#[test]
fn each_stored_parameter_passes_through_the_host() {
    let file = Path::new("/nowhere");
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let [device, host] =
            [Init::Device, Init::Host].map(|init| from_file(&started(init, allocator), file));
        let program = program(&device);
        let bytes = |parameter: &Parameter| rounded(&program, parameter.value, &testing::target());
        let largest = program.parameters.iter().map(bytes).max().unwrap();
        let staged = at_start(&predicted(&device).host, Role::Parameter);
        // One is read while the one before it is copied and the one before that freed.
        assert!(largest <= staged && staged <= 3 * largest, "{staged} of {largest}");
        assert_eq!(at_start(&predicted(&host).host, Role::Parameter), tensors(&program));
    }
}

#[test]
fn lazy_init_allocates_each_layer_at_its_first_use() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let [lazy, plain] = [Init::Lazy, Init::Device].map(|init| started(init, allocator));
        let all = buckets(&program(&lazy));
        let after = |config: &RunConfig, steps| {
            predict(&program(config), &testing::target(), RunSchedule { steps, evaluations: None }).device
        };
        assert_eq!(after(&plain, 0).live.total(), 3 * all, "parameters and two moments of each");
        assert_eq!(after(&lazy, 0).live.total(), 0);
        // An arena is reserved as a whole in either case.
        let reserved = if allocator == Allocator::Arena { after(&plain, 0).reserved } else { 0 };
        assert_eq!(after(&lazy, 0).reserved, reserved);

        let (first, steady, usual) = (after(&lazy, 1), after(&lazy, 2), after(&plain, 2));
        for phase in [Phase::Forward, Phase::Backward] {
            let live = |usage: &Usage| usage.phase_peak(phase).live;
            assert_eq!((live(&first)[Role::Parameter], live(&first)[Role::Optimizer]), (all, 0));
            assert_eq!(live(&first).total() + 2 * all, live(&usual).total(), "{}", phase.name());
        }
        for phase in Phase::ALL.into_iter().skip(1) {
            assert_eq!(steady.phase_peak(phase).live, usual.phase_peak(phase).live, "{}", phase.name());
        }
        assert_eq!(steady.reserved_peak, usual.reserved_peak);
    }
}

/// The second step needs the states that the first update creates: below its peak, it is the second step that fails.
#[test]
fn second_step_runs_out_of_memory_with_lazy_init() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let [lazy, plain] = [Init::Lazy, Init::Device].map(|init| {
            let mut config = started(init, allocator);
            (config.measure.warmup_steps, config.measure.steps) = (0, 3);
            config
        });
        let free = predicted(&lazy);
        let peak = free.device.steady_peak().live.total();
        let program = program(&lazy);
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        engine.step(&batch(&lazy, 0, lazy.train.batch_size), &lazy.numbers(1)).unwrap();
        assert_eq!(engine.ledger().usage(Pool::Device).step_peak(), free.first_step_peak, "{allocator:?}");
        assert!(free.first_step_peak < peak, "{allocator:?}: {} of {peak}", free.first_step_peak);
        assert_eq!(predicted(&plain).first_step_peak, predicted(&plain).device.step_peak());

        let target = testing::target().with_memory(Bytes(peak - 1));
        let step = |config: &RunConfig| {
            let program = testing::compile(config, &target).unwrap();
            let predicted = predict(&program, &target, RunSchedule::of(config)).out_of_memory;
            let mut device = testing::device(target.clone());
            let run = |device: &mut dyn Device| -> Result<(), Failure> {
                let mut engine = Engine::new(&program, device, true)?;
                engine.start()?;
                for step in 0..3 {
                    engine.step(&batch(config, step, config.train.batch_size), &config.numbers(step + 1))?;
                }
                Ok(())
            };
            match run(device.as_mut()) {
                Err(Failure::OutOfMemory(found)) => assert_eq!(predicted.as_ref(), Some(&*found)),
                other => panic!("{other:?}"),
            }
            predicted.and_then(|found| found.step)
        };
        assert_eq!((step(&lazy), step(&plain)), (Some(2), Some(1)), "{allocator:?}");
    }
}

/// Parameters of a layer are initialised after the layer before it, states right before the update.
#[test]
fn each_layer_is_initialised_right_before_its_first_use() {
    let program = program(&started(Init::Lazy, Allocator::Arena));
    let made = |kind: SectionKind, storage| {
        let code = &program.section(kind).unwrap().code;
        let made =
            code.iter().position(|instruction| instruction.action == Action::Allocate(storage)).unwrap();
        assert!(code[made].is_once());
        let uses = |action: &Action| action.touches().any(|id| program.storage(id) == storage);
        let first =
            code[made..].iter().position(|instruction| !instruction.is_once() && uses(&instruction.action));
        // In between, only outputs of the first operation are allocated.
        let mut between =
            code[made..made + first.unwrap()].iter().filter(|instruction| !instruction.is_once());
        assert!(between.all(|instruction| matches!(instruction.action, Action::Allocate(_))));
        made
    };
    for bucket in &program.buckets {
        made(SectionKind::First, bucket.parameters);
        for state in &bucket.states {
            made(SectionKind::Update, state.value);
        }
    }
    assert!(program.buckets.is_sorted_by_key(|bucket| made(SectionKind::First, bucket.parameters)));
}

#[test]
fn lazy_init_is_not_counted_as_work_of_steps() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let [(lazy, effects), (plain, usual)] =
            [Init::Lazy, Init::Device].map(|init| work(&started(init, allocator)));
        // Parameters of four layers, and two moments each.
        assert_eq!(
            lazy,
            Counts {
                lazily_initialised: 12,
                requests_in_first_iteration: lazy.requests_in_first_iteration,
                ..plain
            }
        );
        assert_eq!(lazy.requests_in_first_iteration, if allocator == Allocator::Arena { 0 } else { 12 });
        let separator = if usual.is_empty() { "" } else { ", " };
        assert_eq!(effects, format!("12 values initialised at first use{separator}{usual}"));
    }
}

/// An evaluation before the first step performs the lazy initialisation.
#[test]
fn lazy_run_can_be_evaluated_before_its_first_step() {
    let evaluated = |init| {
        let config = started(init, Allocator::Direct);
        let program = program(&config);
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        let loss = engine.evaluate(&batch(&config, 99, config.train.batch_size)).unwrap();
        engine.step(&batch(&config, 0, config.train.batch_size), &config.numbers(1)).unwrap();
        (loss, engine.digest().unwrap())
    };
    assert_eq!(evaluated(Init::Lazy), evaluated(Init::Device));
}

/// With each queue delayed and with reused memory.
#[test]
fn lazy_init_is_synchronised_with_its_uses() {
    let folder = tempfile::tempdir().unwrap();
    let offloads = [
        Offload::default(),
        Offload { parameters: true, ..Offload::default() },
        Offload {
            parameters: true,
            optimizer: true,
            activations: ActivationOffload::From(Bytes(0)),
            ahead: 2,
            ..Offload::default()
        },
    ];
    for (allocator, offload) in [Allocator::Arena, Allocator::Direct].into_iter().zip([offloads; 2]) {
        for offload in offload {
            let of = |init| {
                let mut config = started(init, allocator);
                config.strategy.offload = offload;
                (config.train.batch_size, config.strategy.accumulate) = (5, 3);
                config
            };
            let (lazy, plain) = (of(Init::Lazy), of(Init::Device));
            let expected = super::trace(&plain);
            assert_eq!(super::trace(&lazy), expected, "{offload:?}");
            for delay in [Delay::Compute, Delay::Copy, Delay::Host] {
                let mut device = testing::delayed_device(testing::target(), delay);
                let found = super::train(&lazy, &program(&lazy), device.as_mut()).unwrap();
                assert_eq!(found, expected, "{delay:?}, {offload:?}");
            }
            let file = folder.path().join("a.safetensors");
            dump(&plain, &file);
            let weights = stored(&file);
            assert_eq!(digest(&from_file(&lazy, &file), Some(&weights), 2), digest(&plain, None, 2));
        }
    }
}
