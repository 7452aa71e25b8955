//! Runs operations on memory that shows mistakes: poisoned outputs and scratch memory, guards behind everything.
#![allow(unsafe_code)] // Operands are addresses; the buffers here outlive the launch.

use std::cell::RefCell;
use std::rc::Rc;

use super::reference::seed;
use crate::cpu::kernels::float::{Bf16, F16, Float};
use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::{Operand, PRODUCT_WORKSPACE_PER_THREAD, Workers, run};
use ops::{DType, Op, Processor, TensorType, WorkspaceLimits};
use testing::{combinations, full};

/// How far a result may be from the reference, relative to the norm of the reference.
pub(super) const TOLERANCE: f64 = 2e-6;

/// What numbers are stored as.
pub(super) const NUMBERS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Every two of them.
pub(super) fn pairs() -> impl Iterator<Item = (DType, DType)> {
    NUMBERS.into_iter().flat_map(|a| NUMBERS.map(|b| (a, b)))
}

/// A value and what is in it.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(TensorType, Vec<f32>),
    /// Numbers of 16 bits, whole ones among them.
    Half(TensorType, Vec<u16>),
    /// An even number of bytes.
    Codes(TensorType, Vec<u8>),
    I32(TensorType, Vec<i32>),
}

impl Data {
    /// Numbers between -1 and 1, the same for the same seed.
    pub(super) fn random(dims: &[usize], seed: u64) -> Data {
        let ty = TensorType::f32(dims);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1;
        let numbers = (0..ty.elements()).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        });
        Data::F32(ty, numbers.collect())
    }

    pub(super) fn tokens(dims: &[usize], vocabulary: usize) -> Data {
        let ty = TensorType::i32(dims);
        Data::I32(ty, (0..ty.elements()).map(|i| (i * i * 7 + i * 3) as i32 % vocabulary as i32).collect())
    }

    /// Of so many samples.
    pub(super) fn seeds(samples: usize) -> Data {
        let words = (0..samples).flat_map(|sample| seed(sample).map(|word| word as i32));
        Data::I32(TensorType::i32(&[samples, 2]), words.collect())
    }

    /// One number.
    pub(super) fn scalar(value: f32) -> Data {
        Data::F32(TensorType::scalar(), vec![value])
    }

    pub(super) fn map(mut self, change: impl Fn(f32) -> f32) -> Data {
        if let Data::F32(_, values) = &mut self {
            values.iter_mut().for_each(|value| *value = change(*value));
        }
        self
    }

    /// Numbers in f32, rounded to another type.
    pub(super) fn stored_as(self, dtype: DType) -> Data {
        let Data::F32(ty, values) = self else { unreachable!("numbers in f32") };
        let ty = TensorType { dtype, ..ty };
        let bits = match dtype {
            DType::BF16 => narrowed::<Bf16>(&values).iter().map(|number| number.0).collect(),
            DType::F16 => narrowed::<F16>(&values).iter().map(|number| number.0).collect(),
            DType::F32 | DType::I32 => return Data::F32(ty, values),
            DType::U16 | DType::U8 | DType::U4 => unreachable!("codes are no numbers"),
        };
        Data::Half(ty, bits)
    }

    pub(super) fn ty(&self) -> TensorType {
        match self {
            Data::F32(ty, _) | Data::Half(ty, _) | Data::Codes(ty, _) | Data::I32(ty, _) => *ty,
        }
    }

    pub(super) fn to_f64(&self) -> Vec<f64> {
        match self {
            Data::F32(_, values) => values.iter().map(|&value| f64::from(value)).collect(),
            Data::Half(ty, bits) => numbers(ty.dtype, bits).into_iter().map(f64::from).collect(),
            Data::Codes(_, codes) => codes.iter().map(|&code| f64::from(code)).collect(),
            Data::I32(_, values) => values.iter().map(|&value| f64::from(value)).collect(),
        }
    }

    fn bits(&self) -> Vec<u16> {
        let halves = |bits: u32| [bits as u16, (bits >> 16) as u16];
        match self {
            Data::F32(_, values) => values.iter().flat_map(|value| halves(value.to_bits())).collect(),
            Data::Half(_, bits) => bits.clone(),
            Data::Codes(_, codes) => {
                codes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair)).collect()
            }
            Data::I32(_, values) => values.iter().flat_map(|&value| halves(value as u32)).collect(),
        }
    }
}

