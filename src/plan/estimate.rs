//! Estimates the time of a step by a roofline model of its operations.

use std::collections::{BTreeMap, HashMap};

use device::{DeviceKind, Factors, KnownCard, Pool, Target};
use memory::{Bottleneck, StepWork, Task};
use ops::DType;
use spec::{Precision, RunConfig};

/// The known rates of a device, and calibration factors from measured runs.
#[derive(Clone, Debug, Default)]
pub struct DeviceRates {
    /// FLOP/s of matmuls.
    pub products: HashMap<Factors, f64>,
    /// Bytes per second between the device and its own memory.
    pub memory: Option<f64>,
    /// Bytes per second from device to host memory, and as many back. `None` if both are the same memory.
    pub link: Option<f64>,
    /// Measured times relative to these rates, of runs of all models.
    pub calibration: Calibration,
    /// The same of runs of one model, by the model's description. Preferred for runs of that model.
    pub of_model: HashMap<String, Calibration>,
    /// Time to request a byte from the system and return it.
    pub seconds_per_asked_byte: f64,
    pub origin: RatesOrigin,
}

/// Measured time divided by roofline time, by operation and precision, then by load.
pub type Calibration = HashMap<(String, Precision), BTreeMap<Bottleneck, f64>>;

/// The origin of device rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RatesOrigin {
    /// No rates are known.
    #[default]
    Unknown,
    /// This number of runs measured on this device.
    Runs(usize),
    /// Peak rates of a known GPU.
    DataSheet,
}

impl DeviceRates {
    /// The rates in the data sheet of a known GPU. `None` for other targets.
    pub fn of_data_sheet(target: &Target) -> Option<DeviceRates> {
        let card = KnownCard::named(&target.name)?;
        let f32 = Factors::F32;
        let rates = [
            (f32, card.fp32),
            (Factors { tf32: true, ..f32 }, card.tf32),
            (Factors::BF16, card.bf16),
            (Factors { dtype: DType::F16, tf32: false }, card.bf16),
        ];
        Some(DeviceRates {
            products: rates.into_iter().map(|(factors, tera)| (factors, tera * 1e12)).collect(),
            memory: Some(card.bandwidth * 1e9),
            link: Some(card.link() * 1e9),
            origin: RatesOrigin::DataSheet,
            ..DeviceRates::default()
        })
    }

    /// Estimated milliseconds of an optimizer step. Operations run one after the other; each takes the longer of its
    /// compute and memory time. Transfers overlap with them if they are prefetched. Waiting for data and launch
    /// overhead are not counted. `None` if a rate is missing.
    pub fn step_ms(&self, work: &StepWork, config: &RunConfig, target: &Target) -> Option<f64> {
        let computed: f64 =
            work.tasks.iter().map(|task| self.task_seconds(task, config, target)).sum::<Option<f64>>()?;
        let computed = computed + self.seconds_per_asked_byte * work.asked_bytes as f64;
        let copied = self.copied_seconds(work, target)?;
        let overlaps = target.kind == DeviceKind::Cuda && config.strategy.offload.ahead > 0;
        let seconds = if overlaps { computed.max(copied) } else { computed + copied };
        Some(1e3 * seconds)
    }

    fn task_seconds(&self, task: &Task, config: &RunConfig, target: &Target) -> Option<f64> {
        let precision = config.strategy.precision;
        if target.kind == DeviceKind::Cuda && task.device == Pool::Host {
            // The rates of a GPU's host are unknown.
            return None;
        }
        let seconds = self.roofline_seconds(task.dtype, task.flops, task.bytes, precision)?;
        let own = self.of_model.get(&config.model.description());
        let calibration = own.and_then(|own| nearest(own, task, precision));
        Some(seconds * calibration.or_else(|| nearest(&self.calibration, task, precision)).unwrap_or(1.0))
    }

    /// The roofline time: the longer of compute and memory time at these rates.
    pub fn roofline_seconds(
        &self,
        dtype: DType,
        flops: u64,
        bytes: u64,
        precision: Precision,
    ) -> Option<f64> {
        let moving = bytes as f64 / self.memory?;
        match Bottleneck::of(flops, bytes) {
            Bottleneck::Moving(_) => Some(moving),
            Bottleneck::Computing(_) => {
                let factors = Factors { dtype, tf32: dtype == DType::F32 && precision == Precision::Tf32 };
                Some(moving.max(flops as f64 / self.products.get(&factors)?))
            }
        }
    }

    fn copied_seconds(&self, work: &StepWork, target: &Target) -> Option<f64> {
        let (to_host, to_device) = (work.to_host_bytes as f64, work.to_device_bytes as f64);
        Some(match target.kind {
            _ if to_host + to_device == 0.0 => 0.0,
            // Both pools are in one memory: each byte is read and written.
            DeviceKind::Cpu => 2.0 * (to_host + to_device) / self.memory?,
            // Both directions at once.
            DeviceKind::Cuda => to_host.max(to_device) / self.link?,
        })
    }
}

