//! Estimates the time of a step by a roofline model of its operations.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::Compiler;
use super::exchange::node_of_data_sheet;
use base::rates::{BytesPerSecond, FlopsPerSecond};
use device::{DeviceKind, Factors, KnownCard, Phase, Pool, Target};
use memory::{Bottleneck, StepWork, Task};
use ops::DType;
use spec::{KeywordEnum as _, NodeRates, Precision, RunConfig, Train};

/// The assumed rates of a known card's host: of the order of one thread of a server's processor. One thread of an AMD
/// EPYC that other programs used too moved 22 GB/s in AdamW and reached 83 GFLOP/s in fp32 matmuls.
pub const ASSUMED_HOST: NodeRates = NodeRates {
    link: None,
    host_bandwidth: Some(BytesPerSecond(20_000_000_000)),
    host_flops: Some(FlopsPerSecond(80_000_000_000)),
    cards: None,
    card_link: None,
    network: None,
};

/// The known rates of a device, and calibration factors from measured runs.
#[derive(Clone, Debug, Default)]
pub struct DeviceRates {
    /// FLOP/s of matmuls.
    pub products: HashMap<Factors, f64>,
    /// Bytes per second between the device and its own memory.
    pub memory: Option<f64>,
    /// Of a card's node.
    pub node: NodeRates,
    /// Those of them that were stated, by a target file, an experiment or the command line. The others are assumed.
    pub stated: NodeRates,
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
            (f32, Some(card.fp32)),
            (Factors { tf32: true, ..f32 }, card.tf32),
            (Factors::BF16, card.half.filter(|_| !target.is_too_old())),
            (Factors { dtype: DType::F16, tf32: false }, card.half),
        ];
        let known = |(factors, tera): (Factors, Option<f64>)| Some((factors, tera? * 1e12));
        Some(DeviceRates {
            products: rates.into_iter().filter_map(known).collect(),
            memory: Some(card.bandwidth * 1e9),
            origin: RatesOrigin::DataSheet,
            ..DeviceRates::default()
        })
    }

    /// These rates, with missing ones of fp32 and of the memory of the order of one thread of a server's processor: for
    /// ranking on devices of which too little was measured.
    pub fn or_assumed(mut self) -> DeviceRates {
        let NodeRates { host_bandwidth, host_flops, .. } = ASSUMED_HOST;
        if let Some(FlopsPerSecond(rate)) = host_flops {
            self.products.entry(Factors::F32).or_insert(rate as f64);
        }
        self.memory = self.memory.or(host_bandwidth.map(|BytesPerSecond(rate)| rate as f64));
        self
    }

    /// These rates with stated rates of the node; a known card's missing ones are assumed.
    pub fn with_node(self, stated: NodeRates, target: &Target) -> DeviceRates {
        let assumed = |card: &KnownCard| NodeRates {
            link: Some(BytesPerSecond((card.link() * 1e9) as u64)),
            ..ASSUMED_HOST.or(node_of_data_sheet(card))
        };
        let assumed = KnownCard::named(&target.name).map(assumed).unwrap_or_default();
        DeviceRates { node: stated.or(assumed), stated, ..self }
    }

    /// Estimated milliseconds of an optimizer step. Operations run one after the other; each takes the longer of its
    /// compute and memory time. Transfers overlap with them if they are prefetched, exchanges between ranks with those of
    /// their phase. Waiting for data and launch overhead are not counted.
    ///
    /// # Errors
    /// A rate is unknown.
    pub fn step_ms(&self, work: &StepWork, config: &RunConfig, target: &Target) -> Result<f64, UnknownRate> {
        let computed = self.computed_seconds(work, None, config, target)?;
        let exposed = self.exposed_seconds(work, config, target)?;
        let computed = computed + self.seconds_per_asked_byte * work.asked_bytes as f64;
        let copied = self.copied_seconds(work, config, target)?;
        let overlaps = target.kind == DeviceKind::Cuda && config.strategy.offload.ahead > 0;
        let seconds = if overlaps { computed.max(copied) } else { computed + copied };
        Ok(1e3 * (seconds + exposed))
    }

    /// Seconds of computation in one phase of a step, or in all.
    pub(super) fn computed_seconds(
        &self,
        work: &StepWork,
        phase: Option<Phase>,
        config: &RunConfig,
        target: &Target,
    ) -> Result<f64, UnknownRate> {
        let tasks = work.tasks.iter().filter(|task| phase.is_none_or(|phase| task.phase == phase));
        tasks.map(|task| self.task_seconds(task, config, target)).sum()
    }

    /// Estimated tokens per second with micro-batches of another size. `None` if a rate is unknown, or if the model has no
    /// tokens.
    pub fn tokens_per_s(&self, config: &RunConfig, micro_batch: usize, target: &Target) -> Option<f64> {
        let batch_size = micro_batch * config.strategy.accumulate * config.ranks();
        let config = RunConfig { train: Train { batch_size, ..config.train.clone() }, ..config.clone() };
        let mut compiler = Compiler::new(target);
        let work = StepWork::of(&compiler.compile_work(&config).ok()?.program);
        let ms = self.step_ms(&work, &config, target).ok()?;
        Some(1e3 * (batch_size * config.sample().positions()?) as f64 / ms)
    }

    fn task_seconds(&self, task: &Task, config: &RunConfig, target: &Target) -> Result<f64, UnknownRate> {
        let precision = config.strategy.precision;
        if is_on_host(task, target) {
            return self.host_seconds(task);
        }
        let seconds = self
            .roofline_seconds(task.dtype, task.flops, task.bytes, precision)
            .ok_or(UnknownRate::OfDevice(precision))?;
        let own = self.of_model.get(&config.model.description());
        let calibration = own.and_then(|own| nearest(own, task, precision));
        Ok(seconds * calibration.or_else(|| nearest(&self.calibration, task, precision)).unwrap_or(1.0))
    }

    /// The roofline time of an operation on a card's host.
    fn host_seconds(&self, task: &Task) -> Result<f64, UnknownRate> {
        let BytesPerSecond(bandwidth) = self.node.host_bandwidth.ok_or(UnknownRate::OfHostMemory)?;
        let moving = task.bytes as f64 / bandwidth as f64;
        match Bottleneck::of(task.flops, task.bytes) {
            Bottleneck::Moving(_) => Ok(moving),
            Bottleneck::Computing(_) => {
                let flops = self.node.host_flops.filter(|_| task.dtype == DType::F32);
                let FlopsPerSecond(flops) = flops.ok_or(UnknownRate::OfHostMatmuls(task.dtype))?;
                Ok(moving.max(task.flops as f64 / flops as f64))
            }
        }
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

    fn copied_seconds(
        &self,
        work: &StepWork,
        config: &RunConfig,
        target: &Target,
    ) -> Result<f64, UnknownRate> {
        let (to_host, to_device) = (work.to_host_bytes as f64, work.to_device_bytes as f64);
        match target.kind {
            _ if to_host + to_device == 0.0 => Ok(0.0),
            // Both pools are in one memory: each byte is read and written.
            DeviceKind::Cpu => {
                let memory = self.memory.ok_or(UnknownRate::OfDevice(config.strategy.precision))?;
                Ok(2.0 * (to_host + to_device) / memory)
            }
            // Both directions at once.
            DeviceKind::Cuda => {
                let BytesPerSecond(link) = self.node.link.ok_or(UnknownRate::OfLink)?;
                Ok(to_host.max(to_device) / link as f64)
            }
        }
    }
}

