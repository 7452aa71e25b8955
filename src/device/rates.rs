//! Device rates: the peak matmul rate and memory bandwidth of a device, the roofline for its operations.

use std::time::{Duration, Instant};

use super::{Buffer, Device, DeviceError, DeviceKind, Placed, Pool, Queue, Region, Target, Tensor, Work};
use ops::{Add, Cast, DType, Deviation, Fill, Linear, Normal, Op, Operation, TensorType};

/// Measured rates. `None` if the operands do not fit in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Rate of a square matmul in FLOP/s; a multiply-add is two FLOPs.
    pub product_flops_per_s: Option<f64>,
    /// Bandwidth between a device and its own memory in bytes per second, reads plus writes: of a copy or of an
    /// in-place addition, whichever is higher. On the CPU, a copy alone would underestimate it, because it runs on one
    /// thread.
    pub copy_bytes_per_s: Option<f64>,
}

/// Rows and columns of the smallest meaningful matmul, and of the largest that is timed.
const SMALLEST_MATMUL: usize = 512;
const LARGEST_MATMUL: usize = 8192;

/// A matmul of this duration is large enough: a larger one reaches no higher rate.
const SUFFICIENT_TIME: Duration = Duration::from_millis(20);

/// Elements of each of the two buffers for copy and addition: more than a core's private caches hold. Half and a
/// quarter are used if memory is too small.
const COPY_ELEMENTS: usize = 16 << 20;

/// The same for a card, whose cache would hold the smaller buffers. A buffer takes at most one part in
/// `CARD_MEMORY_PARTS` of the card's memory.
const CARD_COPY_ELEMENTS: usize = 256 << 20;
const CARD_MEMORY_PARTS: u64 = 64;

/// Number of samples and minimum duration of each. The fastest sample counts. Other programs disturb memory bandwidth
/// more than arithmetic.
const MATMUL_SAMPLES: usize = 3;
const COPY_SAMPLES: usize = 4;
const SAMPLE_TIME: Duration = Duration::from_millis(5);

/// The operand type of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factors {
    pub dtype: DType,
    /// As in `Linear`.
    pub tf32: bool,
}

impl Factors {
    pub const F32: Factors = Factors { dtype: DType::F32, tf32: false };
    pub const BF16: Factors = Factors { dtype: DType::BF16, tf32: false };
}

/// Measures both rates, in a few tenths of a second. Its allocations stay well below the target's memory, which should
/// be otherwise empty, and are freed.
///
/// # Errors
/// The device fails, or has less memory than its target declares.
pub fn measure(device: &mut dyn Device, factors: Factors) -> Result<Rates, DeviceError> {
    measure_by(&clock(), device, factors)
}

/// The time since an arbitrary origin: tests use a simulated clock.
type Clock = dyn Fn() -> Duration;

fn clock() -> impl Fn() -> Duration {
    let began = Instant::now();
    move || began.elapsed()
}

fn measure_by(clock: &Clock, device: &mut dyn Device, factors: Factors) -> Result<Rates, DeviceError> {
    let product_flops_per_s = matmul_rate_by(clock, device, factors)?;
    Ok(Rates { product_flops_per_s, copy_bytes_per_s: bandwidth(clock, device)? })
}

/// The rate of a sufficiently large matmul, or of the largest that fits in memory, in FLOP/s.
///
/// # Errors
/// As `measure`.
pub fn product(device: &mut dyn Device, factors: Factors) -> Result<Option<f64>, DeviceError> {
    matmul_rate_by(&clock(), device, factors)
}

fn matmul_rate_by(
    clock: &Clock,
    device: &mut dyn Device,
    factors: Factors,
) -> Result<Option<f64>, DeviceError> {
    let Some(smallest) = square_matmul_time(clock, device, factors, SMALLEST_MATMUL)? else {
        return Ok(None);
    };
    let (mut size, mut expected) = (SMALLEST_MATMUL, smallest);
    while expected < SUFFICIENT_TIME && size < LARGEST_MATMUL {
        // Rows, columns and inner dimension double.
        (size, expected) = (2 * size, 8 * expected);
    }
    while size > SMALLEST_MATMUL {
        if let Some(took) = square_matmul_time(clock, device, factors, size)? {
            return Ok(Some(flops_per_s(size, took)));
        }
        size /= 2;
    }
    Ok(Some(flops_per_s(SMALLEST_MATMUL, smallest)))
}

