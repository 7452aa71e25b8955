//! Cost and savings of each strategy, from the model's dimensions: expected bytes and FLOPs. Equality of results is
//! tested in the parent module.
//!
//! L layers, B sequences in a micro-batch, T context, C d_model, H heads, V vocabulary, N = B T rows.

use crate::engine::Engine;
use crate::metrics::Counts;
use crate::metrics::Volume;
use crate::metrics::{EffectsContext, effects};
use base::units::Bytes;
use compile::{Action, Instruction, Program, SectionKind};
use device::{Pool, Position, Role};
use memory::{RunSchedule, live_at, predict};
use spec::*;
use testing::compile;

pub(super) const L: u64 = 2;
pub(super) const T: u64 = 16;
pub(super) const C: u64 = 32;
pub(super) const H: u64 = 2;
pub(super) const V: u64 = 256;
pub(super) const BATCH: u64 = 4;

pub(super) fn with(change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = testing::small();
    change(&mut config.strategy);
    config
}

pub(super) fn program(config: &RunConfig) -> Program {
    compile(config, &testing::target()).unwrap()
}

/// Live device bytes of a role after the last matching instruction of a section.
pub(super) fn live(
    program: &Program,
    kind: SectionKind,
    role: Role,
    like: impl Fn(&Instruction) -> bool,
) -> u64 {
    live_in(program, Pool::Device, kind, role, like)
}

/// Live bytes of a role in a pool after the last matching instruction of a section.
pub(super) fn live_in(
    program: &Program,
    pool: Pool,
    kind: SectionKind,
    role: Role,
    like: impl Fn(&Instruction) -> bool,
) -> u64 {
    let section = program.sections.iter().position(|section| section.kind == kind).unwrap();
    let instruction = program.sections[section].code.iter().rposition(like).unwrap();
    let position = Position { section: section as u32, instruction: instruction as u32 };
    let values = live_at(program, &testing::target(), pool, position);
    values.iter().filter(|value| value.role == role).map(|value| value.bytes).sum()
}

pub(super) fn launches(name: &'static str) -> impl Fn(&Instruction) -> bool {
    move |instruction| matches!(&instruction.action, Action::Launch { op, .. } if op.name() == name)
}

/// Bytes of activations, each rounded as allocated.
pub(super) struct Activations {
    pub(super) rounding: u64,
    pub(super) micro_batch: u64,
}

impl Activations {
    pub(super) fn f32(&self, elements: u64) -> u64 {
        (elements * 4).next_multiple_of(self.rounding)
    }

    pub(super) fn rows(&self) -> u64 {
        self.micro_batch * T
    }

    pub(super) fn stream(&self) -> u64 {
        self.f32(self.rows() * C)
    }

    /// A norm's output, mean and reciprocal deviation.
    pub(super) fn norm(&self) -> u64 {
        self.stream() + 2 * self.f32(self.rows())
    }

    /// The values that a block keeps for backward, with its output and without its input.
    pub(super) fn block(&self) -> u64 {
        let attention = self.f32(self.rows() * 3 * C) + self.stream() + self.f32(self.micro_batch * H * T);
        let mlp = 2 * self.f32(self.rows() * 4 * C);
        self.norm() + attention + self.stream() + self.norm() + mlp + self.stream()
    }

    /// At the end of forward: the blocks, the embedding's output, the head with its logits.
    pub(super) fn kept(&self, per_block: u64) -> u64 {
        L * per_block + self.stream() + self.norm() + self.f32(self.rows() * V) + self.f32(1)
    }
}

/// A run with batches of `batch_size` sequences.
fn split(batch_size: usize, accumulate: usize) -> RunConfig {
    let mut config = with(|strategy| strategy.accumulate = accumulate);
    config.train.batch_size = batch_size;
    config
}

/// A section, its repeat count and its sequences.
type SectionShape = (SectionKind, usize, u64);

/// Batch size, `accumulate`, and the resulting sections.
const SPLITS: [(usize, usize, &[SectionShape]); 6] = {
    use SectionKind::{First, Micro, Tail};
    [
        (4, 2, &[(First, 1, 2), (Micro, 1, 2)]),
        (4, 4, &[(First, 1, 1), (Micro, 3, 1)]),
        (8, 3, &[(First, 1, 3), (Micro, 1, 3), (Tail, 1, 2)]),
        (7, 2, &[(First, 1, 4), (Tail, 1, 3)]),
        (7, 5, &[(First, 1, 2), (Micro, 2, 2), (Tail, 1, 1)]),
        // Four micro-batches of two sequences cover the batch.
        (8, 5, &[(First, 1, 2), (Micro, 3, 2)]),
    ]
};

