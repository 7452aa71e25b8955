//! Detects memory that is allocated outside the ledger, by the resident set of the whole process.

use std::hint::black_box;

use crate::test_folder::{TestFolder, Tiny};
use compile::Program;
use data::Batch;
use device::{Device, DeviceChoice, Pool, detect, open};
use execute::{Engine, ExternalCounter, agrees};
use plan::compile;
use spec::RunConfig;

/// The size of a leak that must be detected.
const LEAK: usize = 8 << 20;

/// A model that reserves more than 64 MiB, the minimum for comparing the reading with the ledger, all at once.
const LARGE: Tiny = Tiny { layers: 4, d_model: 256, heads: 4, context: 128, batch_size: 8, lr: 1e-3 };

/// A batch whose tokens are all token 0.
fn zeros(config: &RunConfig, samples: usize) -> Batch {
    let mut batch = Batch::new(&config.sample().parts, samples);
    batch.parts_mut().iter_mut().for_each(|part| part.bytes.fill(0));
    batch
}

/// Runs a step while the process holds `leak` bytes outside the ledger. Returns reserved and externally read bytes.
fn step(
    program: &Program,
    device: &mut dyn Device,
    batch: &Batch,
    numbers: &[f32],
    leak: usize,
) -> (u64, u64) {
    let counter = ExternalCounter::begin(device).expect("a system with an external reading");
    let mut engine = Engine::new(program, device, false).unwrap();
    engine.start().unwrap();
    // Not zeros: zero pages need not be resident.
    let leaked = black_box(vec![1u8; leak]);
    engine.step(batch, numbers).unwrap();
    drop(black_box(leaked));
    let reserved = Pool::ALL.iter().map(|&pool| engine.ledger().usage(pool).reserved_peak).sum();
    let external = counter.read(engine.device()).unwrap().peak;
    engine.close().unwrap();
    (reserved, external)
}

#[test]
fn memory_outside_ledger_is_detected() {
    let _alone = crate::alone();
    let [config] = &TestFolder::new().configs(&LARGE.with("[strategies.plain]\n"))[..] else {
        panic!("not one run")
    };
    let batch = zeros(config, config.train.batch_size);
    let target = detect(DeviceChoice::Cpu, None).unwrap();
    let program = compile(config, &target).unwrap();
    let mut device = open(&target).unwrap();

    // A first step makes the process's own memory (code, stacks) resident before the comparisons.
    let numbers = config.numbers(1);
    step(&program, device.as_mut(), &batch, &numbers, 0);

    let (reserved, external) = step(&program, device.as_mut(), &batch, &numbers, 0);
    assert!(reserved >= 64 << 20, "{reserved} bytes are too few to compare");
    assert!(agrees(reserved, external), "without a leak: reserved {reserved}, external {external}");

    let (reserved, external) = step(&program, device.as_mut(), &batch, &numbers, LEAK);
    assert!(!agrees(reserved, external), "with a leak: reserved {reserved}, external {external}");
    assert!(external >= reserved + LEAK as u64 / 2, "the difference is the leak");
}
