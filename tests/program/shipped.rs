//! Predicted memory equals measured memory, byte for byte: for the shipped experiments and for random ones.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::test_folder::TestFolder;
use base::units::Bytes;
use compile::verify;
use data::{Batch, DigestCache};
use device::{DeviceChoice, DeviceKind, Phase, Pool, Target, Usage, detect, open};
use execute::Engine;
use memory::{Evaluations, RunSchedule, predict};
use plan::compile;
use plan::compile_verified;
use plan::{Experiment, Plan, PlannedRun, Purpose};
use proptest::prelude::*;
use proptest::sample::select;
use results::{Row, Status, csv};
use spec::{DataResidence, Model, RunConfig, Shard};
use testing::choice::any_choice;
use testing::keys::OPTIMIZERS;
use testing::{random_batch, random_cases, tenth};

/// Overrides that make any shipped experiment quick to train and keep everything that its strategies act on.
const SMALL: [&str; 3] = ["measure.steps=2", "measure.warmup_steps=1", "evaluation.batches=1"];

/// Those of its model.
fn small(model: &Model) -> &'static [&'static str] {
    match model {
        Model::Transformer(_) => &["model.transformer.layers=2", "model.transformer.context=32"],
        Model::Sequential(model) if model.has_images() => &["train.batch_size=4"],
        Model::Sequential(_) => &["train.batch_size=64"],
    }
}

fn shipped() -> Vec<PathBuf> {
    let files = |pattern: &str| {
        let pattern = Path::new(env!("CARGO_MANIFEST_DIR")).join(pattern);
        glob::glob(pattern.to_str().unwrap()).unwrap().map(Result::unwrap).collect::<Vec<_>>()
    };
    [files("experiments/*.toml"), files("experiments/guides/*.toml")].concat()
}

fn target(memory: Option<Bytes>) -> Target {
    detect(DeviceChoice::Cpu, memory).unwrap()
}

/// An imaginary GPU with the properties that the planner needs.
fn card() -> Target {
    Target { name: "a card".to_owned(), kind: DeviceKind::Cuda, threads: 1, page: Bytes(512), ..target(None) }
}

/// The plan of an experiment on this machine, or on a GPU if it requires one; `memory` is the limit, if any.
fn planned(file: &Path, overrides: &[String], memory: Option<Bytes>) -> Plan {
    let experiment = plan::expand(file, overrides, &|name| std::env::var(name).ok())
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let target = if experiment.requires == Some(DeviceKind::Cuda) { card() } else { target(memory) };
    planned_for(&target, experiment)
}

/// Sets the size of data that a run holds in memory.
fn describe(config: &mut RunConfig) {
    if config.strategy.loader.source != DataResidence::Stream {
        let contents = config.data.data_set().inspect(&mut DigestCache::default()).unwrap();
        config.set_data_properties(&*contents);
    }
}

fn planned_for(target: &Target, mut experiment: Experiment) -> Plan {
    experiment.set_data_properties(describe);
    let name = experiment.name.clone();
    plan::plan(experiment, target, Purpose::Predict, &|_| Some(String::new()))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every shipped experiment compiles, with the invariants verified after each pass.
#[test]
fn every_shipped_experiment_plans() {
    let files = shipped();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let plan = planned(&file, &[], None);
        assert!(plan.runs.iter().any(|run| run.strategy == plan.baseline), "{}", file.display());
        for run in &plan.runs {
            let name = format!("{} {}", plan.experiment, run.strategy);
            let config = run.config.as_ref().unwrap_or_else(|reason| panic!("{name}: {reason}"));
            assert_eq!(compile_verified(config, &plan.target).err(), None, "{name}");
            let prediction = run.prediction.as_ref().unwrap();
            assert!(prediction.device.steady_peak().live.total() > 0, "{name}");
            let live = Phase::ALL.map(|phase| prediction.device.phase_peak(phase).live.total());
            let live = live.into_iter().max().unwrap_or_default();
            let reserved = prediction.device.reserved_peak;
            // A segment of a caching allocator, or pages, of which a small model fills a part.
            let gaps = match config.strategy.allocator.is_caching() {
                true => live / 2 + (20 << 20),
                false => live / 20 + (64 << 10),
            };
            assert!(live <= reserved && reserved <= live + gaps, "{name}: {reserved} bytes for {live}");
        }
        // Some keys only have an effect on a GPU; there, every key must have one.
        let experiment = plan::expand(&file, &[], &|name| std::env::var(name).ok()).unwrap();
        for run in planned_for(&card(), experiment).runs {
            let name = format!("{} {}", plan.experiment, run.strategy);
            // A guide empties a cache that holds nothing; the experiment shows that.
            // One rank has nothing to divide; that experiment starts with one.
            let is_alone = run
                .config
                .as_ref()
                .is_ok_and(|config| config.ranks() == 1 && config.strategy.parallel.shard != Shard::None);
            let expected: &[&str] = match name.as_str() {
                "guide-loader empty-cache" => &["empty_cache"],
                _ if is_alone => &["parallel.shard"],
                _ => &[],
            };
            assert_eq!(run.no_effect, expected, "{name}: keys that change nothing");
        }
    }
}