#[test]
fn accumulate_shrinks_activations_to_the_micro_batch() {
    for (batch_size, accumulate, sections) in SPLITS {
        let program = program(&split(batch_size, accumulate));
        let seen = program.step().filter(|section| section.samples > 0);
        let seen = seen.map(|section| (section.kind, section.repeat_count, section.samples as u64));
        assert_eq!(seen.collect::<Vec<_>>(), sections, "{batch_size} / {accumulate}");
        for &(kind, _, micro_batch) in sections {
            let sizes = Activations { rounding: 256, micro_batch };
            let found = live(&program, kind, Role::Activation, launches("cross-entropy-with-gradient"));
            assert_eq!(found, sizes.kept(sizes.block()), "{} of {batch_size} / {accumulate}", kind.name());
        }
    }
}

/// With either allocator.
#[test]
fn smaller_last_micro_batch_does_not_raise_the_peak() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let device = |batch_size: usize| {
            let mut config = split(batch_size, 3);
            config.strategy.allocator = allocator;
            predict(&program(&config), &testing::target(), RunSchedule::of(&config)).device
        };
        let (uneven, even) = (device(8), device(9));
        assert_eq!(uneven.steady_peak().live, even.steady_peak().live);
        assert_eq!(uneven.reserved_peak, even.reserved_peak);
    }
}

/// All splits of a batch have the same FLOPs and tokens. Micro-batches are counted during execution.
#[test]
fn accumulate_does_not_change_flops() {
    for (batch_size, accumulate, sections) in SPLITS {
        let (whole, split) = (split(batch_size, 1), split(batch_size, accumulate));
        let ((plain, _), (counts, effects)) = (work(&whole), work(&split));
        let micro_batches: usize = sections.iter().map(|(_, times, _)| times).sum();
        assert_eq!(counts.micro_batches, 2 * micro_batches as u64, "{batch_size} / {accumulate}");
        assert_eq!(counts.evaluation_passes, micro_batches as u64);
        assert_eq!((counts.flops, counts.recompute_flops), (plain.flops, 0));
        let planned = predict(&program(&split), &testing::target(), RunSchedule::of(&split));
        assert_eq!(2 * planned.model_flops, counts.flops);
        let told = if micro_batches == accumulate { "" } else { " (not 5)" };
        assert_eq!(effects, format!("{micro_batches} micro-batches{told}"));
        let volume = |config: &RunConfig| Volume::of_step(config, &config.sample(), 0);
        assert_eq!(volume(&split), volume(&whole));
        assert_eq!(volume(&split).tokens, Some(batch_size * T as usize));
    }
}

/// `loss_chunks`, the resulting number of slices, and the rows of each but the last. There are fewer slices than
/// requested if the last would be empty.
const SLICES: [(usize, u64, u64); 5] = [(2, 2, 32), (3, 3, 22), (7, 7, 10), (48, 32, 2), (1000, 64, 1)];

#[test]
fn loss_chunks_shrink_logits_to_a_slice() {
    let sizes = Activations { rounding: 256, micro_batch: BATCH };
    let whole = sizes.f32(sizes.rows() * V);
    let at_most = |chunks: usize, kind: SectionKind| {
        let program = program(&with(|strategy| strategy.loss_chunks = chunks));
        let section = program.sections.iter().position(|section| section.kind == kind).unwrap();
        let live = (0..program.sections[section].code.len()).map(|instruction| {
            let position = Position { section: section as u32, instruction: instruction as u32 };
            let values = live_at(&program, &testing::target(), Pool::Device, position);
            let logits = values.iter().filter(|value| value.name.contains("logits"));
            logits.map(|value| value.bytes).sum::<u64>()
        });
        live.max().unwrap()
    };
    for kind in [SectionKind::First, SectionKind::Evaluation] {
        assert_eq!(at_most(1, kind), whole);
        for (chunks, _, rows) in SLICES {
            assert_eq!(
                at_most(chunks, kind),
                sizes.f32(rows * V),
                "loss_chunks = {chunks} in {}",
                kind.name()
            );
        }
    }

    // At the last slice: its logits' gradient, computed in place, and the accumulated gradient of the logits' input.
    for (chunks, count, rows) in SLICES {
        let program = program(&with(|strategy| strategy.loss_chunks = chunks));
        let last = sizes.rows() - (count - 1) * rows;
        let found =
            live(&program, SectionKind::First, Role::Activation, launches("cross-entropy-with-gradient"));
        let expected = sizes.kept(sizes.block()) - whole + sizes.f32(last * V) + sizes.stream();
        assert_eq!(found, expected, "loss_chunks = {chunks}");
    }
}

