//! All large allocations go through the ledger: after the first steps, a step allocates next to nothing on the heap.
//! The counts cover the whole process.

use std::alloc::System;

use crate::test_folder::{TestFolder, Tiny};
use data::Batch;
use device::{DeviceChoice, Pool, detect, open};
use execute::Engine;
use plan::compile;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts heap allocations. Pools use their own memory mappings and are not counted here.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Heap bytes allowed per step: less than any activation of the model below, enough for names, operand lists and queued
/// commands.
const ALLOWED: usize = 1 << 20;

/// Logits of 2 MiB, activations of 1 MiB and more.
const LARGE: Tiny = Tiny { layers: 2, d_model: 256, heads: 4, context: 256, batch_size: 8, lr: 1e-3 };

const MORE: &str = r#"
clip_norm = 1.0
optimizer.adamw.weight_decay = 0.1

[evaluation]
every = 1
batches = 1

[strategies.plain]
set."model.transformer.vocabulary" = 512

[strategies.direct]
extends = "plain"
allocator = "direct"
accumulate = 2
recompute = "block"
gradients = "zero"
evaluation_pass = "grad"
"#;

/// Bytes that `work` allocates on the heap, freed or not.
fn heap_bytes(work: impl FnOnce()) -> usize {
    let region = Region::new(HEAP);
    work();
    // Reallocations count with their growth.
    region.change().bytes_allocated
}

#[test]
fn steps_allocate_from_pools_only() {
    let _alone = crate::alone();
    assert!(heap_bytes(|| drop(std::hint::black_box(vec![0u8; ALLOWED]))) >= ALLOWED, "the heap is counted");
    for config in TestFolder::new().configs(&LARGE.with(MORE)) {
        // All tokens are token 0.
        let mut batch = Batch::new(&config.sample().parts, config.train.batch_size);
        batch.parts_mut().iter_mut().for_each(|part| part.bytes.fill(0));
        let target = detect(DeviceChoice::Cpu, None).unwrap();
        let program = compile(&config, &target).unwrap();
        let mut device = open(&target).unwrap();
        let mut engine = Engine::new(&program, device.as_mut(), false).unwrap();
        engine.start().unwrap();
        for step in 1..=5 {
            let bytes = heap_bytes(|| {
                engine.step(&batch, &config.numbers(1)).unwrap();
                engine.evaluate(&batch).unwrap();
            });
            // The first steps also allocate thread-local state.
            assert!(step < 3 || bytes < ALLOWED, "{:?} step {step}: {bytes} bytes", config.strategy);
        }
        let reading = heap_bytes(|| drop(engine.digest().unwrap()));
        assert!(reading < ALLOWED, "{:?} digest: {reading} bytes", config.strategy);
        assert!(engine.ledger().usage(Pool::Device).reserved_peak > 16 * ALLOWED as u64);
        engine.close().unwrap();
    }
}