/// Every strategy of the planning benchmark compiles, and its runs are all different.
#[test]
fn planning_benchmark_compiles() {
    for kind in [DeviceKind::Cpu, DeviceKind::Cuda] {
        for strategy in crate::planning::strategies() {
            let program =
                compile_verified(&crate::planning::config(&strategy), &crate::planning::target(kind));
            assert!(program.is_ok(), "{strategy}: {program:?}");
        }
        for (name, ..) in crate::planning::DEEP {
            let program =
                compile_verified(&crate::planning::deep_config(name, 3), &crate::planning::target(kind));
            assert!(program.is_ok(), "{name}: {program:?}");
        }
    }
    let experiment = crate::planning::experiment(&crate::planning::sweep(100));
    let plan = planned_for(&crate::planning::target(DeviceKind::Cuda), experiment);
    let ids: HashSet<&String> = plan.runs.iter().map(|run| &run.id).collect();
    assert!(plan.runs.len() >= 100 && ids.len() == plan.runs.len(), "{} of {}", ids.len(), plan.runs.len());
}

/// Two at a time: most of the time goes into processes that start and end.
#[test]
fn shipped_experiments_match_predictions() {
    let files = Mutex::new(shipped().into_iter());
    let next = || files.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| std::iter::from_fn(next).for_each(|file| matches_prediction(&file)));
        }
    });
}

fn matches_prediction(file: &Path) {
    let experiment = plan::expand(file, &[], &|name| std::env::var(name).ok()).unwrap();
    if experiment.requires.is_some_and(|kind| kind != DeviceKind::Cpu) {
        return;
    }
    let swept = |key: &str| experiment.axes.iter().any(|axis| axis == key);
    let of_model = experiment.points.iter().find_map(|point| Some(small(&point.config.as_ref().ok()?.model)));
    let of_model = of_model.unwrap_or_default();
    let overrides: Vec<String> = SMALL
        .iter()
        .chain(of_model)
        .filter(|set| !swept(set.split('=').next().unwrap_or_default()))
        .map(|set| (*set).to_owned())
        .collect();
    // If the experiment has a limit, some runs fit and others do not; choose one that does the same at the smaller
    // size.
    let limit = experiment.limits.memory.map(|_| between(&planned(file, &overrides, None)));
    let plan = planned(file, &overrides, limit);
    let needs = |run: &PlannedRun| run.prediction.as_ref().map_or(0, |found| found.device.reserved_peak);
    if file.parent().is_some_and(|folder| folder.ends_with("guides"))
        && plan.runs.iter().map(needs).max() > Some(256 << 20)
    {
        // Planned only: training fills hundreds of MiB in each run.
        return;
    }
    let rows = train(file, &plan.experiment, &overrides, limit);
    let ended = agree(&plan, &rows);
    assert_eq!(ended.contains(&Status::Oom), limit.is_some(), "{}: {ended:?}", file.display());
    assert!(ended.contains(&Status::Ok), "{}: {ended:?}", file.display());
}

/// The midpoint between the smallest and the largest reserved peak.
fn between(plan: &Plan) -> Bytes {
    let needs = || plan.runs.iter().filter_map(|run| Some(run.prediction.as_ref()?.device.reserved_peak));
    Bytes(needs().min().unwrap().midpoint(needs().max().unwrap()))
}

