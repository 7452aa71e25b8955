//! Recomputation, with every kind of `recompute`: kept values, bitwise equality and FLOPs.

use super::strategies::{Activations, BATCH, C, H, T, launches, live, program, with, work};
use base::units::Bytes;
use compile::SectionKind;
use device::Role;
use ops::OpKind;
use spec::*;

/// Five blocks, so that all choices among them differ.
const BLOCKS: u64 = 5;

const ATTENTION: [Attention; 2] = [Attention::Fused, Attention::Materialized];

const SIZES: Activations = Activations { rounding: 256, micro_batch: BATCH };

/// Bytes that attention keeps besides its output: log-sum-exp or probabilities.
fn beside_out(attention: Attention) -> u64 {
    SIZES.f32(match attention {
        Attention::Fused => BATCH * H * T,
        Attention::Materialized => BATCH * H * T * T,
    })
}

/// Each recompute setting with the kept bytes of five blocks, their outputs included, and the recomputed FLOPs.
fn recomputed(attention: Attention) -> Vec<(Recompute, u64, u64)> {
    let beside = beside_out(attention);
    let whole = SIZES.block() - beside_out(ATTENTION[0]) + beside;
    let (x, norm) = (SIZES.stream(), SIZES.norm());
    let (qkv, out) = (SIZES.f32(SIZES.rows() * 3 * C), x + beside);
    let mlp = 2 * SIZES.f32(SIZES.rows() * 4 * C);
    let n = BATCH * T;
    // The last matmul of a part is not recomputed: its output is not read in the part's backward.
    let (of_qkv, of_attention, of_out, of_mlp) =
        (2 * n * C * 3 * C, 4 * n * T * C, 2 * n * C * C, 2 * n * C * 4 * C);
    let block = of_qkv + of_attention + of_out + of_mlp;
    let parts = |parts: &[BlockPart]| Recompute::Parts(parts.iter().copied().collect());
    let save = |kinds: &[OpKind]| Recompute::Save(kinds.iter().copied().collect());
    use BlockPart::{Attention, Mlp, Norm};
    vec![
        (Recompute::None, BLOCKS * whole, 0),
        (Recompute::Block, BLOCKS * x, BLOCKS * block),
        (parts(&[Attention]), BLOCKS * (whole - norm - qkv - out), BLOCKS * (of_qkv + of_attention)),
        (parts(&[Mlp]), BLOCKS * (whole - norm - mlp), BLOCKS * of_mlp),
        (parts(&[Attention, Mlp]), BLOCKS * 2 * x, BLOCKS * (of_qkv + of_attention + of_mlp)),
        (parts(&[Norm]), BLOCKS * (whole - 2 * norm), 0),
        (parts(&[Mlp, Norm]), BLOCKS * (whole - 2 * norm - mlp), BLOCKS * of_mlp),
        (Recompute::Every(1), BLOCKS * x, BLOCKS * block),
        (Recompute::Every(2), 3 * x + 2 * whole, 3 * block),
        (Recompute::Every(9), x + 4 * whole, block),
        (Recompute::Segments(1), BLOCKS * whole, 0),
        // Within a segment, each block but the last recomputes its last matmul, as the next block's input.
        (Recompute::Segments(2), x + 3 * whole, 2 * block + of_mlp),
        (Recompute::Segments(3), 2 * x + 3 * whole, 2 * block),
        (Recompute::Segments(5), 4 * x + whole, 4 * block),
        (save(&[]), BLOCKS * x, BLOCKS * block),
        (save(&[OpKind::Linear]), BLOCKS * (whole - 2 * norm - out), BLOCKS * of_attention),
        (save(&[OpKind::Linear, OpKind::Attention]), BLOCKS * (whole - 2 * norm), 0),
        (save(&[OpKind::Attention]), BLOCKS * (x + out), BLOCKS * (of_qkv + of_out + of_mlp)),
        (save(&[OpKind::Norm]), BLOCKS * (x + 2 * norm), BLOCKS * block),
    ]
}

fn recomputing(attention: Attention, recompute: Recompute) -> RunConfig {
    let config = with(|strategy| (strategy.attention, strategy.recompute) = (attention, recompute));
    testing::reshaped(config, |model| model.layers = BLOCKS as usize)
}

#[test]
fn recompute_keeps_the_expected_bytes() {
    for attention in ATTENTION {
        for (recompute, kept, _) in recomputed(attention) {
            let program = program(&recomputing(attention, recompute));
            let found =
                live(&program, SectionKind::First, Role::Activation, launches("cross-entropy-with-gradient"));
            assert_eq!(found, SIZES.kept(0) + kept, "{recompute:?}, {attention:?}");
        }
    }
}

/// With five blocks, segments of two blocks also recompute the value between them.
#[test]
fn recompute_is_bitwise_equal() {
    let nf4 = || {
        let targets = vec!["mlp".to_owned()];
        Lora { base: LoraBase::Nf4, double_quantization: true, ..Lora::new(2, 4.0, targets) }
    };
    let fused = |recompute| recomputing(Attention::Fused, recompute);
    let changes: [fn(&mut Strategy); 4] = [
        |_| {},
        |strategy| strategy.attention = Attention::Materialized,
        |strategy| (strategy.precision, strategy.accumulate) = (Precision::Bf16, 3),
        |strategy| {
            let offload = &mut strategy.offload;
            (offload.parameters, offload.activations) = (true, ActivationOffload::From(Bytes(0)));
        },
    ];
    for change in changes {
        let changed = |recompute| {
            let mut config = fused(recompute);
            change(&mut config.strategy);
            super::trace(&config)
        };
        let plain = changed(Recompute::None);
        for (recompute, ..) in recomputed(Attention::Fused) {
            assert_eq!(changed(recompute), plain, "{recompute:?}");
        }
    }
    for (recompute, ..) in recomputed(Attention::Fused) {
        let [adapted, plain] = [recompute, Recompute::None].map(|recompute| {
            let mut config = fused(recompute);
            config.strategy.lora = Some(nf4());
            super::trace(&config)
        });
        assert_eq!(adapted, plain, "{recompute:?} with a quantized base");
    }
}

#[test]
fn recompute_has_the_expected_flops_and_effects() {
    for attention in ATTENTION {
        let (plain, _) = work(&recomputing(attention, Recompute::None));
        for (recompute, _, flops) in recomputed(attention) {
            let (counts, effects) = work(&recomputing(attention, recompute));
            assert_eq!(counts.recompute_flops, 2 * flops, "{recompute:?}, {attention:?}");
            assert_eq!(counts.flops, plain.flops + 2 * flops, "{recompute:?}, {attention:?}");
            let told = match recompute {
                Recompute::None | Recompute::Segments(1) => String::new(),
                _ if flops == 0 => format!("{} operations recomputed", counts.recomputed_operations / 2),
                _ => format!("+{:.0}% FLOPs", 100.0 * (2 * flops) as f64 / plain.flops as f64),
            };
            assert_eq!(effects, told, "{recompute:?}, {attention:?}");
        }
    }
    // Two norms in each block.
    let (counts, _) =
        work(&recomputing(Attention::Fused, Recompute::Parts([BlockPart::Norm].into_iter().collect())));
    assert_eq!(counts.recomputed_operations, 2 * 2 * BLOCKS);
}