fn flops_per_s(size: usize, took: Duration) -> f64 {
    2.0 * (size as f64).powi(3) / took.as_secs_f64()
}

/// The duration of a square matmul of this size; `None` if it does not fit in memory.
fn square_matmul_time(
    clock: &Clock,
    device: &mut dyn Device,
    factors: Factors,
    size: usize,
) -> Result<Option<Duration>, DeviceError> {
    let Factors { dtype, tf32 } = factors;
    let (ty, drawn) = (TensorType::new(dtype, &[size, size]), TensorType::f32(&[size, size]));
    let linear = Linear { bias: false, activation: None, residual: false, tf32 };
    let scratch = linear.workspace(&[ty, ty], &[ty], &device.target().workspace_limits(Pool::Device));
    // The random f32 numbers share the workspace's buffer, which is not in use yet.
    let sizes = [ty.bytes(), ty.bytes(), scratch.max(drawn.bytes())];
    if !fits(device.target(), &sizes) {
        return Ok(None);
    }
    // The algorithm is selected first, in memory that is freed again, so that its selection is not timed.
    let placed = Placed::new(ty, 0);
    let (inputs, outputs) = (vec![placed, placed], vec![placed]);
    let work = Work { home: Pool::Device, op: Op::Linear(linear), inputs, outputs, workspace: scratch };
    device.choose(&[work], &[])?;
    let Some(memory) = Buffers::take(device, &sizes)? else { return Ok(None) };
    let took = memory.use_and_free(device, |device, buffers| {
        // The matrix times its own transpose: only one operand to fill.
        let [x, y] = [0, 1].map(|index| tensor(buffers[index], ty));
        let workspace = Region { buffer: buffers[2], offset: 0, bytes: scratch };
        // Random numbers as in training: with constant operands a card draws less power and clocks higher.
        let normal = Op::Normal(Normal { output: drawn, deviation: Deviation::Fixed(1.0), seed: 0, site: 0 });
        let numbers = tensor(buffers[2], drawn);
        device.launch(&normal, &[], &[numbers], None)?;
        device.launch(&Op::Cast(Cast { to: dtype }), &[numbers], &[x], None)?;
        let product = Op::Linear(linear);
        best_time(clock, device, MATMUL_SAMPLES, |device| {
            device.launch(&product, &[x, x], &[y], Some(workspace))
        })
    })?;
    Ok(Some(took))
}

/// Elements of the copy buffers if memory allows.
fn copy_elements(target: &Target) -> usize {
    match target.kind {
        DeviceKind::Cpu => COPY_ELEMENTS,
        DeviceKind::Cuda => {
            let part = target.available() / CARD_MEMORY_PARTS / size_of::<f32>() as u64;
            // All sizes are powers of two.
            let part = (usize::try_from(part).unwrap_or(usize::MAX) / 2 + 1).next_power_of_two();
            part.clamp(COPY_ELEMENTS, CARD_COPY_ELEMENTS)
        }
    }
}

fn bandwidth(clock: &Clock, device: &mut dyn Device) -> Result<Option<f64>, DeviceError> {
    let largest = copy_elements(device.target());
    for elements in [largest, largest / 2, largest / 4] {
        let ty = TensorType::f32(&[elements]);
        let Some(memory) = Buffers::take(device, &[ty.bytes(), ty.bytes()])? else { continue };
        let rate = memory.use_and_free(device, |device, buffers| {
            let [a, b] = [0, 1].map(|index| tensor(buffers[index], ty));
            for operand in [a, b] {
                device.launch(&Op::Fill(Fill { output: ty, value: 1.0 }), &[], &[operand], None)?;
            }
            let copied = best_time(clock, device, COPY_SAMPLES, |device| {
                device.copy(Queue::Compute, b.region(), a.region())
            })?;
            let added = best_time(clock, device, COPY_SAMPLES, |device| {
                device.launch(&Op::Add(Add::PLAIN), &[a, b], &[a], None)
            })?;
            // A copy reads once and writes once, an addition reads twice.
            let rate = |times: u64, took: Duration| (times * ty.bytes()) as f64 / took.as_secs_f64();
            Ok(rate(2, copied).max(rate(3, added)))
        })?;
        return Ok(Some(rate));
    }
    Ok(None)
}

