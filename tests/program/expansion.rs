//! Expansion of experiment files to points: order, labels, merging, overrides, and writing runs back to files.

use std::path::{Path, PathBuf};

use plan::{Experiment, Point, expand};
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::strategy::Strategy as _;
use spec::Strategy;
use spec::*;
use tempfile::TempDir;
use testing::choice::{Choice, any_choice};
use testing::keys::BATCH_SIZE;
use testing::{random_cases, tenth};

const BASE: &str = r#"
[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32
[data.text]
paths = ["*.txt"]
[train]
batch_size = 8
optimizer.adamw = { lr = 3e-4, beta1 = 0.8 }
"#;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn environment(name: &str) -> Option<String> {
    (name == "CORPUS").then(|| "/corpus".to_string())
}

/// Expands `a.toml`: the base with `more` appended.
fn expanded(more: &str, overrides: &[&str]) -> Experiment {
    let folder = folder(&[("a.toml", &format!("{BASE}{more}"))]);
    expand_in(&folder, overrides).unwrap_or_else(|error| panic!("{error}"))
}

fn expand_in(folder: &TempDir, overrides: &[&str]) -> Result<Experiment, Error> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    expand(&folder.path().join("a.toml"), &overrides, &environment)
}

fn error(more: &str, overrides: &[&str]) -> String {
    let folder = folder(&[("a.toml", &format!("{BASE}{more}"))]);
    expand_in(&folder, overrides).unwrap_err().to_string()
}

fn config(point: &Point) -> &RunConfig {
    point.config.as_ref().unwrap_or_else(|reason| panic!("{reason}"))
}

fn adamw(config: &RunConfig) -> &AdamW {
    config.train.optimizer.adamw().unwrap()
}

/// `strategy key=value ...` of each point.
fn table(experiment: &Experiment) -> Vec<String> {
    let line = |point: &Point| {
        let axes: String = point.axes.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        format!("{}{axes}", point.strategy)
    };
    experiment.points.iter().map(line).collect()
}

#[test]
fn defaults_are_filled_in() {
    let experiment = expanded("[strategies.plain]", &[]);
    assert_eq!((experiment.name.as_str(), experiment.baseline.as_str()), ("a", "plain"));
    assert_eq!(
        (experiment.repeats, experiment.limits.memory, experiment.requires),
        (Repeats::Times(1), None, None)
    );
    let config = config(&experiment.points[0]);
    let written = expanded(&format!("[strategies.plain]\n{}", Choice::plain().lines().join("\n")), &[]);
    assert_eq!(config.strategy, written.points[0].config.as_ref().unwrap().strategy);
    assert_eq!(config.measure, Measure { warmup_steps: 3, steps: 20, ..Measure::default() });
    assert_eq!((config.evaluation.clone(), config.train.clip_norm, config.train.seed), (None, None, 0));
    let AdamW { lr, beta1, beta2, epsilon, weight_decay, decay, ref groups } = *adamw(config);
    assert_eq!((lr, beta1, beta2, epsilon, weight_decay), (3e-4, 0.8, 0.999, 1e-8, 0.01));
    assert_eq!((decay, groups.len()), (Decay::Matrices, 0));
    assert_eq!(config.model.transformer().unwrap().vocabulary, 256);
}

#[test]
fn equal_files_expand_alike() {
    let folder = folder(&[("a.toml", &format!("{BASE}[strategies.b]\nsweep.accumulate = [1, 2]\n"))]);
    assert_eq!(expand_in(&folder, &[]), expand_in(&folder, &[]));
}

#[test]
fn points_keep_file_order() {
    let experiment = expanded(
        "[strategies.zebra]\n[strategies.ape]\n[sweep.grid]\n\"train.seed\" = [2, 1]\ntrain.batch_size = [8, 4]",
        &[],
    );
    assert_eq!(experiment.axes, ["train.seed", "train.batch_size"]);
    assert_eq!(
        table(&experiment),
        [
            "zebra train.seed=2 train.batch_size=8",
            "ape train.seed=2 train.batch_size=8",
            "zebra train.seed=2 train.batch_size=4",
            "ape train.seed=2 train.batch_size=4",
            "zebra train.seed=1 train.batch_size=8",
            "ape train.seed=1 train.batch_size=8",
            "zebra train.seed=1 train.batch_size=4",
            "ape train.seed=1 train.batch_size=4",
        ]
    );
}