/// A loss of one row cannot be sliced: the key has no effect.
#[test]
fn one_row_is_one_slice() {
    let config = |chunks| {
        let config = with(|strategy| strategy.loss_chunks = chunks);
        let mut config = testing::reshaped(config, |model| model.context = 1);
        config.train.batch_size = 1;
        config
    };
    assert_eq!(program(&config(7)).sections, program(&config(1)).sections);
}

#[test]
fn sgd_keeps_a_velocity_or_nothing() {
    let state = |momentum, nesterov| {
        let mut config = testing::small();
        let (lr, weight_decay, decay) = (0.1, 0.1, Decay::Matrices);
        config.train.optimizer =
            Optimizer::Sgd(Sgd { lr, momentum, nesterov, weight_decay, decay, groups: Vec::new() });
        let program = program(&config);
        let buckets = program.buckets.iter().map(|bucket| program.ty(bucket.parameters).bytes());
        let buckets: u64 = buckets.map(|bytes| bytes.next_multiple_of(256)).sum();
        (live(&program, SectionKind::First, Role::Optimizer, |_| true), buckets)
    };
    let (nothing, buckets) = state(0.0, false);
    assert_eq!(nothing, 0);
    for nesterov in [false, true] {
        assert_eq!(state(0.9, nesterov).0, buckets, "nesterov = {nesterov}");
    }
}

#[test]
fn direct_rounds_to_pages() {
    let program = program(&with(|strategy| strategy.allocator = Allocator::Direct));
    let sizes = Activations { rounding: testing::target().page.0, micro_batch: BATCH };
    let found = live(&program, SectionKind::First, Role::Activation, launches("cross-entropy-with-gradient"));
    assert_eq!(found, sizes.kept(sizes.block()));
    assert_eq!(program.arenas, [0; Pool::ALL.len()]);
}

#[test]
fn late_release_holds_what_was_allocated() {
    let bytes = |release| {
        let program = program(&with(|strategy| strategy.release = release));
        live(&program, SectionKind::First, Role::Activation, launches("embedding-backward"))
    };
    let program = program(&with(|strategy| strategy.release = Release::Step));
    let all = program.section(SectionKind::First).unwrap().code.iter().filter_map(|i| match i.action {
        Action::Allocate(storage) if program.value(storage).role == Role::Activation => {
            Some(program.ty(storage).bytes().next_multiple_of(256))
        }
        _ => None,
    });
    assert_eq!(bytes(Release::Step), all.sum::<u64>());
    // The gradient of the embedding's output, and the loss, which the update section reads.
    let stream = Activations { rounding: 256, micro_batch: BATCH }.stream();
    assert_eq!(bytes(Release::Eager), stream + 256);
    assert!(bytes(Release::Scope) < bytes(Release::Step));
}

/// Elements in the bucket of a block, each tensor but the last rounded up to 64 elements; and in that of the head.
const BLOCK: u64 = {
    let attention = 64 + 64 + 3 * C * C + 128 + C * C + 64;
    let mlp = 64 + 64 + 4 * C * C + 128 + 4 * C * C + C;
    attention + mlp
};
const HEAD: u64 = 64 + C;

#[test]
fn frozen_layers_have_neither_gradients_nor_moments() {
    let freeze = ["embedding", "blocks.0"].map(str::to_owned).to_vec();
    let program = program(&with(|strategy| strategy.freeze = freeze));
    let trained = [BLOCK, HEAD].map(|numbers| (4 * numbers).next_multiple_of(256)).iter().sum::<u64>();
    assert_eq!(trained, 51_712 + 512);
    let live = |kind, role| live(&program, kind, role, |_| true);
    assert_eq!(live(SectionKind::First, Role::Gradient), trained);
    assert_eq!(live(SectionKind::Update, Role::Optimizer), 2 * trained);
    let embedding = 4 * (V * C + T * C);
    assert_eq!(live(SectionKind::Update, Role::Parameter), embedding + 51_712 + trained);
}

fn on_host(layers: &[&str]) -> RunConfig {
    with(|strategy| {
        strategy.place = layers.iter().map(|layer| ((*layer).to_owned(), LayerDevice::Host)).collect()
    })
}

