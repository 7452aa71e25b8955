//! `update = "in_backward"`: gradients are applied and freed in the backward pass.

use super::strategies::{launches, live, live_in, program, with, work};
use super::trace;
use base::units::Bytes;
use compile::{Action, Instruction, Program, Section, SectionKind};
use device::{Phase, Pool, Position, Role};
use memory::live_at;
use spec::*;

/// A run without clipping and with other changes of the strategy.
fn plain(change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = with(change);
    config.train.clip_norm = None;
    config
}

fn in_backward(change: impl FnOnce(&mut Strategy)) -> RunConfig {
    plain(|strategy| {
        change(strategy);
        strategy.update = Update::InBackward;
    })
}

/// Changes of where gradients are, when they are complete, or how parameters are updated.
const CHANGES: [fn(&mut Strategy); 10] = [
    |_| {},
    |strategy| strategy.recompute = Recompute::Block,
    |strategy| (strategy.loss_chunks, strategy.precision) = (7, Precision::Bf16),
    |strategy| {
        (strategy.params, strategy.gradient_dtype) = (StorageDtype::Bf16, StorageDtype::Bf16);
        (strategy.residual, strategy.precision) = (StorageDtype::Bf16, Precision::Bf16);
    },
    |strategy| strategy.offload.optimizer = true,
    |strategy| (strategy.offload.optimizer, strategy.loss_chunks) = (true, 2),
    |strategy| (strategy.offload.parameters, strategy.offload.ahead) = (true, 2),
    |strategy| (strategy.init, strategy.optimizer_state) = (Init::Lazy, OptimizerState::Bf16),
    |strategy| (strategy.allocator, strategy.release) = (Allocator::Direct, Release::Scope),
    |strategy| strategy.graph = true,
];

#[test]
fn updates_in_backward_are_bitwise_equal() {
    for (number, change) in CHANGES.into_iter().enumerate() {
        assert_eq!(trace(&in_backward(change)), trace(&plain(change)), "change {number}");
    }
}

/// Bytes of the gradients of a layer's buckets.
fn gradients(program: &Program, layer: &str) -> u64 {
    let of_layer = program.buckets.iter().filter(|bucket| program.scope(bucket.scope).path == layer);
    of_layer.map(|bucket| program.ty(bucket.gradients.unwrap()).bytes().next_multiple_of(256)).sum()
}

/// The table is tied to the head: its gradients are live throughout backward.
#[test]
fn gradients_of_a_layer_are_freed_once_applied() {
    let program = program(&in_backward(|_| {}));
    let table = gradients(&program, "embedding");
    let layers = ["head", "blocks.1", "blocks.0"];
    assert!(layers.iter().all(|layer| gradients(&program, layer) > 0));
    for layer in layers {
        let is_update = launches("adamw");
        let of_layer = |instruction: &Instruction| {
            is_update(instruction) && program.scope(instruction.scope).path == layer
        };
        let found = live_in(&program, Pool::Device, SectionKind::First, Role::Gradient, of_layer);
        assert_eq!(found, table + gradients(&program, layer), "{layer}");
    }
    for Section { kind, live_out, .. } in &program.sections {
        let carries = live_out.iter().any(|&id| program.value(id).role == Role::Gradient);
        assert!(!carries, "gradients are live at the end of {}", kind.name());
    }
}

/// After backward the gradients of all layers are live at once, in backward those of the table and one block.
#[test]
fn peak_gradients_are_those_of_the_table_and_a_layer() {
    let most = |program: &Program| {
        let live = program.liveness_order().map(|(section, instruction)| {
            let position = Position { section: section as u32, instruction: instruction as u32 };
            let values = live_at(program, &testing::target(), Pool::Device, position);
            values.iter().filter(|value| value.role == Role::Gradient).map(|value| value.bytes).sum::<u64>()
        });
        live.max().unwrap()
    };
    let after = program(&plain(|_| {}));
    let layers = ["embedding", "blocks.0", "blocks.1", "head"].map(|layer| gradients(&after, layer));
    assert_eq!(most(&after), layers.iter().sum::<u64>());
    assert_eq!(most(&program(&in_backward(|_| {}))), layers[0] + layers[1]);
}

#[test]
fn each_bucket_is_updated_once_and_counted() {
    let (after, _) = work(&plain(|_| {}));
    let (early, effects) = work(&in_backward(|_| {}));
    assert_eq!(early.trained_parameters, after.trained_parameters);
    assert_eq!((early.updates_in_backward, after.updates_in_backward), (4 * early.steps, 0));
    assert_eq!(effects, "4 updates in backward");
}

/// An evaluation with gradients keeps the same activations for either `update`.
#[test]
fn evaluation_keeps_the_same_activations() {
    let grad = |strategy: &mut Strategy| strategy.evaluation_pass = EvaluationPass::Grad;
    let last = |instruction: &Instruction| matches!(instruction.action, Action::Copy { .. });
    let kept = |config: &RunConfig| live(&program(config), SectionKind::Evaluation, Role::Activation, last);
    assert_eq!(kept(&in_backward(grad)), kept(&plain(grad)));
}

/// Updates between layers do not shift prefetch points: a layer's values are prefetched while the gradients of the
/// layer above are computed.
#[test]
fn prefetch_points_do_not_depend_on_updates_in_backward() {
    let ahead = |config: &RunConfig| {
        let program = program(config);
        let code = &program.section(SectionKind::First).unwrap().code;
        let of =
            |block: &str, instruction: &Instruction| program.scope(instruction.scope).path.starts_with(block);
        let is_fetch = |instruction: &Instruction| match instruction.action {
            Action::Copy { to, .. } => {
                instruction.phase == Phase::Backward && program.value(to).pool == Pool::Device
            }
            _ => false,
        };
        let fetches = code.iter().filter(|instruction| is_fetch(instruction)).count();
        let first_fetch = code.iter().position(|found| is_fetch(found) && of("blocks.0", found)).unwrap();
        let backward = |found: &Instruction| {
            matches!(found.action, Action::Launch { .. })
                && found.phase == Phase::Backward
                && of("blocks.1", found)
        };
        (first_fetch < code.iter().position(backward).unwrap(), fetches)
    };
    let changes: [fn(&mut Strategy); 2] = [
        |strategy| strategy.offload.activations = ActivationOffload::From(Bytes(0)),
        |strategy| strategy.offload.parameters = true,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let [early, late] = [ahead(&in_backward(change)), ahead(&plain(change))];
        assert_eq!(early, late, "change {number}");
        assert!(early.0, "change {number}");
    }
}
