//! Cost and savings of `offload`, from the model's dimensions. Bitwise equality is tested in `placement`.
//!
//! L layers, B sequences in a batch, T context, C d_model, H heads, V vocabulary, N = B T rows.

use super::strategies::{Activations, BATCH, C, H, L, T, V, launches, live_in, program, with, work};
use base::units::Bytes;
use compile::{Action, Program, SectionKind};
use device::{Phase, Pool, Role, Target};
use memory::{RunSchedule, predict};
use spec::*;
use testing::compile;

fn offloaded(change: impl Fn(&mut Offload)) -> RunConfig {
    with(|strategy| change(&mut strategy.offload))
}

/// Bytes of all parameter buckets: rounded as in an arena, and exact.
pub(super) fn parameters(program: &Program) -> [u64; 2] {
    bytes_of_parameters(program, 256)
}

fn bytes_of_parameters(program: &Program, rounding: u64) -> [u64; 2] {
    let bytes = program.buckets.iter().map(|bucket| program.ty(bucket.parameters).bytes());
    [bytes.clone().map(|bytes| bytes.next_multiple_of(rounding)).sum(), bytes.sum()]
}

/// Bytes of the model's weights without gaps: the token and position tables, the head's norm, and per block two norms
/// and the matmuls of attention and mlp with their biases.
pub(super) const WEIGHTS: u64 =
    4 * (V * C + T * C + 2 * C + L * (4 * C + 3 * C * C + 3 * C + C * C + C + 8 * C * C + 5 * C));

#[test]
fn spilled_activations_are_held_on_the_host() {
    let program = program(&offloaded(|offload| offload.activations = ActivationOffload::From(Bytes(0))));
    let sizes = Activations { rounding: 256, micro_batch: BATCH };
    let at_the_loss = |pool| {
        live_in(&program, pool, SectionKind::First, Role::Activation, launches("cross-entropy-with-gradient"))
    };
    // The head's activations stay, since backward begins with the head: its norm, the logits and the loss.
    let head = sizes.kept(0) - sizes.stream();
    assert_eq!(at_the_loss(Pool::Pinned), sizes.kept(sizes.block()) - head);
    assert!(at_the_loss(Pool::Device) < head + 2 * sizes.f32(sizes.rows() * 4 * C));
}

#[test]
fn each_spilled_activation_is_transferred_once_each_way() {
    let (counts, effects) =
        work(&offloaded(|offload| offload.activations = ActivationOffload::From(Bytes(0))));
    let n = BATCH * T;
    // Per block: two norms with mean and deviation, q, k and v, attention's output and log-sum-exp, the residual stream
    // twice, the mlp's hidden values before and after the activation. And the residual stream before the blocks.
    let block = 2 * (n * C + 2 * n) + 3 * n * C + n * C + BATCH * H * T + 2 * n * C + 2 * 4 * n * C;
    let bytes = 4 * (L * block + n * C);
    assert_eq!((counts.bytes_to_host, counts.bytes_to_device), (2 * bytes, 2 * bytes));
    assert_eq!(effects, format!("{0} to the host and {0} back", Bytes(bytes)));
    // With the threshold at the size of the mlp's hidden values only these are spilled; above it, none.
    let from =
        |least| work(&offloaded(|offload| offload.activations = ActivationOffload::From(Bytes(least)))).0;
    let wide = 4 * (L * 2 * 4 * n * C);
    assert_eq!(from(4 * 4 * n * C).bytes_to_host, 2 * wide);
    assert_eq!(from(4 * 4 * n * C + 1).bytes_to_host, 0);
}

#[test]
fn offloaded_optimizer_keeps_only_parameters_on_the_device() {
    let config = offloaded(|offload| offload.optimizer = true);
    let program = program(&config);
    let found = predict(&program, &testing::target(), RunSchedule::of(&config));
    let [rounded, bytes] = parameters(&program);
    let host = found.host.phase_peak(Phase::Update).live;
    assert_eq!((host[Role::Optimizer], host[Role::Gradient]), (2 * rounded, rounded));
    let device = found.device.phase_peak(Phase::Update).live;
    assert_eq!((device[Role::Optimizer], device[Role::Gradient]), (0, 0));
    assert_eq!(device[Role::Parameter], rounded);

    let (counts, _) = work(&config);
    // Gradients are transferred once they are complete, that of the tied table twice: after the head and after the
    // embedding. Parameters are transferred for the update and back.
    let table = 4 * V * C;
    assert_eq!(counts.bytes_to_host, 2 * (WEIGHTS + table + bytes));
    // The table's gradient of all loss slices is transferred once.
    let sliced = with(|strategy| (strategy.offload.optimizer, strategy.loss_chunks) = (true, 7));
    assert_eq!(work(&sliced).0.bytes_to_host, counts.bytes_to_host);
    assert_eq!(counts.bytes_to_device, 2 * (table + bytes));
}