fn narrowed<T: Float>(values: &[f32]) -> Vec<T> {
    let mut narrow = vec![T::default(); values.len()];
    T::narrow(Level::Portable, values, &mut narrow);
    narrow
}

/// The numbers, or codes, in memory that holds some of this type.
fn numbers(dtype: DType, bits: &[u16]) -> Vec<f32> {
    let mut wide = vec![0.0; bits.len()];
    match dtype {
        DType::BF16 => {
            Bf16::widen(Level::Portable, &bits.iter().map(|&bits| Bf16(bits)).collect::<Vec<_>>(), &mut wide);
        }
        DType::F16 => {
            F16::widen(Level::Portable, &bits.iter().map(|&bits| F16(bits)).collect::<Vec<_>>(), &mut wide);
        }
        DType::F32 | DType::I32 => {
            let whole = bits.as_chunks::<2>().0.iter();
            let words = whole.map(|half| u32::from(half[1]) << 16 | u32::from(half[0]));
            return match dtype {
                DType::I32 => words.map(|word| word.cast_signed() as f32).collect(),
                _ => words.map(f32::from_bits).collect(),
            };
        }
        DType::U16 => return bits.iter().map(|&bits| f32::from(bits)).collect(),
        DType::U8 => return bits.iter().flat_map(|bits| bits.to_le_bytes()).map(f32::from).collect(),
        DType::U4 => unreachable!("half a byte is no number"),
    }
    wide
}

/// Memory with a guard around it, in units of two bytes.
struct Memory {
    storage: Vec<u16>,
    /// Of what is used: so much behind a cache line, where what devices allocate begins.
    start: usize,
    len: usize,
}

const LINE_BYTES: usize = 64;
const LINE: usize = LINE_BYTES / size_of::<u16>();
const GUARD: u16 = 0xC0FE;
/// In any type, also twice.
const NOT_A_NUMBER: u16 = 0x7FFF;

impl Memory {
    fn new(bytes: usize, bytes_before: usize) -> Memory {
        let [len, before] = [bytes, bytes_before].map(|bytes| bytes / size_of::<u16>());
        // A line to begin within, a line for the guard.
        let storage = vec![GUARD; before + len + 2 * LINE];
        let start = storage.as_ptr().align_offset(LINE_BYTES) + before;
        let mut memory = Memory { storage, start, len };
        memory.bits_mut().fill(NOT_A_NUMBER);
        memory
    }

    fn holding(bits: &[u16], bytes_before: usize) -> Memory {
        let mut memory = Memory::new(size_of_val(bits), bytes_before);
        memory.bits_mut().copy_from_slice(bits);
        memory
    }

    fn bits(&self) -> &[u16] {
        &self.storage[self.start..self.start + self.len]
    }

    fn bits_mut(&mut self) -> &mut [u16] {
        &mut self.storage[self.start..self.start + self.len]
    }

    fn address(&mut self) -> *mut u8 {
        // Of the whole storage, so that a kernel that writes into the guard is found, not undefined.
        self.storage.as_mut_ptr().wrapping_add(self.start).cast()
    }

    fn guarded(&self) -> bool {
        let (before, behind) = (&self.storage[..self.start], &self.storage[self.start + self.len..]);
        before.iter().chain(behind).all(|&bits| bits == GUARD)
    }
}

/// How an operation is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) threads: usize,
    pub(super) level: Level,
    /// Whether optional aliases are taken.
    pub(super) share: bool,
}

/// The outputs of `op`, in f32.
pub(super) fn launch(op: &Op, inputs: &[Data], how: How) -> Vec<Vec<f32>> {
    launch_at(op, inputs, how, 0)
}

