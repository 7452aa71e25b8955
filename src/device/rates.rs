//! How fast a device multiplies and moves memory at its best: what its operations are judged by.

use std::time::{Duration, Instant};

use super::{Buffer, Device, DeviceError, DeviceKind, Placed, Pool, Queue, Region, Target, Tensor, Work};
use ops::{Add, Cast, DType, Deviation, Fill, Linear, Normal, Op, Operation, TensorType};

/// What a device reached. What does not fit its memory is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Of a square product, in FLOP/s, a multiply-add counting two.
    pub product_flops_per_s: Option<f64>,
    /// Bytes per second between a device and its own memory, those read and those written both counted: of a copy
    /// or of an addition in place, whichever moves more. A copy alone would not do, as one thread of a processor
    /// makes it.
    pub copy_bytes_per_s: Option<f64>,
}

/// Rows and columns of the smallest product that says anything, and of the largest that is tried.
const SMALLEST_PRODUCT: usize = 512;
const LARGEST_PRODUCT: usize = 8192;

/// A product that takes this long is large enough: twice as large is no faster.
const LONG_ENOUGH: Duration = Duration::from_millis(20);

/// Elements of each of the two buffers that are copied and added: more than a core's own caches hold. Half and a
/// quarter of it are tried where memory is short.
const COPIED: usize = 16 << 20;

/// The same of a card, whose cache is as large as those buffers; less if they would take more than this part of its
/// memory.
const COPIED_ON_A_CARD: usize = 256 << 20;
const PART_OF_A_CARD: u64 = 64;

/// How often each is timed, and for how long at the least. The best counts. Other programs disturb memory more than
/// arithmetic.
const PRODUCT_SAMPLES: usize = 3;
const COPY_SAMPLES: usize = 4;
const SAMPLE: Duration = Duration::from_millis(5);

/// What is multiplied.
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

/// Measures both, in a few tenths of a second. What is allocated for it stays well within the target's memory, in
/// which there should be nothing else, and is given back.
///
/// # Errors
/// A device that fails, or has less memory than its target says.
pub fn measure(device: &mut dyn Device, factors: Factors) -> Result<Rates, DeviceError> {
    measure_by(&clock(), device, factors)
}

/// The time since some moment: tests have a clock of their own.
type Clock = dyn Fn() -> Duration;

fn clock() -> impl Fn() -> Duration {
    let began = Instant::now();
    move || began.elapsed()
}

fn measure_by(clock: &Clock, device: &mut dyn Device, factors: Factors) -> Result<Rates, DeviceError> {
    let product_flops_per_s = product_by(clock, device, factors)?;
    Ok(Rates { product_flops_per_s, copy_bytes_per_s: copy(clock, device)? })
}

/// The rate of a product that is large enough, or as large as memory allows, in FLOP/s.
///
/// # Errors
/// As `measure`.
pub fn product(device: &mut dyn Device, factors: Factors) -> Result<Option<f64>, DeviceError> {
    product_by(&clock(), device, factors)
}

fn product_by(clock: &Clock, device: &mut dyn Device, factors: Factors) -> Result<Option<f64>, DeviceError> {
    let Some(smallest) = square(clock, device, factors, SMALLEST_PRODUCT)? else { return Ok(None) };
    let (mut size, mut expected) = (SMALLEST_PRODUCT, smallest);
    while expected < LONG_ENOUGH && size < LARGEST_PRODUCT {
        // Twice the rows, columns and terms.
        (size, expected) = (2 * size, 8 * expected);
    }
    while size > SMALLEST_PRODUCT {
        if let Some(took) = square(clock, device, factors, size)? {
            return Ok(Some(flops_per_s(size, took)));
        }
        size /= 2;
    }
    Ok(Some(flops_per_s(SMALLEST_PRODUCT, smallest)))
}

fn flops_per_s(size: usize, took: Duration) -> f64 {
    2.0 * (size as f64).powi(3) / took.as_secs_f64()
}

