//! `probe-device`, a hidden command: the child process that measures a device's context memory and rates.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::failure::{ExitStatus, Failure};
use super::output;
use base::units::Bytes;
use device::{Device, DeviceChoice, DeviceError, Factors, Pool, ProbeReport, Queue, Region};
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
    /// Measure only the rate of copies between the device and its host
    #[arg(long, conflicts_with = "rates")]
    link: bool,
}

/// The result of a probe of the link: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkReport {
    pub(super) link_bytes_per_s: f64,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let target = match args.ordinal {
        // The context's size is unknown before it exists.
        Some(ordinal) => device::equip(ordinal).map_err(Failure::machine)?.target(Bytes(0)),
        None => device::detect(DeviceChoice::Cpu, None).map_err(Failure::machine)?,
    };
    let mut device = device::open_card(&target, args.ordinal.unwrap_or(0)).map_err(Failure::machine)?;
    if args.link {
        let report = LinkReport { link_bytes_per_s: link_rate(device.as_mut()).map_err(Failure::machine)? };
        output::print(&format!("{}\n", serde_json::to_string(&report).map_err(Failure::machine)?))?;
        return Ok(ExitStatus::Complete);
    }
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

/// Bytes per second between the device and pinned host memory, in the slower direction.
fn link_rate(device: &mut dyn Device) -> Result<f64, DeviceError> {
    const BYTES: u64 = 128 << 20;
    const SAMPLES: usize = 5;
    let whole = |buffer| Region { buffer, offset: 0, bytes: BYTES };
    let host = whole(device.allocate(Pool::Pinned, BYTES)?);
    let own = whole(device.allocate(Pool::Device, BYTES)?);
    let mut slower = Duration::ZERO;
    for (from, to) in [(host, own), (own, host)] {
        let mut best = Duration::MAX;
        for _ in 0..SAMPLES {
            device.synchronize()?;
            let began = Instant::now();
            device.copy(Queue::Copy, from, to)?;
            device.synchronize()?;
            best = best.min(began.elapsed());
        }
        slower = slower.max(best);
    }
    device.free(host.buffer)?;
    device.free(own.buffer)?;
    Ok(BYTES as f64 / slower.as_secs_f64())
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
        data_len: None,
        lengths: None,
        all_packed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_rate_is_measured_in_both_directions() {
        let target = device::detect(DeviceChoice::Cpu, None).unwrap();
        let rate = link_rate(device::open(&target).unwrap().as_mut()).unwrap();
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
    }
}