/// All values of the placed layer are on the host, and no others. Transferred copies are freed after their last use.
#[test]
fn all_values_of_placed_layers_are_on_the_host() {
    let sizes = Activations { rounding: 256, micro_batch: BATCH };
    let program = program(&on_host(&["blocks.1"]));
    let block = (4 * BLOCK).next_multiple_of(256);
    let others = 4 * (V + T) * C + block + (4 * HEAD).next_multiple_of(256);
    let live = |pool, kind, role| live_in(&program, pool, kind, role, |_| true);
    for (pool, parameters) in [(Pool::Pinned, block), (Pool::Device, others)] {
        assert_eq!(live(pool, SectionKind::Update, Role::Parameter), parameters, "{pool:?}");
        assert_eq!(live(pool, SectionKind::First, Role::Gradient), parameters, "{pool:?}");
        assert_eq!(live(pool, SectionKind::First, Role::Optimizer), 2 * parameters, "{pool:?}");
    }
    let kept = |pool| {
        let loss = launches("cross-entropy-with-gradient");
        live_in(&program, pool, SectionKind::First, Role::Activation, loss)
    };
    assert_eq!(kept(Pool::Pinned), sizes.block());
    // The layer's output is prefetched for the head's backward.
    assert_eq!(kept(Pool::Device), sizes.kept(sizes.block()) - sizes.block() + sizes.stream());
}

#[test]
fn placed_layers_are_computed_on_the_host_and_their_inputs_transferred() {
    let n = BATCH * T;
    let weights = 2 * n * (C * 3 * C + C * C + 2 * C * 4 * C);
    let block = 3 * weights + 3 * (4 * n * T * C);
    let stream = 4 * n * C;
    let numbers = 4 * testing::small().numbers(1).len() as u64;
    let mut config = on_host(&["blocks.1"]);
    for clip_norm in [None, Some(1.0)] {
        config.train.clip_norm = clip_norm;
        let (counts, effects) = work(&config);
        let mut unplaced = config.clone();
        unplaced.strategy.place.clear();
        let plain = work(&unplaced).0;
        // The layer reads its input in forward and in backward, and so does the head with the layer's output. Each
        // returns a gradient. The norm of the gradients is computed on the device.
        let norm = if clip_norm.is_some() { [4, 4 * BLOCK] } else { [0, 0] };
        let expected = Counts {
            host_flops: 2 * block,
            bytes_to_host: 2 * (3 * stream + numbers + norm[0]),
            bytes_to_device: 2 * (3 * stream + norm[1]),
            ..plain
        };
        assert_eq!(counts, expected, "clip_norm = {clip_norm:?}");
        let crossed = [expected.bytes_to_host, expected.bytes_to_device].map(|bytes| Bytes(bytes / 2));
        let told = format!("{} to the host and {} back", crossed[0], crossed[1]);
        assert!(effects.ends_with(&told) && effects.contains("% of FLOPs on the host, "), "{effects}");
    }
}

#[test]
fn zeroed_gradients_stay_between_steps() {
    let between = |gradients| {
        let program = program(&with(|strategy| strategy.gradients = gradients));
        let buckets = program.buckets.iter().map(|bucket| program.ty(bucket.parameters).bytes());
        let buckets: u64 = buckets.map(|bytes| bytes.next_multiple_of(256)).sum();
        (live(&program, SectionKind::Update, Role::Gradient, |_| true), buckets)
    };
    assert_eq!(between(Gradients::Free).0, 0);
    let (kept, buckets) = between(Gradients::Zero);
    assert_eq!(kept, buckets);
}

#[test]
fn evaluation_with_gradients_keeps_what_training_keeps() {
    let program = program(&with(|strategy| strategy.evaluation_pass = EvaluationPass::Grad));
    let sizes = Activations { rounding: 256, micro_batch: BATCH };
    let last = |instruction: &Instruction| matches!(instruction.action, Action::Copy { .. });
    let found = live(&program, SectionKind::Evaluation, Role::Activation, last);
    // Only the loss reads the logits, and its gradient is computed with it.
    assert_eq!(found, sizes.kept(sizes.block()) - sizes.f32(sizes.rows() * V));
}