/// What a square product of this size takes; `None` if there is no memory for it.
fn square(
    clock: &Clock,
    device: &mut dyn Device,
    factors: Factors,
    size: usize,
) -> Result<Option<Duration>, DeviceError> {
    let Factors { dtype, tf32 } = factors;
    let (ty, drawn) = (TensorType::new(dtype, &[size, size]), TensorType::f32(&[size, size]));
    let linear = Linear { bias: false, activation: None, residual: false, tf32 };
    let scratch = linear.workspace(&[ty, ty], &[ty], &device.target().workspace_limits(Pool::Device));
    // What is drawn at random takes the place of scratch memory, which is not needed yet.
    let sizes = [ty.bytes(), ty.bytes(), scratch.max(drawn.bytes())];
    if !fits(device.target(), &sizes) {
        return Ok(None);
    }
    // The algorithm is chosen before, in memory that is given back: it is not what is timed here.
    let placed = Placed::new(ty, 0);
    let (inputs, outputs) = (vec![placed, placed], vec![placed]);
    let work = Work { home: Pool::Device, op: Op::Linear(linear), inputs, outputs, workspace: scratch };
    device.choose(&[work], &[])?;
    let Some(memory) = Memory::take(device, &sizes)? else { return Ok(None) };
    let took = memory.with(device, |device, buffers| {
        // The product of a matrix and itself, transposed: one to fill instead of two.
        let [x, y] = [0, 1].map(|index| tensor(buffers[index], ty));
        let workspace = Region { buffer: buffers[2], offset: 0, bytes: scratch };
        // Numbers as in training: a card multiplies equal ones with less power, and so faster.
        let normal = Op::Normal(Normal { output: drawn, deviation: Deviation::Fixed(1.0), seed: 0, site: 0 });
        let numbers = tensor(buffers[2], drawn);
        device.launch(&normal, &[], &[numbers], None)?;
        device.launch(&Op::Cast(Cast { to: dtype }), &[numbers], &[x], None)?;
        let product = Op::Linear(linear);
        best(clock, device, PRODUCT_SAMPLES, |device| device.launch(&product, &[x, x], &[y], Some(workspace)))
    })?;
    Ok(Some(took))
}

/// Elements that are copied if memory allows.
fn copied(target: &Target) -> usize {
    match target.kind {
        DeviceKind::Cpu => COPIED,
        DeviceKind::Cuda => {
            let part = target.available() / PART_OF_A_CARD / size_of::<f32>() as u64;
            // A power of two, as all that are tried.
            let part = (usize::try_from(part).unwrap_or(usize::MAX) / 2 + 1).next_power_of_two();
            part.clamp(COPIED, COPIED_ON_A_CARD)
        }
    }
}