/// Runs `runner sweep` and returns its rows.
fn train(file: &Path, name: &str, overrides: &[String], limit: Option<Bytes>) -> Vec<Row> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
    command.args(["sweep", "--device", "cpu", "--repeats", "1"]).arg(file).arg("--out").arg(folder.path());
    for set in overrides {
        command.args(["--set", set]);
    }
    if let Some(limit) = limit {
        command.args(["--memory", &format!("{} B", limit.0)]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    csv::read(&folder.path().join(format!("{name}.csv"))).unwrap()
}

/// Checks each row against the prediction of its run. Returns the statuses.
fn agree(plan: &Plan, rows: &[Row]) -> Vec<Status> {
    let mut ended = Vec::new();
    for run in &plan.runs {
        let row = row_of(run, rows);
        let name = format!("{} {} {:?}", plan.experiment, run.strategy, run.axes);
        let prediction = run.prediction.as_ref().unwrap();
        ended.push(row.status);
        match &prediction.out_of_memory {
            None => {
                assert_eq!(row.status, Status::Ok, "{name}: {}", row.message);
                assert_eq!(row.predicted_peak_bytes, row.peak_bytes, "{name}");
                assert_eq!(measured(row), predicted(&prediction.device, &prediction.host), "{name}");
            }
            Some(found) => {
                assert_eq!(row.status, Status::Oom, "{name}: {}", row.message);
                assert_eq!(row.oom_phase.as_deref(), Some(found.phase.name()), "{name}");
                assert_eq!(row.oom_operation.as_ref(), Some(&found.operation), "{name}");
                assert_eq!(row.oom_value.as_ref(), Some(&found.value), "{name}");
                assert_eq!(row.oom_requested_bytes, Some(found.requested), "{name}");
                assert_eq!(row.oom_short_bytes, Some(prediction.short(&plan.target).device), "{name}");
                assert_eq!(row.peak_bytes, Some(found.live.total()), "{name}");
            }
        }
    }
    ended
}

fn row_of<'r>(run: &PlannedRun, rows: &'r [Row]) -> &'r Row {
    // The planner's id lacks the digest of the data; strategy and axes identify the run too.
    let mut found = rows.iter().filter(|row| row.strategy == run.strategy && row.axes == run.axes);
    match (found.next(), found.next()) {
        (Some(row), None) => row,
        _ => panic!("not one row of {} {:?}", run.strategy, run.axes),
    }
}

/// Peaks: live bytes in the steady state and in each phase, and reserved bytes.
type Peaks = (u64, Vec<Option<u64>>, [u64; 2]);

fn measured(row: &Row) -> Peaks {
    let phases = vec![
        row.start_peak_bytes,
        row.forward_peak_bytes,
        row.backward_peak_bytes,
        row.update_peak_bytes,
        row.evaluation_peak_bytes,
    ];
    let reserved = [row.reserved_peak_bytes, row.host_reserved_peak_bytes].map(Option::unwrap);
    (row.peak_bytes.unwrap(), phases, reserved)
}

fn predicted(device: &Usage, host: &Usage) -> Peaks {
    // A peak of 0 bytes is a known value only for the start phase.
    let phase = |&phase: &Phase| {
        let peak = device.phase_peak(phase).live.total();
        Some(peak).filter(|bytes| *bytes > 0 || phase == Phase::Start)
    };
    let phases = Phase::ALL.iter().map(phase).collect();
    (device.steady_peak().live.total(), phases, [device.reserved_peak, host.reserved_peak])
}

/// A random experiment of one run.
fn random_experiment() -> impl Strategy<Value = String> {
    let model = (2..=4usize, 1..=4usize, prop_oneof![Just(16usize), Just(24), Just(32)], 1..=40usize);
    let train = (0..=6usize, any::<bool>(), 256..=300usize);
    (model, train, any_choice(), select(OPTIMIZERS)).prop_map(|(model, train, choice, updates)| {
        let choice = choice.of_one_rank();
        let (layers, heads, per_head, context) = model;
        let (more, evaluates, vocabulary) = train;
        let accumulate: usize = choice.value("accumulate").parse().unwrap();
        let (d_model, batch_size) = (heads * per_head, accumulate + more);
        let evaluation = if evaluates { "[evaluation]\nevery = 1\nbatches = 1" } else { "" };
        let (updates, strategy) = (updates.join("\n"), choice.lines().join("\n"));
        format!(
            r#"
            [model.transformer]
            layers = {layers}
            d_model = {d_model}
            heads = {heads}
            context = {context}
            vocabulary = {vocabulary}
            [data.text]
            paths = ["text.txt"]
            [train]
            batch_size = {batch_size}
            {updates}
            {evaluation}
            [strategies.random]
            {strategy}
            "#
        )
    })
}