/// Counts and effects of two steps and one evaluation.
pub(super) fn work(config: &RunConfig) -> (Counts, String) {
    let program = program(config);
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), false).unwrap();
    engine.start().unwrap();
    let before = engine.counts();
    let batch = |samples| super::batch(config, 0, samples);
    for _ in 0..2 {
        engine.step(&batch(config.train.batch_size), &config.numbers(1)).unwrap();
    }
    engine.evaluate(&batch(super::evaluation_samples(config))).unwrap();
    let after = engine.counts();
    let counts = Counts {
        requests: after.requests - before.requests,
        bytes_to_host: after.bytes_to_host - before.bytes_to_host,
        bytes_to_device: after.bytes_to_device - before.bytes_to_device,
        ..after
    };
    (counts, effects(&before, &after, EffectsContext::new(config, &program), None))
}

#[test]
fn strategies_have_the_expected_counts_and_effects() {
    let (plain, nothing) = work(&testing::small());
    assert_eq!(nothing, "");
    assert_eq!((plain.recompute_flops, plain.zeroed_bytes, plain.late_frees, plain.requests), (0, 0, 0, 0));
    let small = testing::small();
    let planned = predict(&program(&small), &testing::target(), RunSchedule::of(&small));
    assert_eq!(plain.flops, 2 * planned.model_flops);

    let materialized = with(|strategy| strategy.attention = Attention::Materialized);
    assert_ne!(program(&materialized), program(&small));
    let (counts, effects) = work(&materialized);
    assert_eq!((counts, &*effects), (plain, ""), "the matmuls are the same");

    let n = BATCH * T;
    for (chunks, slices, _) in SLICES {
        let (counts, effects) = work(&with(|strategy| strategy.loss_chunks = chunks));
        let expected = Counts { loss_slices: 2 * slices, ..plain };
        assert_eq!(counts, expected, "loss_chunks = {chunks}");
        assert_eq!(effects, format!("{slices} loss slices"));
    }

    // The table's gradient in the head, and a block's backward; attention's is twice its forward.
    let weights = 2 * n * (C * 3 * C + C * C + 2 * C * 4 * C);
    let saved = 2 * n * V * C + 2 * weights + 2 * (4 * n * T * C);
    let frozen = ["embedding", "blocks.0"].map(str::to_owned).to_vec();
    let (counts, effects) = work(&with(|strategy| strategy.freeze = frozen));
    let block = 12 * C * C + 13 * C;
    assert_eq!(plain.trained_parameters, 2 * ((V + T) * C + L * block + 2 * C));
    let trained_parameters = 2 * (block + 2 * C);
    assert_ne!(counts.updated, plain.updated, "fewer elements are updated");
    let Counts { updated, .. } = counts;
    assert_eq!(counts, Counts { flops: plain.flops - 2 * saved, trained_parameters, updated, ..plain });
    assert_eq!(effects, "21.4k parameters without gradients");

    let zeroed = with(|strategy| strategy.gradients = Gradients::Zero);
    let buckets = program(&zeroed);
    let buckets: u64 = buckets.buckets.iter().map(|bucket| buckets.ty(bucket.parameters).bytes()).sum();
    let (counts, effects) = work(&zeroed);
    assert_eq!(counts.zeroed_bytes, 2 * buckets);
    assert!(effects.ends_with(" zeroed"), "{effects}");

    let direct = with(|strategy| strategy.allocator = Allocator::Direct);
    let allocations = |kind: SectionKind| {
        let code = program(&direct).section(kind).unwrap().code.clone();
        code.iter().filter(|instruction| matches!(instruction.action, Action::Allocate(_))).count() as u64
    };
    let per_step = allocations(SectionKind::First) + allocations(SectionKind::Update);
    let (counts, effects) = work(&direct);
    assert_eq!(counts.requests, 2 * per_step);
    assert_eq!(counts.requests_in_evaluation, allocations(SectionKind::Evaluation));
    assert_eq!(effects, format!("{per_step} requests"));

    let late = |release| work(&with(|strategy| strategy.release = release)).0.late_frees;
    assert!(0 < late(Release::Scope) && late(Release::Scope) < late(Release::Step));

    // Per block three for each norm, three for attention, two for the mlp and two of the residual stream; the
    // embedding's tokens and output, and the head's norm.
    let (counts, effects) = work(&with(|strategy| strategy.evaluation_pass = EvaluationPass::Grad));
    assert_eq!(counts.late_frees_in_evaluation, 13 * L + 5);
    assert_eq!(effects, "31 values freed late in evaluation");
    let mut uneven = split(5, 3);
    uneven.strategy.evaluation_pass = EvaluationPass::Grad;
    assert_eq!(work(&uneven).0.late_frees_in_evaluation, 3 * counts.late_frees_in_evaluation);
    assert_eq!(plain.late_frees_in_evaluation, 0);
}
