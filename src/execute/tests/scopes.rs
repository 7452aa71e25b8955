//! Choices by scope, at any depth: recomputation and freezing.

use super::{batch, train};
use crate::engine::Engine;
use compile::{Parameter, Program, RecomputePlan, RecomputePolicy, RecomputeRegion, compile_annotated};
use device::Role;
use graph::{Graphs, Scope, ScopeId};
use memory::{Failure, RunSchedule, predict};
use spec::*;
use testing::compile;

const L: u64 = 2;
const C: u64 = 32;
/// Rows: sequences times positions.
const N: u64 = 4 * 16;

#[test]
fn any_scope_can_be_recomputed() {
    let config = testing::small();
    let graphs = Graphs::of(&config);
    let target = testing::target();
    let plain = compile(&config, &target).unwrap();
    let trained =
        |program: &Program| train(&config, program, testing::device(target.clone()).as_mut()).unwrap();
    let expected = trained(&plain);
    let peak = |program: &Program| {
        predict(program, &target, RunSchedule::of(&config)).device.steady_peak().live[Role::Activation]
    };
    let again = |program: &Program| {
        predict(program, &target, RunSchedule::of(&config)).hardware_flops - plain.model_flops()
    };
    type Choice = (fn(&Scope) -> bool, u64);
    let choices: [Choice; 5] = [
        (|scope| scope.path.ends_with(".attention"), 2 * N * C * 3 * C + 4 * N * 16 * C),
        // The output of a scope's last matmul is not read in its backward.
        (|scope| scope.path.ends_with(".mlp"), 2 * N * C * 4 * C),
        // The outermost annotated scope is recomputed as a whole.
        (|scope| scope.block, 2 * N * C * 3 * C + 4 * N * 16 * C + 2 * N * C * C + 2 * N * C * 4 * C),
        (|scope| scope.path == "embedding" || scope.path == "head", 0),
        (|scope| scope.path == "blocks.1.mlp", N * C * 4 * C),
    ];
    for (index, (recompute, flops)) in choices.into_iter().enumerate() {
        let program = compile_annotated(
            &graphs,
            &config,
            &target,
            &RecomputePlan::none(graphs.full.scopes.len()),
            |annotations, scopes| {
                let unit = |(index, scope)| {
                    recompute(scope)
                        .then_some(RecomputeRegion { scope: ScopeId(index), policy: RecomputePolicy::All })
                };
                annotations.recompute = (0..).zip(scopes).map(unit).collect();
            },
        );
        let program = program.unwrap();
        assert_eq!(trained(&program), expected, "choice {index}");
        assert_eq!(again(&program), L * flops, "choice {index}");
        assert!(index == 3 || peak(&program) < peak(&plain), "choice {index}");
    }
}

/// A parameter's name, its bytes before and after a step, and its gradient, if it has one.
struct TrainedParameter {
    name: String,
    before: Vec<u8>,
    after: Vec<u8>,
    gradient: Option<Vec<u8>>,
}

fn step(config: &RunConfig, program: &Program) -> Vec<TrainedParameter> {
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let read = |engine: &mut Engine, id| {
        let mut bytes = Vec::new();
        let read = engine.read(id, |piece| -> Result<(), Failure> {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        read.unwrap();
        bytes
    };
    let parameters = |engine: &mut Engine| -> Vec<Vec<u8>> {
        program.parameters.iter().map(|parameter| read(engine, parameter.value)).collect()
    };
    let before = parameters(&mut engine);
    let batch = batch(config, 0, config.train.batch_size);
    engine.gradients(&batch, &config.numbers(1)).unwrap();
    let gradient = |parameter: &Parameter| parameter.gradient.map(|gradient| read(&mut engine, gradient));
    let gradients: Vec<_> = program.parameters.iter().map(gradient).collect();
    engine.update().unwrap();
    let after = parameters(&mut engine);
    engine.close().unwrap();
    let names = program.parameters.iter().map(|parameter| program.full_name(parameter.value));
    let all = names.zip(before).zip(after).zip(gradients);
    all.map(|(((name, before), after), gradient)| TrainedParameter { name, before, after, gradient })
        .collect()
}

#[test]
fn frozen_layers_do_not_change_and_have_no_gradients_or_states() {
    // FLOPs of a block's matmuls; attention's backward is twice its forward.
    let weights = 2 * N * (C * 3 * C + C * C + 2 * C * 4 * C);
    let block = 2 * weights + 2 * (4 * N * 16 * C);
    let table = 2 * N * 256 * C;
    for accumulate in [1, 2] {
        let mut config = testing::small();
        config.strategy.accumulate = accumulate;
        let target = testing::target();
        let plain = compile(&config, &target).unwrap();
        let expected = step(&config, &plain);
        for (layers, saved) in [
            (&["blocks.1"][..], weights),
            (&["blocks.1.mlp"], 2 * N * (2 * C * 4 * C)),
            (&["head"], 0),
            // No earlier layer is trained: the first block has no backward.
            (&["embedding", "blocks.0"], table + block),
        ] {
            config.strategy.freeze = layers.iter().map(|layer| (*layer).to_owned()).collect();
            let program = compile(&config, &target).unwrap();
            let frozen = |name: &str| layers.iter().any(|layer| name.starts_with(&format!("{layer}.")));
            for (seen, plain) in step(&config, &program).into_iter().zip(&expected) {
                assert_eq!(
                    seen.before, plain.before,
                    "{}: initial values do not depend on frozen layers",
                    seen.name
                );
                if frozen(&seen.name) {
                    assert_eq!((seen.after, seen.gradient), (seen.before, None), "{}", seen.name);
                } else {
                    assert_eq!(seen.gradient, plain.gradient, "{}", seen.name);
                    assert_ne!(seen.after, seen.before, "{}", seen.name);
                }
            }
            assert_eq!(plain.model_flops() - program.model_flops(), saved, "{layers:?}");
            let rounded = |bytes: u64| bytes.next_multiple_of(target.alignment.0);
            let trained = program.buckets.iter().filter(|bucket| bucket.trainable);
            let trained: u64 = trained.map(|bucket| rounded(program.ty(bucket.parameters).bytes())).sum();
            let usage = predict(&program, &target, RunSchedule::of(&config)).device;
            let update = usage.phase_peak(device::Phase::Update).live;
            assert_eq!(update[Role::Optimizer], 2 * trained, "{layers:?}");
        }
    }
}
