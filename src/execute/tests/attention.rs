//! `attention = "materialized"`: values kept for backward, and live memory during its computation.

use super::strategies::{Activations, BATCH, H, L, T, launches, live, program, with};
use super::trace;
use compile::{Program, SectionKind};
use device::{Pool, Position, Role};
use memory::live_at;
use spec::*;

/// Live device bytes of values whose names contain `part`, during the first launch of operation `name`.
fn named_during(program: &Program, name: &'static str, part: &str) -> u64 {
    let section = program.sections.iter().position(|section| section.kind == SectionKind::First).unwrap();
    let instruction = program.sections[section].code.iter().position(launches(name)).unwrap();
    let position = Position { section: section as u32, instruction: instruction as u32 };
    let values = live_at(program, &testing::target(), Pool::Device, position);
    values.iter().filter(|value| value.name.contains(part)).map(|value| value.bytes).sum()
}

#[test]
fn materialized_attention_keeps_its_probabilities() {
    let sizes = Activations { rounding: 256, micro_batch: BATCH };
    let (square, lse) = (sizes.f32(BATCH * H * T * T), sizes.f32(BATCH * H * T));
    let program = program(&with(|strategy| strategy.attention = Attention::Materialized));
    let found = live(&program, SectionKind::First, Role::Activation, launches("cross-entropy-with-gradient"));
    assert_eq!(found, sizes.kept(sizes.block() + square - lse));

    // Nothing is computed in place. Forward: scores and probabilities of one block. Backward of the last block: the
    // probabilities of all blocks, and the gradients of both.
    let forward = |part| named_during(&program, "materialized-attention", part);
    assert_eq!([forward("probabilities"), forward("scores")], [square; 2]);
    let backward = |part| named_during(&program, "materialized-attention-backward", part);
    assert_eq!([backward("probabilities"), backward("scores")], [(L + 1) * square, square]);

    // Half the bytes in 16 bits.
    let program = self::program(&with(|strategy| {
        (strategy.attention, strategy.precision) = (Attention::Materialized, Precision::Bf16);
    }));
    assert_eq!(named_during(&program, "materialized-attention", "scores"), square / 2);
}

/// With more queries than a kernel's tile.
#[test]
fn materialized_attention_has_the_same_losses() {
    let [fused, materialized] = [Attention::Fused, Attention::Materialized].map(|attention| {
        let config = with(|strategy| strategy.attention = attention);
        trace(&testing::reshaped(config, |model| model.context = 97))
    });
    assert_ne!(fused.digests, materialized.digests, "sums are in another order");
    for (step, (a, b)) in fused.losses.iter().zip(&materialized.losses).enumerate() {
        assert!((a - b).abs() <= 1e-5 * a, "step {}: {a} and {b}", step + 1);
    }
}