/// The same where every operand begins as many rows into a tensor.
fn launch_at(op: &Op, inputs: &[Data], how: How, rows: usize) -> Vec<Vec<f32>> {
    let before = |ty: TensorType| rows * ty.shape.last() * ty.dtype.bytes() as usize;
    let types: Vec<TensorType> = inputs.iter().map(Data::ty).collect();
    let output_types = op.outputs(&types).expect("the test's inputs fit the operation");
    let limits = WorkspaceLimits {
        processor: Processor::Cpu,
        threads: how.threads,
        product_bytes_per_thread: PRODUCT_WORKSPACE_PER_THREAD,
    };
    let bytes = op.workspace(&types, &output_types, &limits) as usize;
    let mut aliases = op.updates().to_vec();
    if how.share {
        aliases.extend(op.may_overwrite());
    }
    let held = inputs.iter().map(|input| Memory::holding(&input.bits(), before(input.ty())));
    let mut memory: Vec<Memory> = held.collect();
    let places: Vec<usize> = output_types
        .iter()
        .enumerate()
        .map(|(output, ty)| match aliases.iter().find(|alias| alias.0 == output) {
            Some(&(_, input)) => input,
            None => {
                memory.push(Memory::new(ty.bytes() as usize, before(*ty)));
                memory.len() - 1
            }
        })
        .collect();
    let operand = |memory: &mut Memory, ty: TensorType| Operand { address: memory.address(), ty };
    let operands: Vec<Operand> = memory.iter_mut().zip(&types).map(|(m, &ty)| operand(m, ty)).collect();
    let outputs: Vec<Operand> =
        places.iter().zip(&output_types).map(|(&place, &ty)| operand(&mut memory[place], ty)).collect();
    let mut scratch = Memory::new(bytes, 0);
    let workers = workers(how.threads, how.level);
    // SAFETY: all operands are buffers of their types' sizes that nothing else uses.
    unsafe { run(op, &operands, &outputs, Some((scratch.address(), bytes)), &workers) };

    assert!(memory.iter().chain([&scratch]).all(Memory::guarded), "{} wrote out of bounds", op.name());
    for (index, (input, memory)) in inputs.iter().zip(&memory).enumerate() {
        let written = aliases.iter().any(|alias| alias.1 == index);
        assert!(written || memory.bits() == input.bits(), "{} changed its input {index}", op.name());
    }
    let outputs = places.iter().zip(&output_types);
    outputs.map(|(&place, ty)| numbers(ty.dtype, memory[place].bits())).collect()
}

/// A test's workers of so many threads: starting them takes longer than most launches.
fn workers(threads: usize, level: Level) -> Rc<Workers> {
    thread_local! {
        static STARTED: RefCell<Vec<Rc<Workers>>> = const { RefCell::new(Vec::new()) };
    }
    STARTED.with_borrow_mut(|started| {
        let known = started.iter().find(|workers| (workers.threads(), workers.level()) == (threads, level));
        known.cloned().unwrap_or_else(|| {
            let workers = Rc::new(Workers::with_level(threads, level).expect("threads can be started"));
            started.push(Rc::clone(&workers));
            workers
        })
    })
}

fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outputs.iter().map(|output| output.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Threads, whether optional aliases are taken, and how many rows into tensors operands begin: none of them may matter.
type Way = (usize, bool, usize);

const WAYS: [Way; 6] = [(1, true, 0), (2, false, 0), (3, true, 0), (4, false, 0), (2, true, 1), (2, true, 3)];

/// The ways in which a case is run, beside that on one thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ways {
    All,
    /// At one level in one way, by positions.
    One {
        level: usize,
        way: usize,
    },
}

impl Ways {
    /// Levels, each with the ways that are tried at it.
    fn by_level(self) -> Vec<(Level, Vec<Way>)> {
        match self {
            // Threads differ in number at the best level; any two will do at others.
            Ways::All => Level::available()
                .map(|level| {
                    (
                        level,
                        if level == Level::best() {
                            WAYS.to_vec()
                        } else {
                            [&WAYS[1..2], &WAYS[4..]].concat()
                        },
                    )
                })
                .collect(),
            Ways::One { level, way } => {
                Level::available().skip(level).take(1).map(|level| (level, vec![WAYS[way]])).collect()
            }
        }
    }
}

