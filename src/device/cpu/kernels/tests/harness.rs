//! Runs operations on memory that shows mistakes: poisoned outputs and scratch memory, guards behind everything.
#![allow(unsafe_code)] // Operands are addresses; the buffers here outlive the launch.

use crate::device::cpu::kernels::simd::Level;
use crate::device::cpu::kernels::{Operand, PRODUCT_WORKSPACE_PER_THREAD, Workers, run};
use crate::ops::{Op, Processor, TensorType, WorkspaceLimits};

/// How far a result may be from the reference, relative to the norm of the reference.
pub(super) const TOLERANCE: f64 = 2e-6;

/// A value and what is in it.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(TensorType, Vec<f32>),
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

    pub(super) fn map(mut self, change: impl Fn(f32) -> f32) -> Data {
        if let Data::F32(_, values) = &mut self {
            values.iter_mut().for_each(|value| *value = change(*value));
        }
        self
    }

    pub(super) fn ty(&self) -> TensorType {
        match self {
            Data::F32(ty, _) | Data::I32(ty, _) => *ty,
        }
    }

    pub(super) fn to_f64(&self) -> Vec<f64> {
        match self {
            Data::F32(_, values) => values.iter().map(|&value| f64::from(value)).collect(),
            Data::I32(_, values) => values.iter().map(|&value| f64::from(value)).collect(),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Data::F32(_, values) => values.iter().map(|value| value.to_bits()).collect(),
            Data::I32(_, values) => values.iter().map(|&value| value as u32).collect(),
        }
    }
}

/// Memory with a guard behind it.
struct Memory {
    storage: Vec<u32>,
    /// Of what is used, which begins at a cache line, as what devices allocate does.
    start: usize,
    words: usize,
}

const LINE_BYTES: usize = 64;
const LINE: usize = LINE_BYTES / size_of::<u32>();
const GUARD: u32 = 0xC0FF_EE00;
const NOT_A_NUMBER: u32 = 0x7FC0_1234;

impl Memory {
    fn new(words: usize) -> Memory {
        // A line to begin within, a line for the guard.
        let storage = vec![GUARD; words + 2 * LINE];
        let start = storage.as_ptr().align_offset(LINE_BYTES);
        let mut memory = Memory { storage, start, words };
        memory.words_mut().fill(NOT_A_NUMBER);
        memory
    }

    fn holding(bits: &[u32]) -> Memory {
        let mut memory = Memory::new(bits.len());
        memory.words_mut().copy_from_slice(bits);
        memory
    }

    fn words(&self) -> &[u32] {
        &self.storage[self.start..self.start + self.words]
    }

    fn words_mut(&mut self) -> &mut [u32] {
        &mut self.storage[self.start..self.start + self.words]
    }

    fn address(&mut self) -> *mut u8 {
        // Of the whole storage, so that a kernel that writes into the guard is found, not undefined.
        self.storage.as_mut_ptr().wrapping_add(self.start).cast()
    }

    fn guarded(&self) -> bool {
        self.storage[self.start + self.words..].iter().all(|&word| word == GUARD)
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

/// The outputs of `op`.
pub(super) fn launch(op: &Op, inputs: &[Data], how: How) -> Vec<Vec<f32>> {
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
    let mut memory: Vec<Memory> = inputs.iter().map(|input| Memory::holding(&input.bits())).collect();
    let places: Vec<usize> = output_types
        .iter()
        .enumerate()
        .map(|(output, ty)| match aliases.iter().find(|alias| alias.0 == output) {
            Some(&(_, input)) => input,
            None => {
                memory.push(Memory::new(ty.elements()));
                memory.len() - 1
            }
        })
        .collect();
    let operand = |memory: &mut Memory, ty: TensorType| Operand { address: memory.address(), ty };
    let operands: Vec<Operand> = memory.iter_mut().zip(&types).map(|(m, &ty)| operand(m, ty)).collect();
    let outputs: Vec<Operand> =
        places.iter().zip(&output_types).map(|(&place, &ty)| operand(&mut memory[place], ty)).collect();
    let mut scratch = Memory::new(bytes.div_ceil(4));
    let workers = Workers::with_level(how.threads, how.level).expect("threads can be started");
    // SAFETY: all operands are buffers of their types' sizes that nothing else uses.
    unsafe { run(op, &operands, &outputs, Some((scratch.address(), bytes)), &workers) };

    assert!(memory.iter().chain([&scratch]).all(Memory::guarded), "{} wrote out of bounds", op.name());
    for (index, (input, memory)) in inputs.iter().zip(&memory).enumerate() {
        let written = aliases.iter().any(|alias| alias.1 == index);
        assert!(written || memory.words() == input.bits(), "{} changed its input {index}", op.name());
    }
    let numbers = |place: &usize| memory[*place].words().iter().map(|&bits| f32::from_bits(bits)).collect();
    places.iter().map(numbers).collect()
}

fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outputs.iter().map(|output| output.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Runs `op` in every way, and asserts that ways which must not matter do not, bit for bit, and that every level
/// comes near what is expected.
pub(super) fn check(op: Op, inputs: &[Data], expected: &[Vec<f64>]) {
    for level in Level::available() {
        let outputs = launch(&op, inputs, How { threads: 1, level, share: false });
        assert_eq!(outputs.len(), expected.len(), "{} has as many outputs as expected", op.name());
        for (index, (output, expected)) in outputs.iter().zip(expected).enumerate() {
            let error = distance(output, expected);
            assert!(error < TOLERANCE, "{} at {level:?}: output {index} is off by {error:e}", op.name());
        }
        let ways = [(1, true), (2, false), (3, true), (4, false)];
        for (threads, share) in if level == Level::best() { &ways[..] } else { &ways[1..2] } {
            let how = How { threads: *threads, level, share: *share };
            let same = bits(&launch(&op, inputs, how)) == bits(&outputs);
            assert!(same, "{}: other bits with {how:?}", op.name());
        }
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