fn tensor(buffer: Buffer, ty: TensorType) -> Tensor {
    Tensor { buffer, offset: 0, ty }
}

/// The shortest duration of one piece of work. Each sample repeats it between two synchronisations until the overhead
/// of clock and queue is negligible.
fn best_time(
    clock: &Clock,
    device: &mut dyn Device,
    samples: usize,
    mut enqueue: impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
) -> Result<Duration, DeviceError> {
    let (mut times, mut taken, mut best) = (1, 0, Duration::MAX);
    device.synchronize()?;
    while taken < samples {
        let began = clock();
        for _ in 0..times {
            enqueue(device)?;
        }
        device.synchronize()?;
        let took = clock() - began;
        if took < SAMPLE_TIME {
            times *= 2;
        } else {
            taken += 1;
            best = best.min(took / times);
        }
    }
    Ok(best)
}

/// The memory budget. A user's limit counts only the device pool. The system's own limit also counts the rest of the
/// process, which it may kill.
fn budget(target: &Target) -> u64 {
    if target.limited { target.available() } else { target.available() / 2 }
}

/// Whether buffers of these sizes fit in the budget together.
fn fits(target: &Target, sizes: &[u64]) -> bool {
    rounded(target.page.0, sizes).sum::<u64>() <= budget(target)
}

fn rounded(page: u64, sizes: &[u64]) -> impl Iterator<Item = u64> {
    sizes.iter().map(move |bytes| (*bytes).max(1).next_multiple_of(page))
}

/// Buffers of the device pool.
struct Buffers(Vec<Buffer>);

impl Buffers {
    /// Allocates buffers of these sizes; `None` if they do not fit together.
    fn take(device: &mut dyn Device, sizes: &[u64]) -> Result<Option<Buffers>, DeviceError> {
        if !fits(device.target(), sizes) {
            return Ok(None);
        }
        let mut memory = Buffers(Vec::new());
        for bytes in rounded(device.target().page.0, sizes) {
            match device.allocate(Pool::Device, bytes) {
                Ok(buffer) => memory.0.push(buffer),
                Err(error) => return memory.use_and_free(device, |_, _| Err(error)),
            }
        }
        Ok(Some(memory))
    }

    /// Runs `work` on the buffers and frees them, also after an error.
    fn use_and_free<T>(
        self,
        device: &mut dyn Device,
        work: impl FnOnce(&mut dyn Device, &[Buffer]) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let done = work(device, &self.0);
        let freed = self.0.into_iter().try_for_each(|buffer| device.free(buffer));
        done.and_then(|value| freed.map(|()| value))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::{Event, HostSlice};
    use base::units::Bytes;

    const FLOPS_PER_S: f64 = 2e11;
    const COPY_PER_S: f64 = 1e10;
    const ADD_PER_S: f64 = 2e10;

    /// A device with a simulated clock that computes nothing.
    struct SimulatedDevice {
        target: Target,
        clock: Rc<Cell<Duration>>,
        /// Bytes of each buffer, 0 once it is freed.
        buffers: Vec<u64>,
        peak: u64,
        failing: bool,
    }

    impl SimulatedDevice {
        fn new(mib: u64) -> SimulatedDevice {
            let target = crate::cpu_target(Some(Bytes(mib << 20))).unwrap().expect("a limit is given");
            SimulatedDevice { target, clock: Rc::default(), buffers: Vec::new(), peak: 0, failing: false }
        }

        fn live(&self) -> u64 {
            self.buffers.iter().sum()
        }

        fn sleep(&self, seconds: f64) {
            self.clock.set(self.clock.get() + Duration::from_secs_f64(seconds));
        }

        fn measure(&mut self) -> Result<Rates, DeviceError> {
            let clock = Rc::clone(&self.clock);
            measure_by(&move || clock.get(), self, Factors::F32)
        }
    }

    impl Device for SimulatedDevice {
        fn target(&self) -> &Target {
            &self.target
        }

        fn allocate(&mut self, _pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
            self.buffers.push(bytes);
            self.peak = self.peak.max(self.live());
            Ok(Buffer(self.buffers.len() as u32 - 1))
        }

        fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
            self.buffers[buffer.0 as usize] = 0;
            Ok(())
        }

        fn copy(&mut self, _queue: Queue, from: Region, _to: Region) -> Result<(), DeviceError> {
            self.sleep(2.0 * from.bytes as f64 / COPY_PER_S);
            Ok(())
        }

        fn launch(
            &mut self,
            op: &Op,
            inputs: &[Tensor],
            outputs: &[Tensor],
            _workspace: Option<Region>,
        ) -> Result<(), DeviceError> {
            let types = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.ty).collect::<Vec<_>>();
            let (inputs, outputs) = (types(inputs), types(outputs));
            match op {
                Op::Linear(_) if self.failing => {
                    return Err(DeviceError::Lost("simulated failure".to_owned()));
                }
                Op::Linear(op) => {
                    self.sleep(op.flops(&inputs, &outputs) as f64 / FLOPS_PER_S);
                }
                Op::Add(op) => {
                    self.sleep(op.bytes(&inputs, &outputs) as f64 / ADD_PER_S);
                }
                _ => {}
            }
            Ok(())
        }

