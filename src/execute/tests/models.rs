//! The cost of model variants, from their dimensions: parameters, activations kept for backward, FLOPs. Training
//! results are compared with PyTorch in `vectors`.

use super::strategies::{Activations, BATCH, C, L, T, V, launches, live, program};
use compile::SectionKind;
use device::Role;
use ops::Activation;
use spec::*;

const SIZES: Activations = Activations { rounding: 256, micro_batch: BATCH };
const N: u64 = BATCH * T;
/// A width of the feed-forward layer that differs from all other dimensions.
const F: u64 = 48;

/// The cost of a model that differs from GPT-2 by a change.
struct Cost {
    change: fn(&mut Transformer),
    /// Parameter elements.
    parameters: u64,
    /// Bytes kept for backward, of a block and of the head's norm.
    block: u64,
    head: u64,
    /// FLOPs of a forward pass.
    flops: u64,
}

const GPT2_MLP: u64 = 8 * C * C + 5 * C;

/// Parameter elements and forward FLOPs of GPT-2.
fn gpt2() -> (u64, u64) {
    let attention = 4 * C * C + 4 * C;
    let parameters = (V + T) * C + L * (attention + GPT2_MLP + 4 * C) + 2 * C;
    let block = 2 * N * (4 * C * C + 8 * C * C) + 4 * N * T * C;
    (parameters, L * block + 2 * N * C * V)
}

fn costs() -> Vec<(&'static str, Cost)> {
    let (parameters, flops) = gpt2();
    let (block, head) = (SIZES.block(), SIZES.norm());
    let plain = |change| Cost { change, parameters, block, head, flops };
    let hidden = SIZES.f32(N * 4 * C);
    let statistic = SIZES.f32(N);
    let wide = |width: u64| SIZES.f32(N * width);
    vec![
        ("nothing", plain(|_| {})),
        (
            "narrow",
            Cost {
                parameters: parameters - L * GPT2_MLP + L * (2 * C * F + F + C),
                block: block - 2 * hidden + 2 * wide(F),
                flops: flops - L * 2 * N * 8 * C * C + L * 2 * N * 2 * C * F,
                ..plain(|model| model.d_ff = F as usize)
            },
        ),
        (
            "gated",
            Cost {
                parameters: parameters - L * GPT2_MLP + L * (3 * C * F + 2 * F + C),
                // Gate and up projection, and their product.
                block: block - 2 * hidden + wide(2 * F) + wide(F),
                flops: flops - L * 2 * N * 8 * C * C + L * 2 * N * 3 * C * F,
                ..plain(|model| {
                    (model.activation, model.d_ff) = (MlpActivation::Gate(Activation::Silu), F as usize)
                })
            },
        ),
        (
            "RMS norms",
            Cost {
                parameters: parameters - (2 * L + 1) * C,
                block: block - 2 * statistic,
                head: head - statistic,
                ..plain(|model| model.norm = Norm::Rms)
            },
        ),
        (
            "no positions",
            Cost { parameters: parameters - T * C, ..plain(|model| model.positions = Positions::None) },
        ),
        // Rotations are computed in place.
        (
            "rotary positions",
            Cost { parameters: parameters - T * C, ..plain(|model| model.positions = Positions::Rotary) },
        ),
        (
            "no biases",
            Cost {
                parameters: parameters - L * (4 * C + 5 * C),
                ..plain(|model| (model.bias, model.qkv_bias) = (false, false))
            },
        ),
        (
            "biases of queries, keys and values alone",
            Cost { parameters: parameters - L * (C + 5 * C), ..plain(|model| model.bias = false) },
        ),
        (
            "RMS norms around zero",
            Cost {
                parameters: parameters - (2 * L + 1) * C,
                block: block - 2 * statistic,
                head: head - statistic,
                ..plain(|model| model.norm = Norm::RmsZeroCentered)
            },
        ),
        ("a scaled embedding", plain(|model| model.embedding_scale = Some(4.0))),
        // Scaled in place.
        ("scaled logits", plain(|model| model.logit_scale = Some(0.5))),
        ("scaled residual branches", plain(|model| model.residual_scale = Some(0.5))),
        (
            "rotations of every second block",
            Cost {
                parameters: parameters - T * C,
                ..plain(|model| {
                    (model.positions, model.rotary.skip_every) = (Positions::Rotary, Some(2));
                })
            },
        ),
        ("capped logits", plain(|model| model.logit_softcap = Some(30.0))),
        (
            "shared keys",
            Cost {
                parameters: parameters - L * (2 * C * C / 2 + 2 * C / 2),
                block: block - SIZES.f32(N * 3 * C) + SIZES.f32(N * 2 * C),
                flops: flops - L * 2 * N * C * C,
                ..plain(|model| model.kv_heads = 1)
            },
        ),
        (
            "wide heads",
            Cost {
                // q, k and v of 2 heads with 24 channels, and the output projection.
                parameters: parameters - L * (4 * C * C + 3 * C) + L * (4 * C * 48 + 3 * 48),
                block: block - wide(3 * C) - wide(C) + wide(3 * 48) + wide(48),
                flops: flops - L * (2 * N * 4 * C * C + 4 * N * T * C)
                    + L * (2 * N * 4 * C * 48 + 4 * N * T * 48),
                ..plain(|model| model.head_dim = 24)
            },
        ),
        // Only the first block has a window.
        (
            "windows",
            Cost {
                flops: flops - 4 * N * (T - 5) * C,
                ..plain(|model| (model.window, model.global_every) = (Some(5), Some(2)))
            },
        ),
        ("windows of all", plain(|model| model.window = Some(1000))),
        (
            "norms of queries and keys",
            Cost {
                parameters: parameters + L * 2 * 16,
                // The norm's input, and a statistic for each head.
                block: block + wide(3 * C) + SIZES.f32(N * 2 * 2),
                ..plain(|model| model.qk_norm = true)
            },
        ),
        (
            "norms over all heads of queries and keys",
            Cost {
                parameters: parameters + L * 2 * C,
                // The norm's input, and a statistic for all queries and one for all keys.
                block: block + wide(3 * C) + SIZES.f32(N * 2),
                ..plain(|model| (model.qk_norm, model.qk_norm_over) = (true, QkNormOver::AllHeads))
            },
        ),
        (
            "rotations of a part of the channels",
            Cost {
                parameters: parameters - T * C,
                ..plain(|model| {
                    (model.positions, model.rotary.channels) = (Positions::Rotary, Some(4));
                })
            },
        ),
        ("scores of another factor in windows", {
            let change: fn(&mut Transformer) =
                |model| (model.window, model.window_attention_scale) = (Some(1000), Some(0.1));
            plain(change)
        }),
        (
            "a bias of the head",
            Cost {
                parameters: parameters + V * C + V,
                ..plain(|model| (model.tied, model.head_bias) = (false, true))
            },
        ),
        (
            "norms of outputs alone",
            // The input of a part is the residual stream; the input and statistics of its output's norm are kept.
            Cost { parameters, ..plain(|model| model.norm_placement = NormPlacement::Output) },
        ),
        (
            "parallel parts",
            // Nothing reads the sum after attention in backward.
            Cost { block: block - SIZES.stream(), ..plain(|model| model.sub_layers = SubLayers::Parallel) },
        ),
        (
            "parallel parts with one norm",
            Cost {
                parameters: parameters - L * 2 * C,
                block: block - SIZES.stream() - SIZES.norm(),
                ..plain(|model| model.sub_layers = SubLayers::ParallelSharedNorm)
            },
        ),
        (
            "post-norm",
            // The output of each part's norm is the residual stream of the next part; the norm's input is kept, too.
            Cost {
                parameters: parameters - 2 * C,
                head: 0,
                ..plain(|model| model.norm_placement = NormPlacement::Post)
            },
        ),
        (
            "sandwich",
            Cost {
                parameters: parameters + L * 2 * 2 * C,
                // Input and statistics of a second norm for each part; its output is added to the residual stream.
                block: block + 2 * (SIZES.stream() + 2 * statistic),
                ..plain(|model| model.norm_placement = NormPlacement::Sandwich)
            },
        ),
        // Dropout masks are drawn again in backward.
        ("dropout", plain(|model| model.dropout = Dropout { embedding: 0.1, attention: 0.2, residual: 0.3 })),
        ("caps", plain(|model| model.attention_softcap = Some(2.0))),
        ("no mask", plain(|model| model.causal = false)),
        ("untied", Cost { parameters: parameters + V * C, ..plain(|model| model.tied = false) }),
    ]
}

