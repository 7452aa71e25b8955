//! Runs every kernel once on a very small model before anything is measured, so that what the process needs for
//! itself (code, stacks, thread-local tables) is resident and not taken for the run's memory.

use super::engine::{Batch, Engine};
use super::train::RunError;
use crate::compile::compile_verified;
use crate::device::Device;
use crate::memory::Failure;
use crate::spec::*;

const CONTEXT: usize = 128;
const BATCH: usize = 4;

/// In the precision of what will be measured: each has kernels of its own.
///
/// # Errors
/// A device that fails. One that has too little memory even for this is let be: the run itself will say so.
pub fn prime(device: &mut dyn Device, strategy: &Strategy) -> Result<(), RunError> {
    let Strategy { precision, loss_scale, .. } = *strategy;
    let config = config(Strategy { precision, loss_scale, ..Strategy::default() });
    let program = compile_verified(&config, device.target())?;
    let run = |device: &mut dyn Device| -> Result<(), Failure> {
        let mut engine = Engine::new(&program, device, false)?;
        engine.start()?;
        let batch = Batch { tokens: vec![1; BATCH * CONTEXT], targets: vec![2; BATCH * CONTEXT] };
        engine.step(&batch, &config.train.optimizer.numbers(1))?;
        engine.evaluate(&batch)?;
        engine.close()
    };
    match run(device) {
        Ok(()) => Ok(()),
        Err(Failure::Device(error)) => Err(error.into()),
        // The limit is below even this: the run itself will say so.
        Err(Failure::OutOfMemory(_)) => Ok(()),
    }
}

fn config(strategy: Strategy) -> RunConfig {
    let optimizer =
        AdamW { lr: 1.0, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decay: Decay::Matrices };
    RunConfig {
        model: Model::Transformer(Transformer {
            layers: 1,
            d_model: 64,
            heads: 2,
            context: CONTEXT,
            vocabulary: 64,
        }),
        data: Data::Text(Text { paths: Vec::new(), tokens: Tokens::Bytes, split: 1.0 }),
        train: Train {
            batch_size: BATCH,
            clip_norm: Some(1.0),
            seed: 0,
            optimizer: Optimizer::AdamW(optimizer),
        },
        evaluation: Some(Evaluation { every: 1, batches: 1 }),
        measure: Measure { warmup_steps: 0, steps: 1 },
        strategy,
    }
}
