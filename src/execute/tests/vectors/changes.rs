//! The comparison is sensitive: a changed run disagrees with PyTorch's run without the change.

use super::{Change, DOCUMENTS, DROPOUT, MODELS, STRATEGIES, Vectors, differences, distance, train};
use ops::Activation;
use spec::*;

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
