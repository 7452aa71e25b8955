//! Configurations for tests.

use std::path::PathBuf;

use crate::device::{DeviceKind, Target};
use crate::spec::*;
use crate::units::Bytes;

/// A target that no machine is.
pub(crate) fn target() -> Target {
    Target {
        name: "test".to_owned(),
        kind: DeviceKind::Cpu,
        threads: 2,
        alignment: Bytes(256),
        page: Bytes(4096),
        product_workspace: Bytes(1 << 20),
        context: Bytes(0),
        memory: Bytes(1 << 40),
        limited: false,
    }
}

/// Two layers, two heads, 16 positions, four sequences a step.
pub(crate) fn small() -> RunConfig {
    RunConfig {
        model: Model::Transformer(Transformer {
            layers: 2,
            d_model: 32,
            heads: 2,
            context: 16,
            vocabulary: 256,
        }),
        data: Data::Text(Text { paths: vec![PathBuf::from("/nowhere")], tokens: Tokens::Bytes, split: 0.9 }),
        train: Train {
            batch_size: 4,
            clip_norm: Some(1.0),
            seed: 7,
            optimizer: Optimizer::AdamW(AdamW {
                lr: 1e-3,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.1,
                decay: Decay::Matrices,
            }),
        },
        evaluation: Some(Evaluation { every: 2, batches: 2 }),
        measure: Measure { warmup_steps: 1, steps: 3 },
        strategy: Strategy::default(),
    }
}

/// Every combination of the strategies' values.
pub(crate) fn strategies() -> Vec<RunConfig> {
    let mut configs = Vec::new();
    for accumulate in [1, 2, 4] {
        for recompute in [Recompute::None, Recompute::Block] {
            for release in [Release::Eager, Release::Scope, Release::Step] {
                for gradients in [Gradients::Free, Gradients::Zero] {
                    for allocator in [Allocator::Arena, Allocator::Direct] {
                        for evaluation_pass in [EvaluationPass::NoGrad, EvaluationPass::Grad] {
                            let mut config = small();
                            config.strategy = Strategy {
                                accumulate,
                                recompute,
                                release,
                                gradients,
                                allocator,
                                evaluation_pass,
                            };
                            configs.push(config);
                        }
                    }
                }
            }
        }
    }
    configs
}