#[test]
fn sweeps_inside_strategies_make_strategies() {
    let experiment = expanded(
        "[strategies.a]\nsweep.accumulate = [1, 2]\nsweep.recompute = [\"none\", \"block\"]\n[strategies.b]",
        &[],
    );
    assert_eq!(
        table(&experiment),
        [
            "a/accumulate=1,recompute=none accumulate=1 recompute=\"none\"",
            "a/accumulate=1,recompute=block accumulate=1 recompute=\"block\"",
            "a/accumulate=2,recompute=none accumulate=2 recompute=\"none\"",
            "a/accumulate=2,recompute=block accumulate=2 recompute=\"block\"",
            "b",
        ]
    );
    assert_eq!(experiment.axes, ["accumulate", "recompute"]);
    assert_eq!(experiment.baseline, "a/accumulate=1,recompute=none");
}

/// An empty table selects an optimizer with default keys, which a sweep can then set.
#[test]
fn empty_table_keys_can_be_swept() {
    let adam = "[strategies.adam]\nset.\"train.optimizer\" = { adam = {} }\n";
    for axes in [
        "sweep.\"train.optimizer.adam.lr\" = [1e-2, 1e-3]",
        "[sweep.grid]\n\"train.optimizer.adam.lr\" = [1e-2, 1e-3]",
    ] {
        let experiment = expanded(&format!("{adam}{axes}"), &[]);
        let rate = |point: &Point| match &config(point).train.optimizer {
            Optimizer::Adam(adam) => adam.lr,
            other => panic!("{other:?}"),
        };
        assert_eq!(experiment.points.iter().map(rate).collect::<Vec<_>>(), [1e-2, 1e-3]);
    }
    let whole = error(&format!("{adam}sweep.\"train.optimizer\" = [{{ adam = {{}} }}]"), &[]);
    assert!(whole.contains("sets itself"), "{whole}");
}

#[test]
fn zip_include_and_exclude() {
    let experiment = expanded(
        r#"
[strategies.fp32]
[strategies.fp32-lean]
recompute = "block"
[strategies.other]
release = "step"
[[sweep.zip]]
"train.batch_size" = [4, 8]
"train.seed" = [1, 2]
[[sweep.exclude]]
strategy = "fp32*"
"train.batch_size" = 8
[[sweep.exclude]]
strategy = "other"
"train.seed" = 1
[[sweep.include]]
strategy = "fp32"
"train.batch_size" = 64
"#,
        &[],
    );
    assert_eq!(
        table(&experiment),
        [
            "fp32 train.batch_size=4 train.seed=1",
            "fp32-lean train.batch_size=4 train.seed=1",
            "other train.batch_size=8 train.seed=2",
            "fp32 train.batch_size=64",
        ]
    );
    assert_eq!(config(&experiment.points[3]).train.batch_size, 64);
}

#[test]
fn invalid_point_is_kept_with_reason() {
    let experiment = expanded(
        "[strategies.a]\n[strategies.b]\naccumulate = 7\n[sweep.grid]\n\"train.batch_size\" = [6, 8]",
        &[],
    );
    let skipped: Vec<_> = experiment.points.iter().filter_map(|point| point.config.as_ref().err()).collect();
    assert_eq!(
        skipped,
        ["accumulate = 7 exceeds train.batch_size = 6: a micro-batch has at least one sample; use 1 to 6"]
    );
}