        fn lend(&mut self, region: Region) -> Result<HostSlice, DeviceError> {
            Err(DeviceError::NotOfHost { buffer: region.buffer })
        }

        fn record(&mut self, _queue: Queue, _event: Event) -> Result<(), DeviceError> {
            Ok(())
        }

        fn wait(&mut self, _queue: Queue, _event: Event) -> Result<(), DeviceError> {
            Ok(())
        }

        fn synchronize(&mut self) -> Result<(), DeviceError> {
            Ok(())
        }

        fn poison(&mut self, _region: Region) -> Result<(), DeviceError> {
            Ok(())
        }

        fn write(&mut self, _region: Region, _bytes: &[u8]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn read(&mut self, _region: Region, _bytes: &mut [u8]) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    /// Equal up to the clock's resolution of nanoseconds.
    fn is_close(rate: Option<f64>, real: f64) -> bool {
        rate.is_some_and(|rate| (rate - real).abs() < 1e-4 * real)
    }

    #[test]
    fn copy_rate_is_the_better_of_copy_and_addition() {
        let mut device = SimulatedDevice::new(40);
        let rates = device.measure().unwrap();
        assert!(is_close(rates.product_flops_per_s, FLOPS_PER_S), "{rates:?}");
        assert!(is_close(rates.copy_bytes_per_s, ADD_PER_S), "{rates:?}");
        assert!(rates.copy_bytes_per_s > Some(COPY_PER_S), "{rates:?}");
        assert!(device.peak >= 32 << 20, "{} bytes", device.peak);
        assert!(device.peak <= 40 << 20, "{} bytes", device.peak);
        assert_eq!(device.live(), 0, "all buffers are freed");
    }

    #[test]
    fn system_memory_is_used_to_half() {
        let mut device = SimulatedDevice::new(70);
        device.target.limited = false;
        let rates = device.measure().unwrap();
        assert!(rates.copy_bytes_per_s.is_some(), "{rates:?}");
        assert!(device.peak <= 35 << 20, "{} bytes", device.peak);
    }

    #[test]
    fn rates_are_unknown_if_operands_do_not_fit() {
        let mut device = SimulatedDevice::new(20);
        let rates = device.measure().unwrap();
        assert!(rates.product_flops_per_s.is_some() && rates.copy_bytes_per_s.is_none(), "{rates:?}");
        let mut device = SimulatedDevice::new(1);
        assert_eq!(device.measure(), Ok(Rates::default()));
        assert_eq!(device.peak, 0);
    }

    #[test]
    fn buffers_are_freed_after_a_failure() {
        let mut device = SimulatedDevice { failing: true, ..SimulatedDevice::new(40) };
        assert!(matches!(device.measure(), Err(DeviceError::Lost(_))));
        assert!(device.peak > 0);
        assert_eq!(device.live(), 0);
    }
}