/// The calibration factor of the most similar load.
fn nearest(calibration: &Calibration, task: &Task, precision: Precision) -> Option<f64> {
    let by_load = calibration.get(&(task.operation.to_owned(), precision))?;
    let near =
        by_load.iter().filter_map(|(load, calibration)| Some((load.distance(task.load)?, *calibration)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, calibration)| calibration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::{small, target};

    fn task(operation: &'static str, flops: u64, bytes: u64) -> Task {
        Task {
            operation,
            device: Pool::Device,
            dtype: DType::F32,
            load: Bottleneck::of(flops, bytes),
            flops,
            bytes,
        }
    }

    fn work() -> StepWork {
        StepWork {
            // 40 ms of computation with 1 ms of memory traffic, then 6 ms of memory traffic.
            tasks: vec![task("linear", 40_000_000, 1_000_000), task("norm", 12_000_000, 6_000_000)],
            to_host_bytes: 2_000_000,
            to_device_bytes: 3_000_000,
            asked_bytes: 0,
        }
    }

    fn speeds() -> DeviceRates {
        DeviceRates {
            products: HashMap::from([(Factors::F32, 1e9)]),
            memory: Some(1e9),
            link: Some(1e8),
            ..DeviceRates::default()
        }
    }

    #[track_caller]
    fn is_about(found: Option<f64>, ms: f64) {
        assert!(found.is_some_and(|found| (found - ms).abs() < 1e-9 * ms), "{found:?}, not {ms}");
    }

    #[test]
    fn operation_takes_the_longer_of_compute_and_memory_time() {
        let (mut config, cpu) = (small(), target());
        let card = Target { kind: DeviceKind::Cuda, ..cpu.clone() };
        // Copies read and write the same memory.
        is_about(speeds().step_ms(&work(), &config, &cpu), 40.0 + 6.0 + 10.0);
        // Without and with overlap; the slower direction counts.
        config.strategy.offload.ahead = 0;
        is_about(speeds().step_ms(&work(), &config, &card), 46.0 + 30.0);
        config.strategy.offload.ahead = 1;
        is_about(speeds().step_ms(&work(), &config, &card), 46.0);
        is_about(DeviceRates { link: Some(5e7), ..speeds() }.step_ms(&work(), &config, &card), 60.0);
        let asking = DeviceRates { seconds_per_asked_byte: 1e-9, ..speeds() };
        is_about(asking.step_ms(&StepWork { asked_bytes: 7_000_000, ..work() }, &config, &card), 53.0);
    }

    #[test]
    fn calibration_of_the_nearest_load_is_applied() {
        let (config, target) = (small(), target());
        let by_load = [
            (Bottleneck::of(1_000_000, 1), 8.0),
            (Bottleneck::of(39_000_000, 1), 0.5),
            // The same operation, but memory-bound.
            (Bottleneck::of(0, 40_000_000), 100.0),
        ];
        let calibration = HashMap::from([(("linear".to_owned(), Precision::Fp32), BTreeMap::from(by_load))]);
        let of_any = DeviceRates { calibration, ..speeds() };
        is_about(of_any.step_ms(&work(), &config, &target), 20.0 + 6.0 + 10.0);
        // Calibration of the same model takes precedence.
        let by_load = BTreeMap::from([(Bottleneck::of(1_000, 1), 2.0)]);
        let own = HashMap::from([(("linear".to_owned(), Precision::Fp32), by_load)]);
        let of_model = HashMap::from([(config.model.description(), own)]);
        is_about(DeviceRates { of_model, ..of_any }.step_ms(&work(), &config, &target), 80.0 + 6.0 + 10.0);
    }

    #[test]
    fn missing_rates_give_no_estimate() {
        let (mut config, cpu) = (small(), target());
        let card = Target { kind: DeviceKind::Cuda, ..cpu.clone() };
        assert_eq!(DeviceRates::default().step_ms(&work(), &config, &cpu), None);
        assert_eq!(DeviceRates { link: None, ..speeds() }.step_ms(&work(), &config, &card), None);
        let mut on_the_host = work();
        on_the_host.tasks[1].device = Pool::Host;
        assert_eq!(speeds().step_ms(&on_the_host, &config, &card), None);
        // Matmuls in tf32 have another rate. Memory-bound operations need none.
        config.strategy.precision = Precision::Tf32;
        assert_eq!(speeds().step_ms(&work(), &config, &cpu), None);
        let mut moving = work();
        moving.tasks.remove(0);
        is_about(speeds().step_ms(&moving, &config, &cpu), 16.0);
    }

    #[test]
    fn known_gpu_has_the_rates_of_its_data_sheet() {
        let card = KnownCard::find("a100-80gb").unwrap();
        let speeds = DeviceRates::of_data_sheet(&card.target()).unwrap();
        assert_eq!((speeds.origin, speeds.memory), (RatesOrigin::DataSheet, Some(2.039e12)));
        assert_eq!(speeds.products[&Factors::BF16], 3.12e14);
        assert_eq!(speeds.link, Some(3.2e10));
        assert!(DeviceRates::of_data_sheet(&target()).is_none());
    }
}