/// Parameters are computed from the master weights on the host, so that they are transferred to the device only. All
/// else is half as large.
#[test]
fn parameters_with_master_weights_are_transferred_to_the_device_only() {
    let config = with(|strategy| {
        (strategy.params, strategy.gradient_dtype) = (StorageDtype::Bf16, StorageDtype::Bf16);
        (strategy.precision, strategy.offload.optimizer) = (Precision::Bf16, true);
    });
    let (counts, _) = work(&config);
    let [_, bytes] = parameters(&program(&config));
    let table = 2 * V * C;
    assert_eq!(counts.bytes_to_host, 2 * (WEIGHTS / 2 + table));
    assert_eq!(counts.bytes_to_device, 2 * (table + bytes));
    // Offloaded parameters are not transferred for the update either.
    let mut offloaded = config;
    (offloaded.strategy.offload.parameters, offloaded.strategy.offload.optimizer) = (true, false);
    let mut full = offloaded.clone();
    full.strategy.master_weights = false;
    let brought = [offloaded, full].map(|config| work(&config).0.bytes_to_device);
    assert_eq!(brought[1] - brought[0], 2 * bytes);
}

#[test]
fn offloaded_parameters_of_two_layers_are_on_the_device_at_a_time() {
    let config = offloaded(|offload| offload.parameters = true);
    let program = program(&config);
    let found = predict(&program, &testing::target(), RunSchedule::of(&config));
    let [rounded, bytes] = parameters(&program);
    assert_eq!(found.host.steady_peak().live[Role::Parameter], rounded);
    let block = 4 * (4 * C + 3 * C * C + 3 * C + C * C + C + 8 * C * C + 5 * C);
    let table = 4 * (V * C + T * C);
    for phase in [Phase::Forward, Phase::Backward] {
        let most = found.device.phase_peak(phase).live[Role::Parameter];
        assert!(block <= most && most <= block + table + 16 * 256, "{most} in {}", phase.name());
    }

    let (counts, _) = work(&config);
    // Forward: all weights, and the table twice, for the embedding and the head. Backward: the operands of input
    // gradients, which are the weights of matmuls, gains of norms and the head's table. Then the update.
    let forward = WEIGHTS + 4 * V * C;
    let backward = 4 * (V * C + C + L * (2 * C + 3 * C * C + C * C + 8 * C * C));
    assert_eq!(counts.bytes_to_device, 2 * (forward + backward + bytes));
    assert_eq!(counts.bytes_to_host, 2 * bytes);
}

/// Casts of offloaded parameters are not kept on the device.
#[test]
fn offloaded_parameters_are_cast_again_in_backward() {
    let of = |parameters| {
        let mut config = offloaded(|offload| offload.parameters = parameters);
        config.strategy.precision = Precision::Bf16;
        let found = predict(&program(&config), &testing::target(), RunSchedule::of(&config));
        (work(&config).0, found.device.steady_peak().live[Role::Cast])
    };
    let ((kept, most_kept), (again, most_again)) = (of(false), of(true));
    assert!(most_again < most_kept, "{most_again} of {most_kept} bytes");
    assert!(again.casts > kept.casts);
    assert_eq!(again.flops, kept.flops);
}

