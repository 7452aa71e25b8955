//! Nothing allocates behind the ledger's back: once a run is under way, a step asks the heap for next to nothing.
//! The counts are those of a whole process.

use std::alloc::System;

use crate::place::{Place, Tiny};
use data::Batch;
use device::{DeviceChoice, Pool, detect, open};
use execute::Engine;
use plan::compile;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts what is asked of the heap. Pools are mappings of their own and do not show here.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Less than any one activation of the model below: names, lists of operands and queued commands fit.
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

/// Bytes asked of the heap while something is done, given back or not.
fn asked(work: impl FnOnce()) -> usize {
    let region = Region::new(HEAP);
    work();
    // Reallocations count here with their growth.
    region.change().bytes_allocated
}

#[test]
fn steps_allocate_in_pools_alone() {
    let _alone = crate::alone();
    assert!(asked(|| drop(std::hint::black_box(vec![0u8; ALLOWED]))) >= ALLOWED, "the heap is counted");
    for config in Place::new().configs(&LARGE.with(MORE)) {
        // Tokens that are all the first of the vocabulary.
        let mut batch = Batch::new(&config.sample().parts, config.train.batch_size);
        batch.parts_mut().iter_mut().for_each(|part| part.bytes.fill(0));
        let target = detect(DeviceChoice::Cpu, None).unwrap();
        let program = compile(&config, &target).unwrap();
        let mut device = open(&target).unwrap();
        let mut engine = Engine::new(&program, device.as_mut(), false).unwrap();
        engine.start().unwrap();
        for step in 1..=5 {
            let bytes = asked(|| {
                engine.step(&batch, &config.numbers(1)).unwrap();
                engine.evaluate(&batch).unwrap();
            });
            // The first steps also set up what threads keep for themselves.
            assert!(step < 3 || bytes < ALLOWED, "{:?} step {step}: {bytes} bytes", config.strategy);
        }
        let reading = asked(|| drop(engine.digest().unwrap()));
        assert!(reading < ALLOWED, "{:?} digest: {reading} bytes", config.strategy);
        assert!(engine.ledger().usage(Pool::Device).reserved_peak > 16 * ALLOWED as u64);
        engine.close().unwrap();
    }
}
