//! Memory taken past the ledger is noticed. The resident set is that of a whole process.

use std::hint::black_box;

use crate::place::{Place, Tiny};
use compile::Program;
use data::Batch;
use device::{Device, DeviceChoice, Pool, detect, open};
use execute::{Engine, ExternalCounter, agrees};
use plan::compile;
use spec::RunConfig;

/// As much as must not go unnoticed.
const LEAK: usize = 8 << 20;

/// Reserves more than the 64 MiB from which runs are judged, all of it at once.
const LARGE: Tiny = Tiny { layers: 4, d_model: 256, heads: 4, context: 128, batch_size: 8, lr: 1e-3 };

/// A batch whose tokens are all the first of the vocabulary.
fn zeros(config: &RunConfig, samples: usize) -> Batch {
    let mut batch = Batch::new(&config.sample().parts, samples);
    batch.parts_mut().iter_mut().for_each(|part| part.bytes.fill(0));
    batch
}

/// A step during which the process may take memory that the ledger does not know: reserved and witnessed bytes.
fn step(
    program: &Program,
    device: &mut dyn Device,
    batch: &Batch,
    numbers: &[f32],
    leak: usize,
) -> (u64, u64) {
    let witness = ExternalCounter::begin(device).expect("a system with a witness");
    let mut engine = Engine::new(program, device, false).unwrap();
    engine.start().unwrap();
    // Not zeros: pages of those need not be resident.
    let leaked = black_box(vec![1u8; leak]);
    engine.step(batch, numbers).unwrap();
    drop(black_box(leaked));
    let reserved = Pool::ALL.iter().map(|&pool| engine.ledger().usage(pool).reserved_peak).sum();
    let witnessed = witness.read(engine.device()).unwrap().peak;
    engine.close().unwrap();
    (reserved, witnessed)
}

#[test]
fn a_leak_past_the_ledger_is_noticed() {
    let _alone = crate::alone();
    let [config] = &Place::new().configs(&LARGE.with("[strategies.plain]\n"))[..] else {
        panic!("not one run")
    };
    let batch = zeros(config, config.train.batch_size);
    let target = detect(DeviceChoice::Cpu, None).unwrap();
    let program = compile(config, &target).unwrap();
    let mut device = open(&target).unwrap();

    // What the process needs for itself (code, stacks) becomes resident before anything is judged.
    let numbers = config.numbers(1);
    step(&program, device.as_mut(), &batch, &numbers, 0);

    let (reserved, witnessed) = step(&program, device.as_mut(), &batch, &numbers, 0);
    assert!(reserved >= 64 << 20, "{reserved} bytes are too few to be judged");
    assert!(agrees(reserved, witnessed), "without a leak: reserved {reserved}, witnessed {witnessed}");

    let (reserved, witnessed) = step(&program, device.as_mut(), &batch, &numbers, LEAK);
    assert!(!agrees(reserved, witnessed), "with a leak: reserved {reserved}, witnessed {witnessed}");
    assert!(witnessed >= reserved + LEAK as u64 / 2, "it is the leak that is noticed");
}