#[test]
fn files_merge_key_by_key() {
    let folder = folder(&[
        (
            "base/b.toml",
            &format!("name = \"base\"\n{BASE}[strategies.first]\nrecompute = \"block\"\naccumulate = 2\n"),
        ),
        (
            "a.toml",
            r#"
extends = "base/b.toml"
train.optimizer.adamw.lr = 1
[data.text]
paths = ["${CORPUS}/**/*.txt", "../$$x"]
[strategies.first]
accumulate = 4
[strategies.second]
extends = "first"
recompute = "off"
"#,
        ),
    ]);
    let experiment = expand_in(&folder, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(experiment.name, "a");
    let (first, second) = (config(&experiment.points[0]), config(&experiment.points[1]));
    assert_eq!((adamw(first).lr, adamw(first).beta1), (1.0, 0.8));
    assert_eq!((first.strategy.accumulate, first.strategy.recompute), (4, Recompute::Block));
    assert_eq!((second.strategy.accumulate, second.strategy.recompute), (4, Recompute::None));
    let text = first.data.text().unwrap();
    let parent = folder.path().canonicalize().unwrap().parent().unwrap().to_path_buf();
    assert_eq!(text.paths, [PathBuf::from("/corpus/**/*.txt"), parent.join("$x")]);
}

#[test]
fn paths_are_relative_to_their_file() {
    let folder = folder(&[("base/b.toml", BASE), ("a.toml", "extends = \"base/b.toml\"\n[strategies.a]\n")]);
    let experiment = expand_in(&folder, &[]).unwrap_or_else(|error| panic!("{error}"));
    let text = config(&experiment.points[0]).data.text().unwrap();
    assert_eq!(text.paths, [folder.path().canonicalize().unwrap().join("base/*.txt")]);
}

#[test]
fn overrides_beat_strategies_beat_defaults() {
    let more =
        "[defaults]\nrelease = \"scope\"\naccumulate = 2\n[strategies.a]\naccumulate = 4\n[strategies.b]\n";
    let accumulate = |overrides: &[&str]| -> Vec<usize> {
        expanded(more, overrides).points.iter().map(|point| config(point).strategy.accumulate).collect()
    };
    assert_eq!(accumulate(&[]), [4, 2]);
    assert_eq!(accumulate(&["defaults.accumulate=8"]), [4, 8]);
    assert_eq!(accumulate(&["accumulate=8"]), [8, 8]);
    assert_eq!(accumulate(&["strategy.accumulate=off"]), [1, 1]);
    assert_eq!(accumulate(&["strategies.b.accumulate=1"]), [4, 1]);
    assert_eq!(accumulate(&["sweep.grid.\"train.batch_size\"=[4, 8]"]), [4, 2, 4, 2]);
    assert_eq!(expanded(more, &["measure.repeats=3", "target.memory=\"1 GiB\""]).repeats, Repeats::Times(3));
    let experiment = expanded(more, &["measure.steps=5", "release=step", "target.memory=1 GiB"]);
    let first = config(&experiment.points[0]);
    assert_eq!((first.measure.steps, first.strategy.release), (5, Release::Step));
    assert_eq!(experiment.limits.memory.map(|bytes| bytes.0), Some(1 << 30));
}

#[test]
fn strategy_can_set_any_key() {
    let experiment = expanded(
        "[strategies.a]\n[strategies.b]\nset.\"train.clip_norm\" = 0.5\nset.evaluation.every = 2",
        &[],
    );
    let (a, b) = (config(&experiment.points[0]), config(&experiment.points[1]));
    assert_eq!((a.train.clip_norm, b.train.clip_norm), (None, Some(0.5)));
    assert_eq!(b.evaluation, Some(Evaluation { every: 2, ..Evaluation::default() }));
}

/// Quoted, nested and dotted layer names, and patterns, all select the same layers.
#[test]
fn layer_names_accept_all_toml_forms() {
    let experiment = expanded(
        r#"
[strategies.quoted]
freeze = ["blocks.1", "blocks.0"]
place = { "blocks.0.mlp" = "host", head = "off" }
[strategies.nested]
freeze = ["blocks.*"]
place.blocks.0.mlp = "host"
[strategies.elsewhere]
extends = "quoted"
set."place" = { "blocks.0" = "device" }
[strategies.swept]
sweep.freeze = [[], ["blocks"]]
"#,
        &["place.blocks.1=host"],
    );
    let said = |point: &Point| {
        let Strategy { freeze, place, .. } = &config(point).strategy;
        (freeze.clone(), place.iter().map(|(layer, home)| format!("{layer} {}", home.name())).collect())
    };
    let all: Vec<(Vec<String>, Vec<String>)> = experiment.points.iter().map(said).collect();
    let both = ["blocks.0", "blocks.1"].map(str::to_owned).to_vec();
    let places = ["blocks.0.mlp host", "blocks.1 host"].map(str::to_owned).to_vec();
    assert_eq!(all[0], (both.clone(), places));
    assert_eq!(all[1], all[0]);
    let moved = ["blocks.1 host"].map(str::to_owned).to_vec();
    assert_eq!(all[2], all[0], "what is said of a layer is beside what is extended of its parts");
    assert_eq!(all[3..], [(Vec::new(), moved.clone()), (both, moved)]);
}

#[test]
fn without_lists_effective_keys() {
    let experiment = expanded(
        r#"
[defaults]
release = "scope"
[strategies.a]
release = "scope"
recompute = "block"
[strategies.b]
extends = "a"
gradients = "free"
set."train.seed" = 3
sweep.accumulate = [1, 2]
"#,
        &[],
    );
    let keys = |point: &Point| point.without.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    let keys: Vec<_> = experiment.points.iter().map(keys).collect();
    assert_eq!(keys[0], ["recompute"]);
    assert_eq!(keys[1], ["recompute", "train.seed"]);
    assert_eq!(keys[2], ["recompute", "train.seed", "accumulate"]);
    let (_, without) = &experiment.points[2].without[2];
    let expected = config(&experiment.points[1]);
    assert_eq!(without, expected);
}

#[test]
fn later_errors_point_at_keys() {
    let experiment = expanded("[strategies.a]", &[]);
    let text =
        experiment.sources.error_at("data.text.paths[0]", "no file matches", Some("add one".to_string()));
    let text = text.to_string();
    assert!(text.contains("a.toml:8:10\n"), "{text}");
    assert!(text.contains("8 | paths = [\"*.txt\"]\n  |          ^^^^^^^\n  = help: add one"), "{text}");
    let text = experiment.sources.error_at("measure.steps", "too few", None).to_string();
    assert!(text.starts_with("too few\n --> ") && text.ends_with("a.toml"), "{text}");
}

#[test]
fn overrides_are_checked_like_files() {
    assert!(error("[strategies.a]", &["extends=b.toml"]).contains("cannot be set on the command line"));
    assert!(error("[strategies.a]", &["strategies.b.accumulate=3"]).contains("no strategy `b` to change"));
    assert!(error("[strategies.a]", &["=3"]).contains("invalid TOML"));
    assert!(error("[strategies.a]", &["strategies.a.acumulate=3"]).contains("did you mean `accumulate`?"));
}

/// A value of the command line replaces a wrong one in the file or its base, in a strategy or its `set`.
#[test]
fn overrides_replace_wrong_values() {
    let more = "[defaults]\naccumulate = 0\n[evaluation]\nevery = 0\n[strategies.a]\naccumulate = \"two\"\n\
                recompute = { every = 0 }\nset.\"train.seed\" = -1\n[strategies.b]\n[measure]\nrepeats = 0\n";
    let fixes = [
        "accumulate=2",
        "evaluation=off",
        "recompute.segments=2",
        "train.seed=3",
        "measure.repeats=4",
        "train.batch_size=4",
        "train.optimizer.lion.lr=1e-4",
        "model.transformer.layers=4",
    ];
    let base = BASE.replace("batch_size = 8", "batch_size = 0").replace("lr = 3e-4", "lr = -1");
    let files = [("a.toml", &*format!("extends = \"b.toml\"\n{more}")), ("b.toml", &base)];
    let experiment = expand_in(&folder(&files), &fixes).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(experiment.repeats, Repeats::Times(4));
    for point in &experiment.points {
        let RunConfig { strategy, train, evaluation, model, .. } = config(point);
        assert_eq!((strategy.accumulate, train.seed, train.batch_size, evaluation), (2, 3, 4, &None));
        let layers = model.transformer().map(|model| model.layers);
        assert_eq!((layers, train.optimizer.name()), (Some(4), "lion"));
    }
    // Each of them is a mistake without its override, and a wrong override repairs nothing.
    for left_out in 0..fixes.len() - 1 {
        let others: Vec<&str> = [&fixes[..left_out], &fixes[left_out + 1..]].concat();
        assert!(expand_in(&folder(&files), &others).is_err(), "without {}", fixes[left_out]);
    }
    let wrong = expand_in(&folder(&files), &["train.batch_size=-1"]).unwrap_err().to_string();
    assert!(wrong.contains("not 0") && wrong.contains("not -1"), "{wrong}");
    let configuration = "[model.hf]\nconfig = \"none.json\"\n";
    let rest = &BASE[BASE.find("[data").unwrap()..];
    let hf = format!("{configuration}{rest}[strategies.a]\n");
    let files = [("a.toml", hf.as_str())];
    assert!(expand_in(&folder(&files), &[]).is_err());
    let transformer = "model={ transformer = { layers = 2, d_model = 64, heads = 2, context = 32 } }";
    assert!(expand_in(&folder(&files), &[transformer]).is_ok());
}

/// `tests/program/large.rs` expands ten times as many points, which fails if the time grows quadratically.
#[test]
fn ten_thousand_points_expand() {
    let seeds: Vec<String> = (0..2500).map(|seed| seed.to_string()).collect();
    let more = format!(
        "[strategies.a]\n[strategies.b]\nrecompute = \"block\"\nsweep.accumulate = [1, 2, 4]\n\
         [sweep.grid]\n\"train.seed\" = [{}]",
        seeds.join(", ")
    );
    assert_eq!(expanded(&more, &[]).points.len(), 10_000);
}

prop_compose! {
    fn any_dynamic_loss_scale()(
        initial in 1e-3..1e6f64, backoff in 0.01..0.99f64, growth in 1.01..100f64, interval in 1..5000usize,
    ) -> DynamicLossScale {
        DynamicLossScale { initial, backoff, growth, interval }
    }
}

/// A run with any compatible values of the strategy keys and random numbers.
fn any_choices(batch: usize) -> impl proptest::strategy::Strategy<Value = RunConfig> {
    let scale = prop_oneof![
        (1e-3..1e6f64).prop_map(LossScale::Static),
        any_dynamic_loss_scale().prop_map(LossScale::Dynamic),
    ];
    (any_choice(), 1..=batch, scale).prop_map(move |(choice, accumulate, scale)| {
        let lines = choice.of_own_model().lines();
        let experiment = format!("[strategies.a]\n{}", lines.join("\n"));
        let batch_size = format!("train.batch_size={BATCH_SIZE}");
        let mut read = config(&expanded(&experiment, &[&batch_size]).points[0]).clone();
        if read.strategy.update == Update::AfterBackward {
            read.strategy.accumulate = accumulate;
        }
        read.strategy.loss_scale = read.strategy.loss_scale.map(|_| scale);
        read
    })
}

/// A schedule with an explicit length, or with that of the run (which has no minimum) and then no warm-up.
fn any_schedule() -> impl proptest::strategy::Strategy<Value = Schedule> {
    let falling = (0..1usize << 20, 1..1usize << 30, 0.0..=1.0, any::<bool>()).prop_map(
        |(warmup, rest, floor, is_said)| match is_said {
            true => (warmup, Some(warmup + rest), floor),
            false => (0, None, floor),
        },
    );
    prop_oneof![
        (0..1usize << 30).prop_map(|warmup| Schedule::Constant(Constant { warmup })),
        falling.clone().prop_map(|(warmup, total, floor)| Schedule::Linear(Linear { warmup, total, floor })),
        falling.prop_map(|(warmup, total, floor)| Schedule::Cosine(Cosine { warmup, total, floor })),
        (0..1usize << 20, 1..1usize << 20, 1..1usize << 20, 0.0..=1.0).prop_map(
            |(warmup, decay, rest, floor)| {
                let total = Some(warmup + decay + rest);
                Schedule::WarmupStableDecay(WarmupStableDecay { warmup, decay, total, floor })
            }
        ),
    ]
}

prop_compose! {
    /// Groups in an order in which each matches parameters that the ones before it leave.
    fn any_groups()(
        names in subsequence(vec!["blocks.0.mlp.up.weight", "blocks.[01].mlp*", "blocks.0", "*.weight", "*"], 0..5),
        numbers in proptest::collection::vec((proptest::option::of(1e-12..10.0), 0.0..1e20), 5),
    ) -> Vec<Group> {
        let group = |(name, (lr, weight_decay)): (&str, (Option<f64>, f64))| Group {
            parameters: name.to_owned(),
            lr,
            weight_decay: lr.is_none_or(|lr| lr > 1.0).then_some(weight_decay),
        };
        names.into_iter().zip(numbers).map(group).collect()
    }
}

prop_compose! {
    fn any_train()(
        batch_size in 1..500usize,
        clip_norm in proptest::option::of(1e-9..1e9),
        seed in 0..=i64::MAX as u64,
        lr in 1e-12..10.0, beta1 in 0.0..1.0, beta2 in 0.0..1.0,
        epsilon in 1e-30..1.0, weight_decay in 0.0..1e20,
        decay in prop_oneof![Just(Decay::Matrices), Just(Decay::All)],
        groups in any_groups(),
        (kind, momentum, looks_ahead) in (0..6, prop_oneof![Just(0.0), 0.01..0.99], any::<bool>()),
        schedule in any_schedule(),
        (shuffles, keeps) in any::<(bool, bool)>(),
    ) -> Train {
        let nesterov = looks_ahead && momentum > 0.0;
        let optimizer = match kind {
            0 => Optimizer::Adam(Adam { lr, beta1, beta2, epsilon, weight_decay, decay, groups }),
            1 => Optimizer::AdamW(AdamW { lr, beta1, beta2, epsilon, weight_decay, decay, groups }),
            2 => Optimizer::Lion(Lion { lr, beta1, beta2, weight_decay, decay, groups }),
            3 => Optimizer::Adafactor(Adafactor {
                lr, beta2_decay: -momentum, epsilon, scale_epsilon: epsilon, clip_threshold: lr, weight_decay, decay, groups,
            }),
            4 => {
                let adamw = AdamW { lr, beta1, beta2, epsilon, weight_decay, decay, groups: Vec::new() };
                let adjust = if looks_ahead { Adjust::Original } else { Adjust::MatchRmsAdamW };
                Optimizer::Muon(Muon {
                    lr, adamw, momentum, nesterov: looks_ahead, weight_decay, ns_steps: batch_size.min(64), epsilon, adjust, groups,
                })
            }
            _ => Optimizer::Sgd(Sgd { lr, momentum, nesterov, weight_decay, decay, groups }),
        };
        let last_batch = if keeps { LastBatch::Keep } else { LastBatch::Drop };
        Train { batch_size, clip_norm, seed, shuffle: shuffles || keeps, last_batch, optimizer, schedule }
    }
}

prop_compose! {
    fn any_config()(train in any_train())(
        choices in any_choices(train.batch_size),
        train in Just(train),
        // At least two blocks, because strategies name layers of the two blocks of the base.
        // At least 3 wide, because the LoRA rank must not exceed the width of the narrowest layer.
        (layers, heads, width) in (2..100usize, 1..20usize, 3..100usize),
        (context, vocabulary) in (1..5000usize, 256..60_000usize),
        weights in proptest::option::of("/[a-zé \"\\\\$'{}*\\[]{1,8}/x[.]y"),
        paths in proptest::collection::btree_set("/[a-zé \"\\\\$'{}*]{1,8}/x[.]txt", 1..4),
        split in 0.01..1.0,
        evaluation in proptest::option::of((1..100usize, 1..9usize)),
        (warmup_steps, steps) in (0..100usize, 1..100usize),
    ) -> RunConfig {
        testing::with_possible_ranks(RunConfig {
            model: Model::Transformer(Transformer { vocabulary, weights: weights.map(PathBuf::from), ..Transformer::new(layers, heads * width, heads, context) }),
            data: Data::Text(Text::new(
                paths.iter().map(|path| PathBuf::from(path.replace("**", "*a").replace("**", "*a"))).collect(),
                split,
            )),
            train: Train { clip_norm: train.clip_norm.filter(|_| choices.train.clip_norm.is_some()), ..train },
            evaluation: evaluation.map(|(every, batches)| Evaluation { every, batches, ..Evaluation::default() }),
            measure: Measure { warmup_steps, steps, ..choices.measure },
            strategy: choices.strategy,
            data_len: None,
            lengths: None,
            all_packed: None,
        })
    }
}

proptest! {
    #![proptest_config(random_cases(tenth(256)))]

    #[test]
    fn written_run_reads_back_equal(config in any_config(), strategy in "[a-z][a-z0-9/=,.é\" -]{0,12}") {
        let text = config.to_toml("some name", &strategy);
        let folder = folder(&[("a.toml", &text)]);
        let experiment = match expand_in(&folder, &[]) {
            Ok(experiment) => experiment,
            Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
        };
        prop_assert_eq!(&experiment.name, "some name");
        prop_assert_eq!(experiment.points.len(), 1);
        prop_assert_eq!(&experiment.points[0].strategy, &strategy);
        prop_assert_eq!(&experiment.points[0].config, &Ok(config));
    }
}

proptest! {
    #![proptest_config(random_cases(tenth(256)))]

    /// The identity of a run reads back as the run, except for the paths of its data and weights: different runs have
    /// different identities.
    #[test]
    fn identity_determines_run(config in any_config()) {
        let identity = config.identity();
        prop_assert!(!identity.contains("paths"), "{}", identity);
        let strategy = if identity.contains("[strategy]") { "" } else { "\n[strategy]" };
        let text = format!("{identity}{strategy}").replace("[strategy]", "[strategies.a]");
        let folder = folder(&[("a.toml", &text)]);
        let paths: Vec<String> = config.data.text().unwrap().paths.iter().map(|path| format!("{path:?}").replace('$', "$$")).collect();
        let mut places = vec![format!("data.text.paths = [{}]", paths.join(", "))];
        let weights = config.model.weights().map(|path| format!("{path:?}").replace('$', "$$"));
        places.extend(weights.map(|path| format!("model.transformer.weights = {path}")));
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let experiment = match expand_in(&folder, &places) {
            Ok(experiment) => experiment,
            Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
        };
        prop_assert_eq!(&experiment.points[0].config, &Ok(config));
    }
}

#[test]
fn run_is_written_as_toml() {
    let experiment =
        expanded("[evaluation]\n[strategies.a]\nrecompute = \"block\"", &["data.text.paths=['/x/*.rs']"]);
    insta::assert_snapshot!("run_toml", config(&experiment.points[0]).to_toml("a", "a"));
}

#[test]
fn missing_file_is_named() {
    let error = expand(Path::new("no/such.toml"), &[], &environment).unwrap_err();
    assert_eq!(error.to_string(), "cannot read no/such.toml: there is no such file");
}

/// An experiment that uses every part of the grammar.
const RICH: &str = r#"
name = "rich"
baseline = "é"
requires = "cuda"
[target]
memory = "24 GiB"
[evaluation]
every = 10
[defaults]
allocator = "arena"
[strategies."é"]
[strategies.lean]
extends = "é"
recompute = "block"
sweep.accumulate = [1, 2]
set."train.clip_norm" = "off"
[sweep.grid]
"train.batch_size" = [8, 16]
[[sweep.zip]]
"model.transformer.context" = [16, 32]
"train.seed" = [0, 1]
[[sweep.include]]
strategy = "lean*"
"train.batch_size" = 64
[[sweep.exclude]]
strategy = "é"
"train.batch_size" = 16
"#;

proptest! {
    #![proptest_config(random_cases(tenth(256)))]

    /// Any damage gives an error message that names its source, and no panic.
    #[test]
    fn damaged_files_are_refused_or_read(
        (start, length) in (0..1000usize, 0..12usize),
        insert in proptest::sample::select(vec!["", "=", "\"", "[", "]", ".", "é", "\n", "-1", "{}", "\"off\"", "0", " = 3 "]),
        overrides in proptest::collection::vec("[a-z.\"é]{0,9}=?[0-9a-z\\[\"é ]{0,4}", 0..2),
    ) {
        let text: Vec<char> = format!("{RICH}{BASE}").chars().collect();
        let start = start.min(text.len());
        let end = (start + length).min(text.len());
        let damaged: String = text[..start].iter().copied().chain(insert.chars()).chain(text[end..].iter().copied()).collect();
        let folder = folder(&[("a.toml", &damaged)]);
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        if let Err(error) = expand_in(&folder, &overrides) {
            let text = error.to_string();
            prop_assert!(text.contains("a.toml") || text.contains("the command line"), "{}", text);
        }
    }
}

#[test]
fn whole_grammar_is_read() {
    let folder = folder(&[("a.toml", &format!("{RICH}{BASE}"))]);
    let experiment = expand_in(&folder, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(experiment.name, "rich");
    assert_eq!(experiment.requires, Some(device::DeviceKind::Cuda));
    assert_eq!(
        experiment.axes,
        ["train.batch_size", "model.transformer.context", "train.seed", "accumulate"]
    );
    // Two strategies of `lean` at 2 x 2 points, `é` at half of them, and two included points.
    assert_eq!(experiment.points.len(), 8 + 2 + 2);
}

#[test]
fn strategy_tables_merge_with_extended_tables() {
    let experiment = expanded(
        "[defaults]\noffload.ahead = 3\n[strategies.all]\noffload = { parameters = true, optimizer = true }\n\
         [strategies.late]\nextends = \"all\"\noffload.ahead = 0\n\
         [strategies.swept]\nextends = \"all\"\nsweep.\"offload.ahead\" = [1, 2]\n",
        &[],
    );
    let offload = |at: usize| config(&experiment.points[at]).strategy.offload;
    let all = Offload { parameters: true, optimizer: true, ahead: 3, ..Offload::default() };
    assert_eq!(offload(0), all);
    assert_eq!(offload(1), Offload { ahead: 0, ..all });
    assert_eq!([offload(2), offload(3)], [1, 2].map(|ahead| Offload { ahead, ..all }));
}

/// In every notation, with defaults and `extends`, and after the run is written and read again.
#[test]
fn layer_and_sublayer_have_separate_places() {
    let experiment = expanded(
        "[defaults]\nplace.blocks.0 = \"host\"\n\
         [strategies.quoted]\nplace = { \"blocks.1\" = \"host\", \"blocks.1.attention\" = \"device\" }\n\
         [strategies.nested]\nplace = { \"blocks.*\" = \"host\", \"blocks.*.mlp\" = \"device\" }\n\
         [strategies.other]\nextends = \"quoted\"\nplace.blocks.1.mlp = \"device\"\n\
         [strategies.back]\nplace.\"blocks.0\" = \"device\"\nplace.blocks.1 = \"host\"\n",
        &[],
    );
    let places = |at: usize| -> Vec<String> {
        let place = &config(&experiment.points[at]).strategy.place;
        place.iter().map(|(layer, home)| format!("{layer} {}", home.name())).collect()
    };
    assert_eq!(places(0), ["blocks.0 host", "blocks.1 host", "blocks.1.attention device"]);
    assert_eq!(
        places(2),
        ["blocks.0 host", "blocks.1 host", "blocks.1.attention device", "blocks.1.mlp device"]
    );
    assert_eq!(places(3), ["blocks.1 host"]);
    for point in &experiment.points {
        let folder = folder(&[("a.toml", &config(point).to_toml("a", "plain"))]);
        let again = expand_in(&folder, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config(&again.points[0]), config(point), "{}", point.strategy);
    }
}