#[test]
fn model_variants_have_the_expected_cost() {
    for (name, cost) in costs() {
        assert_cost(name, cost.change, &cost);
    }
}

/// Every activation keeps its result, which the next layer reads, and its input unless the derivative follows from the
/// result.
#[test]
fn every_activation_has_the_cost_of_gpt2() {
    let (_, gpt2) = costs().swap_remove(0);
    for activation in Activation::ALL {
        let change = |model: &mut Transformer| model.activation = MlpActivation::Plain(activation);
        let freed = match activation {
            Activation::Gelu | Activation::GeluTanh | Activation::ReluSquared | Activation::Silu => 0,
            Activation::Relu | Activation::Tanh | Activation::Sigmoid | Activation::LeakyRelu => {
                SIZES.f32(N * 4 * C)
            }
        };
        assert_cost(activation.definition().word, change, &Cost { block: gpt2.block - freed, ..gpt2 });
    }
}

fn assert_cost(name: &str, change: impl FnOnce(&mut Transformer), cost: &Cost) {
    let config = testing::reshaped(testing::small(), change);
    let graph = graph::build(&config.model, BATCH as usize);
    assert_eq!(graph.parameters(), cost.parameters, "{name}");
    assert_eq!(graph.flops(), cost.flops, "{name}");
    let program = program(&config);
    let loss = launches("cross-entropy-with-gradient");
    let found = live(&program, SectionKind::First, Role::Activation, loss);
    assert_eq!(found, SIZES.kept(cost.block) - SIZES.norm() + cost.head, "{name}");
    let updated: u64 = program.parameters.iter().map(|p| program.ty(p.value).elements() as u64).sum();
    assert_eq!(updated, cost.parameters, "{name}");
}

/// With norms on the residual stream, values and gradients keep their dtypes.
#[test]
fn every_norm_placement_trains_in_every_dtype() {
    for placement in NormPlacement::ALL {
        let config = testing::reshaped(testing::small(), |model| model.norm_placement = *placement);
        let losses = |params: StorageDtype| {
            let toml = config.to_toml("run", "plain");
            let unsaid = ["precision", "residual", "gradient_dtype", "loss_scale"];
            let is_said = |line: &&str| !unsaid.iter().any(|key| line.starts_with(&format!("{key} =")));
            let toml: Vec<&str> = toml.lines().filter(is_said).collect();
            let params = format!("params = \"{}\"", params.keyword());
            super::trace(&testing::changed(&toml.join("\n"), &[params]).unwrap()).losses
        };
        let plain = losses(StorageDtype::Fp32);
        for params in [StorageDtype::Bf16, StorageDtype::Fp16] {
            for (found, plain) in losses(params).iter().zip(&plain) {
                assert!((found / plain - 1.0).abs() < 0.03, "{placement:?}, {params:?}: {found}, {plain}");
            }
        }
    }
}