/// The model does not fit on the device: parameters, gradients and states are on the host.
#[test]
fn model_larger_than_device_memory_trains() {
    let mut config = offloaded(|offload| (offload.parameters, offload.optimizer) = (true, true));
    config.model = Model::Transformer(Transformer::new(16, 64, 2, 16));
    config.train.batch_size = 1;
    let target = Target { product_workspace: Bytes(1 << 18), ..testing::target() };
    let program = compile(&config, &target).unwrap();
    let [parameters, _] = parameters(&program);
    let found = predict(&program, &target, RunSchedule::of(&config));
    let limit = target.with_memory(Bytes(found.device.reserved_peak));
    assert!(limit.memory.0 < parameters, "{} of {parameters} bytes", limit.memory.0);
    let mut device = testing::device(limit);
    let trace = super::train(&config, &program, device.as_mut()).unwrap();
    assert!(trace.losses.last() < trace.losses.first(), "{:?}", trace.losses);
}

/// Earlier prefetch holds more parameters on the device. With `ahead = 0`, each is transferred right before its use.
#[test]
fn ahead_sets_the_prefetch_distance() {
    let peak = |ahead| {
        let config = offloaded(|offload| (offload.parameters, offload.ahead) = (true, ahead));
        let config = testing::reshaped(config, |model| model.layers = 8);
        let found = predict(&program(&config), &testing::target(), RunSchedule::of(&config));
        found.device.phase_peak(Phase::Backward).live[Role::Parameter]
    };
    let block = 4 * (4 * C + 3 * C * C + 3 * C + C * C + C + 8 * C * C + 5 * C);
    let [none, one, two, three] = [0, 1, 2, 3].map(peak);
    assert!(none < one && one < two && two < three, "{none}, {one}, {two}, {three}");
    assert!(three - two >= block / 2 && three - two <= 2 * block, "{two}, {three}, a block has {block}");
    let config = offloaded(|offload| (offload.parameters, offload.ahead) = (true, 0));
    let program = program(&config);
    for section in &program.sections {
        for pair in section.code.windows(2) {
            let [Action::Copy { to, .. }, Action::Launch { inputs, .. }] = [&pair[0].action, &pair[1].action]
            else {
                continue;
            };
            let brought = program.value(*to);
            assert!(brought.pool == Pool::Pinned || brought.role != Role::Parameter || inputs.contains(to));
        }
    }
}

/// With `pinned = false`, offloaded values are in pageable memory, and nothing else changes.
#[test]
fn unpinned_offload_uses_pageable_memory() {
    let of = |pinned| {
        let mut config = offloaded(|offload| {
            (offload.parameters, offload.optimizer, offload.pinned) = (true, true, pinned);
            offload.activations = ActivationOffload::From(Bytes(0));
        });
        config.strategy.allocator = Allocator::Direct;
        config
    };
    let predicted = |config: &RunConfig| {
        let program = program(config);
        let found = predict(&program, &testing::target(), RunSchedule::of(config));
        (program, found)
    };
    let [(pinned, with_pinned), (pageable, with_pageable)] =
        [true, false].map(|pinned| predicted(&of(pinned)));
    let pools =
        pinned.values.iter().zip(&pageable.values).map(|(a, b)| (a.pool, b.pool, a.role == Role::Input));
    for (pool, other, is_input) in pools {
        match (pool, is_input) {
            (Pool::Pinned, false) => assert_eq!(other, Pool::Host),
            (pool, _) => assert_eq!(other, pool),
        }
    }
    assert_eq!(with_pageable.device, with_pinned.device);
    assert_eq!(with_pageable.host, with_pinned.host);
    assert_eq!(with_pinned.pinned, with_pinned.host);
    let mut plain = testing::small();
    plain.strategy.allocator = Allocator::Direct;
    assert_eq!(with_pageable.pinned.peak(), predicted(&plain).1.pinned.peak());

    let [parameters, _] = bytes_of_parameters(&pageable, testing::target().page.0);
    let in_update = live_in(&pageable, Pool::Host, SectionKind::Update, Role::Parameter, |_| true);
    assert_eq!(in_update, parameters);
    assert_eq!(work(&of(true)), work(&of(false)));
}

/// An evaluation that keeps the values for backward keeps the same ones with and without offload.
#[test]
fn evaluation_values_are_not_offloaded() {
    let kept = |spill| {
        let mut config = offloaded(|offload| offload.activations = spill);
        config.strategy.evaluation_pass = EvaluationPass::Grad;
        work(&config).0.late_frees_in_evaluation
    };
    assert_eq!(kept(ActivationOffload::From(Bytes(0))), kept(ActivationOffload::Nothing));
}