/// Whether an operation runs on a card's host.
pub fn is_on_host(task: &Task, target: &Target) -> bool {
    target.kind == DeviceKind::Cuda && task.device == Pool::Host
}

/// A rate without which there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownRate {
    /// The device's matmuls or memory, for runs of this precision.
    OfDevice(Precision),
    OfLink,
    OfHostMemory,
    OfHostMatmuls(DType),
    /// Of exchanges between ranks on a CPU.
    OfExchanges,
    /// The number of cards of a node.
    OfCards,
    OfCardLink,
    /// Of the network between nodes of this number of cards.
    OfNetwork {
        cards: usize,
    },
}

/// Why there is no estimate, and the key that supplies the rate.
impl fmt::Display for UnknownRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const IN_TARGET: &str = "in a target file sets it";
        match self {
            UnknownRate::OfDevice(precision) => {
                write!(f, "no run gave the device's rates in {}", precision.keyword())
            }
            UnknownRate::OfLink => {
                write!(
                    f,
                    "the rate of the link to the host is unknown: `--link` sets it, or `link` {IN_TARGET}"
                )
            }
            UnknownRate::OfHostMemory => {
                write!(f, "the bandwidth of the host's memory is unknown: `host_bandwidth` {IN_TARGET}")
            }
            UnknownRate::OfHostMatmuls(DType::F32) => {
                write!(f, "the host's rate of fp32 matmuls is unknown: `host_flops` {IN_TARGET}")
            }
            UnknownRate::OfHostMatmuls(_) => write!(f, "the host's rate of 16-bit matmuls is unknown"),
            UnknownRate::OfExchanges => write!(f, "the rate of exchanges between ranks on a CPU is unknown"),
            UnknownRate::OfCards => {
                write!(f, "the number of cards of a node is unknown: `cards` {IN_TARGET}")
            }
            UnknownRate::OfCardLink => {
                write!(f, "the rate between the cards of a node is unknown: `card_link` {IN_TARGET}")
            }
            UnknownRate::OfNetwork { cards } => {
                write!(
                    f,
                    "the rate between nodes is unknown, for more ranks than the {cards} card{} of a node: `network` {IN_TARGET}",
                    if *cards == 1 { "" } else { "s" }
                )
            }
        }
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
            phase: Phase::Forward,
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
            exchanges: Vec::new(),
            asked_bytes: 0,
        }
    }

    fn speeds() -> DeviceRates {
        DeviceRates {
            products: HashMap::from([(Factors::F32, 1e9)]),
            memory: Some(1e9),
            node: NodeRates { link: Some(BytesPerSecond(100_000_000)), ..NodeRates::default() },
            ..DeviceRates::default()
        }
    }

    #[track_caller]
    fn is_about(found: Result<f64, UnknownRate>, ms: f64) {
        assert!(found.is_ok_and(|found| (found - ms).abs() < 1e-9 * ms), "{found:?}, not {ms}");
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
        is_about(
            DeviceRates {
                node: NodeRates { link: Some(BytesPerSecond(50_000_000)), ..NodeRates::default() },
                ..speeds()
            }
            .step_ms(&work(), &config, &card),
            60.0,
        );
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
        let unknown = |rates: DeviceRates, target| rates.step_ms(&work(), &config, target).unwrap_err();
        assert_eq!(unknown(DeviceRates::default(), &cpu), UnknownRate::OfDevice(Precision::Fp32));
        let unlinked = DeviceRates { node: NodeRates::default(), ..speeds() };
        assert_eq!(unknown(unlinked, &card), UnknownRate::OfLink);
        let mut on_the_host = work();
        on_the_host.tasks[1].device = Pool::Host;
        assert_eq!(speeds().step_ms(&on_the_host, &config, &card), Err(UnknownRate::OfHostMemory));
        // Matmuls in tf32 have another rate. Memory-bound operations need none.
        config.strategy.precision = Precision::Tf32;
        assert_eq!(speeds().step_ms(&work(), &config, &cpu), Err(UnknownRate::OfDevice(Precision::Tf32)));
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
        assert!(DeviceRates::of_data_sheet(&target()).is_none());
    }

    #[test]
    fn known_gpu_without_stated_rates_has_assumed_ones() {
        let card = KnownCard::find("a100-80gb").unwrap().target();
        let stated = NodeRates { link: Some(BytesPerSecond(25)), ..NodeRates::default() };
        let rates = speeds().with_node(stated, &card);
        let node =
            NodeRates { cards: Some(8), card_link: Some(BytesPerSecond(300_000_000_000)), ..ASSUMED_HOST };
        assert_eq!(rates.node, NodeRates { link: Some(BytesPerSecond(25)), ..node });
        assert_eq!(rates.stated, stated);
        let link = speeds().with_node(NodeRates::default(), &card).node.link;
        assert_eq!(link, Some(BytesPerSecond(32_000_000_000)));
        assert_eq!(speeds().with_node(stated, &target()).node, stated);
    }

    /// An operation on the host takes the longer of its compute and memory time, at the host's rates.
    #[test]
    fn host_operations_take_the_rates_of_the_host() {
        let mut config = small();
        let card = Target { kind: DeviceKind::Cuda, ..target() };
        let node = NodeRates {
            link: Some(BytesPerSecond(100_000_000)),
            host_bandwidth: Some(BytesPerSecond(500_000_000)),
            host_flops: Some(FlopsPerSecond(100_000_000)),
            ..NodeRates::default()
        };
        let mut work = work();
        work.tasks[1].device = Pool::Host;
        config.strategy.offload.ahead = 0;
        let rates = DeviceRates { node, ..speeds() };
        is_about(rates.step_ms(&work, &config, &card), 40.0 + 12.0 + 30.0);
        work.tasks[0].device = Pool::Host;
        is_about(rates.step_ms(&work, &config, &card), 400.0 + 12.0 + 30.0);
        work.tasks[0].dtype = DType::BF16;
        assert_eq!(rates.step_ms(&work, &config, &card), Err(UnknownRate::OfHostMatmuls(DType::BF16)));
    }
}