/// Combinations of one value of each axis, by positions, with the ways to run each. In full these are all of them, in all ways;
/// otherwise so many that every `strength` values of different axes meet, two of which are the level and the way.
pub(super) fn cases<const AXES: usize>(strength: usize, axes: [usize; AXES]) -> Vec<([usize; AXES], Ways)> {
    let of = |combination: &[usize]| combination[..AXES].try_into().expect("all axes come first");
    if full() {
        return combinations(&axes, AXES).iter().map(|all| (of(all), Ways::All)).collect();
    }
    let with_ways = [&axes[..], &[Level::available().count(), WAYS.len()]].concat();
    let combinations = combinations(&with_ways, strength);
    let case = |all: &Vec<usize>| (of(all), Ways::One { level: all[AXES], way: all[AXES + 1] });
    combinations.iter().map(case).collect()
}

/// Runs `op` in every way, and asserts that ways which must not matter do not, bit for bit, and that every level
/// comes near what is expected.
pub(super) fn check(op: Op, inputs: &[Data], expected: &[Vec<f64>]) {
    check_in(Ways::All, op, inputs, expected);
}

/// The same in some ways.
pub(super) fn check_in(ways: Ways, op: Op, inputs: &[Data], expected: &[Vec<f64>]) {
    let types: Vec<TensorType> = inputs.iter().map(Data::ty).collect();
    let types = op.outputs(&types).expect("the test's inputs fit the operation");
    for (level, ways) in ways.by_level() {
        let outputs = launch(&op, inputs, How { threads: 1, level, share: false });
        assert_eq!(outputs.len(), expected.len(), "{} has as many outputs as expected", op.name());
        for (index, ((output, expected), ty)) in outputs.iter().zip(expected).zip(&types).enumerate() {
            let place = format!("{} at {level:?}: output {index}, {ty},", op.name());
            match ty.dtype {
                DType::BF16 => assert_rounded(output, expected, 7, -126, &place),
                DType::F16 => assert_rounded(output, expected, 10, -14, &place),
                DType::F32 | DType::I32 => {
                    let error = distance(output, expected);
                    assert!(error < TOLERANCE, "{place} is off by {error:e}");
                }
                DType::U16 | DType::U8 | DType::U4 => unreachable!("no operation gives numbers so"),
            }
        }
        for (threads, share, rows) in ways {
            // Few operations may begin anywhere in a tensor.
            let rows = if op.takes_any_rows() { rows } else { 0 };
            let how = How { threads, level, share };
            let same = bits(&launch_at(&op, inputs, how, rows)) == bits(&outputs);
            assert!(same, "{}: other bits with {how:?}, {rows} rows into tensors", op.name());
        }
    }
}

/// Asserts that each element is what is expected, rounded once to so many bits of fraction: it may be off by half a
/// unit in the last place, and by what f32 sums may be off.
fn assert_rounded(found: &[f32], expected: &[f64], fraction: i32, least_exponent: i32, place: &str) {
    assert_eq!(found.len(), expected.len());
    let squares: f64 = expected.iter().map(|value| value * value).sum();
    let noise = 5.0 * TOLERANCE * (squares / expected.len() as f64).sqrt();
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let exponent = (expected.abs() + noise).log2().floor() as i32;
        let half_a_unit = 2f64.powi(exponent.max(least_exponent) - fraction - 1);
        let error = (f64::from(found) - expected).abs();
        assert!(error <= half_a_unit + noise, "{place} element {index} is {found}, not {expected}");
    }
}

/// The norm of the difference over the norm of what is expected, or the former alone where the latter is zero.
pub(super) fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(&f, &e)| f64::from(f) - e));
    let whole = norm(&mut expected.iter().copied());
    if whole > 0.0 { difference / whole } else { difference }
}

/// The gradient of `loss` by central differences.
pub(super) fn differences(at: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut point = at.to_vec();
    (0..at.len())
        .map(|index| {
            point[index] = at[index] + STEP;
            let above = loss(&point);
            point[index] = at[index] - STEP;
            let below = loss(&point);
            point[index] = at[index];
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// Asserts that a reference's gradient is the slope of the reference's forward pass.
pub(super) fn assert_slope(gradient: &[f64], at: &[f64], loss: impl Fn(&[f64]) -> f64) {
    let slope: Vec<f32> = differences(at, loss).iter().map(|&value| value as f32).collect();
    let error = distance(&slope, gradient);
    assert!(error < 1e-6, "the reference is off by {error:e}");
}

pub(super) fn inner_product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn added(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