fn batch(config: &RunConfig, samples: usize, step: usize) -> Batch {
    let Some(context) = config.sample().positions() else { return random_batch(config, step, samples) };
    let count = samples * context;
    // Every model has the ids of bytes.
    let token = |index: usize| ((index * 7 + step * 13) % 256) as i32;
    let [tokens, targets] = [0, 1].map(|later| (later..count + later).map(|i| token(i).to_ne_bytes()));
    let batch = config.empty_batch(samples);
    // If the device holds the data, all samples are at its start.
    let batch = match batch.part("place") {
        Some(_) => batch.with("place", vec![[0; 4]; 2 * samples]),
        None => batch.with("tokens", tokens).with("targets", targets),
    };
    match batch.part("weights") {
        Some(_) => batch.with("weights", vec![1.0f32.to_ne_bytes(); samples]),
        None => batch,
    }
}

/// Runs two steps, and the evaluation if there is one, with freed memory poisoned. Compares the whole ledger with the
/// prediction.
fn two_steps_as_predicted(config: &RunConfig, target: &Target) {
    let program = compile(config, target).unwrap();
    verify(&program).unwrap();
    let evaluations = config.evaluation.as_ref().map(|_| Evaluations { every: 1, batches: 1 });
    let prediction = predict(&program, target, RunSchedule { steps: 2, evaluations });
    let mut device = open(target).unwrap();
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    // If the device gathers samples from the data, the data must be there.
    if config.strategy.loader.source == DataResidence::Device {
        for part in config.held_parts() {
            let bytes = part.of_samples(config.data_len.unwrap()).bytes();
            engine.put_held(&part, 0, &vec![0; bytes as usize]).unwrap();
        }
    }
    for step in 0..2 {
        let report = engine.step(&batch(config, config.train.batch_size, step), &config.numbers(1)).unwrap();
        assert!(report.loss.is_finite());
        let asks = config.train.clip_norm.is_some() || config.strategy.loss_scale.is_some();
        let measures = config.trains() && asks;
        assert_eq!(report.gradient_norm.is_some(), measures);
        if config.evaluation.is_some() {
            let samples = config.evaluation_batch().unwrap_or(config.train.batch_size);
            assert!(engine.evaluate(&batch(config, samples, step)).unwrap().is_finite());
        }
    }
    assert_eq!(engine.ledger().usage(Pool::Device), &prediction.device);
    assert_eq!(engine.ledger().usage_at(Pool::Host), &prediction.host);
    assert_eq!(engine.ledger().usage(Pool::Pinned), &prediction.pinned);
    assert_eq!(engine.counts().flops, 2 * prediction.hardware_flops);
    engine.close().unwrap();
}

proptest! {
    #![proptest_config(random_cases(tenth(48)))]

    #[test]
    fn random_experiments_match_predictions(text in random_experiment(), threads in 1..=3usize) {
        let target = Target { threads, ..target(None) };
        let config = TestFolder::new().configs(&text).remove(0);
        two_steps_as_predicted(&RunConfig { data_len: Some(5000), ..config }, &target);
    }
}

/// Results of the emulated GPU must not be published as those of a GPU.
#[test]
fn published_results_are_not_emulated() {
    let files = glob::glob("results/published/**/*").unwrap().map(Result::unwrap);
    let mut texts = 0;
    for file in files.filter(|file| file.is_file()) {
        let text = std::fs::read_to_string(&file).unwrap_or_default().to_lowercase();
        assert!(!text.contains("emulated gpu"), "{}", file.display());
        texts += 1;
    }
    assert!(texts > 0, "there is something to look at");
}