fn copy(clock: &Clock, device: &mut dyn Device) -> Result<Option<f64>, DeviceError> {
    let most = copied(device.target());
    for elements in [most, most / 2, most / 4] {
        let ty = TensorType::f32(&[elements]);
        let Some(memory) = Memory::take(device, &[ty.bytes(), ty.bytes()])? else { continue };
        let rate = memory.with(device, |device, buffers| {
            let [a, b] = [0, 1].map(|index| tensor(buffers[index], ty));
            for operand in [a, b] {
                device.launch(&Op::Fill(Fill { output: ty, value: 1.0 }), &[], &[operand], None)?;
            }
            let copied = best(clock, device, COPY_SAMPLES, |device| {
                device.copy(Queue::Compute, b.region(), a.region())
            })?;
            let added = best(clock, device, COPY_SAMPLES, |device| {
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

/// What one piece of work takes at the least: the device is synchronised around as many of them as it needs for
/// the clock's and the queue's own time not to matter.
fn best(
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
        if took < SAMPLE {
            times *= 2;
        } else {
            taken += 1;
            best = best.min(took / times);
        }
    }
    Ok(best)
}

/// How much may be taken. A limit that the user set counts the device pool alone. One of the system's own counts the
/// rest of the process too, and may end it.
fn room(target: &Target) -> u64 {
    if target.limited { target.available() } else { target.available() / 2 }
}

/// Whether buffers of these many bytes each may be taken together.
fn fits(target: &Target, sizes: &[u64]) -> bool {
    rounded(target.page.0, sizes).sum::<u64>() <= room(target)
}

fn rounded(page: u64, sizes: &[u64]) -> impl Iterator<Item = u64> {
    sizes.iter().map(move |bytes| (*bytes).max(1).next_multiple_of(page))
}

/// Buffers of the device pool.
struct Memory(Vec<Buffer>);

impl Memory {
    /// Buffers of these many bytes each; `None` if there is no room for them together.
    fn take(device: &mut dyn Device, sizes: &[u64]) -> Result<Option<Memory>, DeviceError> {
        if !fits(device.target(), sizes) {
            return Ok(None);
        }
        let mut memory = Memory(Vec::new());
        for bytes in rounded(device.target().page.0, sizes) {
            match device.allocate(Pool::Device, bytes) {
                Ok(buffer) => memory.0.push(buffer),
                Err(error) => return memory.with(device, |_, _| Err(error)),
            }
        }
        Ok(Some(memory))
    }

    /// Works with the buffers and gives them back, whatever came of it.
    fn with<T>(
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
    use crate::{Event, Lent};
    use base::units::Bytes;

    const FLOPS_PER_S: f64 = 2e11;
    const COPY_PER_S: f64 = 1e10;
    const ADD_PER_S: f64 = 2e10;

    /// A device that takes its time, by its own clock, and computes nothing.
    struct Sleeper {
        target: Target,
        clock: Rc<Cell<Duration>>,
        /// Bytes of each buffer, 0 once it is freed.
        buffers: Vec<u64>,
        most: u64,
        failing: bool,
    }

    impl Sleeper {
        fn new(mib: u64) -> Sleeper {
            let target = crate::cpu_target(Some(Bytes(mib << 20))).unwrap().expect("a limit is given");
            Sleeper { target, clock: Rc::default(), buffers: Vec::new(), most: 0, failing: false }
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

    impl Device for Sleeper {
        fn target(&self) -> &Target {
            &self.target
        }

        fn allocate(&mut self, _pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
            self.buffers.push(bytes);
            self.most = self.most.max(self.live());
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
                Op::Linear(_) if self.failing => return Err(DeviceError::Lost("it fell asleep".to_owned())),
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

        fn lend(&mut self, region: Region) -> Result<Lent, DeviceError> {
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

    /// But for nanoseconds.
    fn is_nearly(rate: Option<f64>, real: f64) -> bool {
        rate.is_some_and(|rate| (rate - real).abs() < 1e-4 * real)
    }

    #[test]
    fn the_better_of_copy_and_addition_counts_within_the_memory_there_is() {
        let mut device = Sleeper::new(40);
        let rates = device.measure().unwrap();
        assert!(is_nearly(rates.product_flops_per_s, FLOPS_PER_S), "{rates:?}");
        assert!(is_nearly(rates.copy_bytes_per_s, ADD_PER_S), "{rates:?}");
        assert!(rates.copy_bytes_per_s > Some(COPY_PER_S), "{rates:?}");
        assert!(device.most >= 32 << 20, "{} bytes", device.most);
        assert!(device.most <= 40 << 20, "{} bytes", device.most);
        assert_eq!(device.live(), 0, "all is given back");
    }

    #[test]
    fn the_system_s_own_limit_is_not_exhausted() {
        let mut device = Sleeper::new(70);
        device.target.limited = false;
        let rates = device.measure().unwrap();
        assert!(rates.copy_bytes_per_s.is_some(), "{rates:?}");
        assert!(device.most <= 35 << 20, "{} bytes", device.most);
    }

    #[test]
    fn what_does_not_fit_is_unknown() {
        let mut device = Sleeper::new(20);
        let rates = device.measure().unwrap();
        assert!(rates.product_flops_per_s.is_some() && rates.copy_bytes_per_s.is_none(), "{rates:?}");
        let mut device = Sleeper::new(1);
        assert_eq!(device.measure(), Ok(Rates::default()));
        assert_eq!(device.most, 0);
    }

    #[test]
    fn a_device_that_fails_has_its_memory_back() {
        let mut device = Sleeper { failing: true, ..Sleeper::new(40) };
        assert!(matches!(device.measure(), Err(DeviceError::Lost(_))));
        assert!(device.most > 0);
        assert_eq!(device.live(), 0);
    }
}
