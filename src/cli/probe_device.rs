//! `probe-device`, a hidden command: the child process that measures a device's context memory and rates.

use super::failure::{ExitStatus, Failure};
use super::output;
use base::units::Bytes;
use device::{DeviceChoice, Factors, ProbeReport};
use memory::RunSchedule;
use plan::compile_verified;
use spec::{
    AdamW, Data, Decay, Evaluation, LastBatch, Measure, Model, Optimizer, RunConfig, Schedule, Strategy,
    Text, Train, Transformer,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Index of the card; without it, the CPU
    #[arg(long, value_name = "N")]
    ordinal: Option<usize>,
    /// Measure the rates of matmuls and copies
    #[arg(long)]
    rates: bool,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let target = match args.ordinal {
        // The context's size is unknown before it exists.
        Some(ordinal) => device::equip(ordinal).map_err(Failure::machine)?.target(Bytes(0)),
        None => device::detect(DeviceChoice::Cpu, None).map_err(Failure::machine)?,
    };
    let mut device = device::open_card(&target, args.ordinal.unwrap_or(0)).map_err(Failure::machine)?;
    let config = small_run();
    let program = compile_verified(&config, &target).map_err(Failure::machine)?;
    execute::prime(device.as_mut(), &program, RunSchedule::of(&config)).map_err(Failure::machine)?;
    // Starting the counter returns the pool's primed memory.
    device.begin_external_reading().map_err(Failure::machine)?;
    let reading = device.external_reading().map_err(Failure::machine)?;
    let mut probed = ProbeReport {
        context_bytes: reading.map_or(0, |reading| reading.taken),
        notes: device.notes().to_vec(),
        ..ProbeReport::default()
    };
    if args.rates {
        let rates = device::measure_rates(device.as_mut(), Factors::F32).map_err(Failure::machine)?;
        let bf16 = device::measure_product(device.as_mut(), Factors::BF16).map_err(Failure::machine)?;
        probed = ProbeReport {
            product_flops_per_s: rates.product_flops_per_s,
            bf16_product_flops_per_s: bf16,
            copy_bytes_per_s: rates.copy_bytes_per_s,
            ..probed
        };
    }
    output::print(&format!("{}\n", serde_json::to_string(&probed).map_err(Failure::machine)?))?;
    Ok(ExitStatus::Complete)
}

/// A run with every kind of operation: after it, a card's context holds all that runs load into it.
fn small_run() -> RunConfig {
    let optimizer = AdamW {
        lr: 1.0,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        decay: Decay::Matrices,
        groups: Vec::new(),
    };
    RunConfig {
        model: Model::Transformer(Transformer { vocabulary: 64, ..Transformer::new(1, 64, 2, 128) }),
        data: Data::Text(Text::new(Vec::new(), 1.0)),
        train: Train {
            batch_size: 4,
            clip_norm: Some(1.0),
            seed: 0,
            shuffle: false,
            last_batch: LastBatch::Drop,
            optimizer: Optimizer::AdamW(optimizer),
            schedule: Schedule::default(),
        },
        evaluation: Some(Evaluation { every: 1, ..Evaluation::default() }),
        measure: Measure { warmup_steps: 0, steps: 1, ..Measure::default() },
        strategy: Strategy::default(),
        tokens: None,
    }
}
