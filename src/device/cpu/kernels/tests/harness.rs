//! Runs operations on memory that exposes errors: outputs and scratch memory are poisoned, and every buffer has guards.
#![allow(unsafe_code)] // Operands are addresses; these buffers outlive the launch.

use std::cell::RefCell;
use std::rc::Rc;

use super::reference::seed;
use crate::cpu::kernels::float::{Bf16, F16, Float};
use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::{Operand, PRODUCT_WORKSPACE_PER_THREAD, Workers, run};
use ops::{DType, Op, Processor, TensorType, WorkspaceLimits};
use testing::{combinations, full};

/// Largest error of a result, relative to the norm of the reference.
pub(super) const TOLERANCE: f64 = 2e-6;

/// The floating-point storage types.
pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// All ordered pairs of floating-point types.
pub(super) fn float_pairs() -> impl Iterator<Item = (DType, DType)> {
    FLOATS.into_iter().flat_map(|a| FLOATS.map(|b| (a, b)))
}

/// The type and contents of a tensor.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(TensorType, Vec<f32>),
    /// 16-bit elements: bf16, f16 or u16.
    Bits16(TensorType, Vec<u16>),
    /// u8 elements.
    Codes(TensorType, Vec<u8>),
    I32(TensorType, Vec<i32>),
}

impl Data {
    /// Pseudo-random numbers between -1 and 1, a function of the seed.
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

    /// The dropout seeds of a batch.
    pub(super) fn seeds(samples: usize) -> Data {
        let words = (0..samples).flat_map(|sample| seed(sample).map(|word| word as i32));
        Data::I32(TensorType::i32(&[samples, 2]), words.collect())
    }

    /// A scalar.
    pub(super) fn scalar(value: f32) -> Data {
        Data::F32(TensorType::scalar(), vec![value])
    }

    pub(super) fn map(mut self, change: impl Fn(f32) -> f32) -> Data {
        if let Data::F32(_, values) = &mut self {
            values.iter_mut().for_each(|value| *value = change(*value));
        }
        self
    }

    /// Rounds f32 numbers to another type.
    pub(super) fn stored_as(self, dtype: DType) -> Data {
        let Data::F32(ty, values) = self else { unreachable!("f32 data") };
        let ty = TensorType { dtype, ..ty };
        let bits = match dtype {
            DType::BF16 => narrowed::<Bf16>(&values).iter().map(|number| number.0).collect(),
            DType::F16 => narrowed::<F16>(&values).iter().map(|number| number.0).collect(),
            DType::F32 | DType::I32 => return Data::F32(ty, values),
            DType::U16 | DType::U8 | DType::U4 => unreachable!("{dtype} is not a floating-point type"),
        };
        Data::Bits16(ty, bits)
    }

    pub(super) fn ty(&self) -> TensorType {
        match self {
            Data::F32(ty, _) | Data::Bits16(ty, _) | Data::Codes(ty, _) | Data::I32(ty, _) => *ty,
        }
    }

    pub(super) fn to_f64(&self) -> Vec<f64> {
        match self {
            Data::F32(_, values) => values.iter().map(|&value| f64::from(value)).collect(),
            Data::Bits16(ty, bits) => to_f32(*ty, bits).into_iter().map(f64::from).collect(),
            Data::Codes(_, codes) => codes.iter().map(|&code| f64::from(code)).collect(),
            Data::I32(_, values) => values.iter().map(|&value| f64::from(value)).collect(),
        }
    }

    fn bits(&self) -> Vec<u16> {
        let halves = |bits: u32| [bits as u16, (bits >> 16) as u16];
        match self {
            Data::F32(_, values) => values.iter().flat_map(|value| halves(value.to_bits())).collect(),
            Data::Bits16(_, bits) => bits.clone(),
            Data::Codes(_, codes) => {
                let pairs = codes.chunks(2);
                pairs.map(|pair| u16::from_le_bytes([pair[0], *pair.get(1).unwrap_or(&PADDING)])).collect()
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

/// Converts elements of any type, codes included, to f32.
fn to_f32(ty: TensorType, bits: &[u16]) -> Vec<f32> {
    let mut wide = vec![0.0; bits.len()];
    match ty.dtype {
        DType::BF16 => {
            Bf16::widen(Level::Portable, &bits.iter().map(|&bits| Bf16(bits)).collect::<Vec<_>>(), &mut wide);
        }
        DType::F16 => {
            F16::widen(Level::Portable, &bits.iter().map(|&bits| F16(bits)).collect::<Vec<_>>(), &mut wide);
        }
        DType::F32 | DType::I32 => {
            let whole = bits.as_chunks::<2>().0.iter();
            let words = whole.map(|half| u32::from(half[1]) << 16 | u32::from(half[0]));
            return match ty.dtype {
                DType::I32 => words.map(|word| word.cast_signed() as f32).collect(),
                _ => words.map(f32::from_bits).collect(),
            };
        }
        DType::U16 => return bits.iter().map(|&bits| f32::from(bits)).collect(),
        DType::U8 => {
            let bytes = bits.iter().flat_map(|bits| bits.to_le_bytes());
            return bytes.take(ty.elements()).map(f32::from).collect();
        }
        DType::U4 => unreachable!("4-bit codes are packed in bytes"),
    }
    wide
}

/// A buffer with guards before and after it, in units of two bytes.
struct GuardedBuffer {
    storage: Vec<u16>,
    /// Index of the first used element: at the requested offset from a cache line, the alignment of device memory.
    start: usize,
    len: usize,
    /// Whether the upper byte of the last element is not used.
    is_padded: bool,
}

const LINE_BYTES: usize = 64;
const LINE: usize = LINE_BYTES / size_of::<u16>();
const GUARD: u16 = 0xC0FE;
/// Bits that are NaN in every floating-point type; two of them are an f32 NaN.
const NAN: u16 = 0x7FFF;
/// The byte after an odd number of bytes.
const PADDING: u8 = (NAN >> 8) as u8;

impl GuardedBuffer {
    fn new(bytes: usize, bytes_before: usize) -> GuardedBuffer {
        let [len, before] = [bytes, bytes_before].map(|bytes| bytes.div_ceil(size_of::<u16>()));
        // One line for the alignment, one for the guard.
        let storage = vec![GUARD; before + len + 2 * LINE];
        let start = storage.as_ptr().align_offset(LINE_BYTES) + before;
        let is_padded = !bytes.is_multiple_of(size_of::<u16>());
        let mut memory = GuardedBuffer { storage, start, len, is_padded };
        memory.bits_mut().fill(NAN);
        memory
    }

    fn from_data(data: &Data, bytes_before: usize) -> GuardedBuffer {
        let mut memory = GuardedBuffer::new(data.ty().bytes() as usize, bytes_before);
        memory.bits_mut().copy_from_slice(&data.bits());
        memory
    }

    fn bits(&self) -> &[u16] {
        &self.storage[self.start..self.start + self.len]
    }

    fn bits_mut(&mut self) -> &mut [u16] {
        &mut self.storage[self.start..self.start + self.len]
    }

    fn address(&mut self) -> *mut u8 {
        // Derived from the whole storage, so that a write into the guard is detected instead of undefined behaviour.
        self.storage.as_mut_ptr().wrapping_add(self.start).cast()
    }

    fn guards_are_intact(&self) -> bool {
        let (before, after) = (&self.storage[..self.start], &self.storage[self.start + self.len..]);
        let is_padding = |last: Option<&u16>| last.is_some_and(|bits| bits.to_le_bytes()[1] == PADDING);
        before.iter().chain(after).all(|&bits| bits == GUARD)
            && (!self.is_padded || is_padding(self.bits().last()))
    }
}

/// Settings of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchOptions {
    pub(super) threads: usize,
    pub(super) level: Level,
    /// Whether outputs use the optional aliases.
    pub(super) alias: bool,
}

/// The outputs of `op`, in f32.
pub(super) fn launch(op: &Op, inputs: &[Data], options: LaunchOptions) -> Vec<Vec<f32>> {
    launch_at(op, inputs, options, 0)
}

/// As `launch`, with every operand at an offset of `rows` rows into a tensor.
fn launch_at(op: &Op, inputs: &[Data], options: LaunchOptions, rows: usize) -> Vec<Vec<f32>> {
    let before = |ty: TensorType| rows * ty.shape.last() * ty.dtype.bytes() as usize;
    let types: Vec<TensorType> = inputs.iter().map(Data::ty).collect();
    let output_types = op.outputs(&types).expect("the test's inputs fit the operation");
    let limits = WorkspaceLimits {
        processor: Processor::Cpu,
        threads: options.threads,
        product_bytes_per_thread: PRODUCT_WORKSPACE_PER_THREAD,
    };
    let bytes = op.workspace(&types, &output_types, &limits) as usize;
    let mut aliases = op.updates().to_vec();
    if options.alias {
        aliases.extend(op.may_overwrite());
    }
    let filled = inputs.iter().map(|input| GuardedBuffer::from_data(input, before(input.ty())));
    let mut memory: Vec<GuardedBuffer> = filled.collect();
    let output_buffers: Vec<usize> = output_types
        .iter()
        .enumerate()
        .map(|(output, ty)| match aliases.iter().find(|alias| alias.0 == output) {
            Some(&(_, input)) => input,
            None => {
                memory.push(GuardedBuffer::new(ty.bytes() as usize, before(*ty)));
                memory.len() - 1
            }
        })
        .collect();
    let operand = |memory: &mut GuardedBuffer, ty: TensorType| Operand { address: memory.address(), ty };
    let operands: Vec<Operand> = memory.iter_mut().zip(&types).map(|(m, &ty)| operand(m, ty)).collect();
    let outputs: Vec<Operand> = output_buffers
        .iter()
        .zip(&output_types)
        .map(|(&index, &ty)| operand(&mut memory[index], ty))
        .collect();
    let mut scratch = GuardedBuffer::new(bytes, 0);
    let workers = workers(options.threads, options.level);
    // SAFETY: all operands are buffers of the size of their type, used by nothing else.
    unsafe { run(op, &operands, &outputs, Some((scratch.address(), bytes)), &workers) };

    assert!(
        memory.iter().chain([&scratch]).all(GuardedBuffer::guards_are_intact),
        "{} wrote out of bounds",
        op.name()
    );
    for (index, (input, memory)) in inputs.iter().zip(&memory).enumerate() {
        let written = aliases.iter().any(|alias| alias.1 == index);
        assert!(written || memory.bits() == input.bits(), "{} changed its input {index}", op.name());
    }
    let outputs = output_buffers.iter().zip(&output_types);
    outputs.map(|(&index, ty)| to_f32(*ty, memory[index].bits())).collect()
}

/// Workers, cached per test thread, because starting their threads takes longer than most launches.
fn workers(threads: usize, level: Level) -> Rc<Workers> {
    thread_local! {
        static CACHE: RefCell<Vec<Rc<Workers>>> = const { RefCell::new(Vec::new()) };
    }
    CACHE.with_borrow_mut(|cache| {
        let cached = cache.iter().find(|workers| (workers.threads(), workers.level()) == (threads, level));
        cached.cloned().unwrap_or_else(|| {
            let workers = Rc::new(Workers::with_level(threads, level).expect("threads can be started"));
            cache.push(Rc::clone(&workers));
            workers
        })
    })
}

fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outputs.iter().map(|output| output.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Launch settings that must not change results: threads, use of optional aliases, and the operands' offset into their
/// tensors in rows.
type Variant = (usize, bool, usize);

const VARIANTS: [Variant; 6] =
    [(1, true, 0), (2, false, 0), (3, true, 0), (4, false, 0), (2, true, 1), (2, true, 3)];

/// The levels and variants in which a case runs. At each level it also runs on one thread, without aliases and offset.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variants {
    All,
    /// One level and one variant, by index.
    One {
        level: usize,
        variant: usize,
    },
}

impl Variants {
    /// The levels, each with its variants.
    fn by_level(self) -> Vec<(Level, Vec<Variant>)> {
        match self {
            // The best level runs with all numbers of threads, the others with two threads.
            Variants::All => Level::available()
                .map(|level| {
                    (
                        level,
                        if level == Level::best() {
                            VARIANTS.to_vec()
                        } else {
                            [&VARIANTS[1..2], &VARIANTS[4..]].concat()
                        },
                    )
                })
                .collect(),
            Variants::One { level, variant } => {
                Level::available().skip(level).take(1).map(|level| (level, vec![VARIANTS[variant]])).collect()
            }
        }
    }
}

/// Combinations of one value of each axis, as indices, each with its variants. A full run has all combinations in all
/// variants. Otherwise a covering array: every `strength` values of different axes occur together, where the level and
/// the variant are two more axes.
pub(super) fn cases<const AXES: usize>(
    strength: usize,
    axes: [usize; AXES],
) -> Vec<([usize; AXES], Variants)> {
    let values = |combination: &[usize]| combination[..AXES].try_into().expect("all axes come first");
    if full() {
        return combinations(&axes, AXES).iter().map(|all| (values(all), Variants::All)).collect();
    }
    let all_axes = [&axes[..], &[Level::available().count(), VARIANTS.len()]].concat();
    let combinations = combinations(&all_axes, strength);
    let case = |all: &Vec<usize>| (values(all), Variants::One { level: all[AXES], variant: all[AXES + 1] });
    combinations.iter().map(case).collect()
}

/// Runs `op` in all variants. Asserts that results are close to `expected` at every level, and that variants give
/// bitwise equal results.
pub(super) fn check(op: Op, inputs: &[Data], expected: &[Vec<f64>]) {
    check_variants(Variants::All, op, inputs, expected);
}

/// As `check`, in some variants.
pub(super) fn check_variants(variants: Variants, op: Op, inputs: &[Data], expected: &[Vec<f64>]) {
    let types: Vec<TensorType> = inputs.iter().map(Data::ty).collect();
    let types = op.outputs(&types).expect("the test's inputs fit the operation");
    for (level, variants) in variants.by_level() {
        let outputs = launch(&op, inputs, LaunchOptions { threads: 1, level, alias: false });
        assert_eq!(outputs.len(), expected.len(), "{}: number of outputs", op.name());
        for (index, ((output, expected), ty)) in outputs.iter().zip(expected).zip(&types).enumerate() {
            let context = format!("{} at {level:?}: output {index}, {ty},", op.name());
            match ty.dtype {
                DType::BF16 => assert_rounded(output, expected, 7, -126, &context),
                DType::F16 => assert_rounded(output, expected, 10, -14, &context),
                DType::F32 | DType::I32 => {
                    let error = relative_error(output, expected);
                    assert!(error < TOLERANCE, "{context} is off by {error:e}");
                }
                DType::U8 => {
                    let same = output.iter().map(|&code| f64::from(code)).eq(expected.iter().copied());
                    assert!(same, "{context} differs");
                }
                DType::U16 | DType::U4 => unreachable!("no tested output has this type"),
            }
        }
        for (threads, alias, rows) in variants {
            // Only some operations accept operands at any row of a tensor.
            let rows = if op.takes_any_rows() { rows } else { 0 };
            let options = LaunchOptions { threads, level, alias };
            let same = bits(&launch_at(&op, inputs, options, rows)) == bits(&outputs);
            assert!(same, "{}: different bits with {options:?}, at an offset of {rows} rows", op.name());
        }
    }
}

/// Asserts that each element is the expected number rounded once to `fraction` mantissa bits. The error may be half a
/// ULP, plus the tolerance of f32 sums.
fn assert_rounded(found: &[f32], expected: &[f64], fraction: i32, least_exponent: i32, context: &str) {
    assert_eq!(found.len(), expected.len());
    let squares: f64 = expected.iter().map(|value| value * value).sum();
    let noise = 5.0 * TOLERANCE * (squares / expected.len() as f64).sqrt();
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let exponent = (expected.abs() + noise).log2().floor() as i32;
        let half_ulp = 2f64.powi(exponent.max(least_exponent) - fraction - 1);
        let error = (f64::from(found) - expected).abs();
        assert!(error <= half_ulp + noise, "{context} element {index} is {found}, not {expected}");
    }
}

/// The norm of the difference, relative to the norm of `expected` unless that is zero.
pub(super) fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(&f, &e)| f64::from(f) - e));
    let scale = norm(&mut expected.iter().copied());
    if scale > 0.0 { difference / scale } else { difference }
}

/// The gradient of `loss` by central differences.
pub(super) fn numeric_gradient(at: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
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

/// Asserts that a gradient of the reference matches the numeric gradient of its forward pass.
pub(super) fn assert_gradient(gradient: &[f64], at: &[f64], loss: impl Fn(&[f64]) -> f64) {
    let numeric: Vec<f32> = numeric_gradient(at, loss).iter().map(|&value| value as f32).collect();
    let error = relative_error(&numeric, gradient);
    assert!(error < 1e-6, "the reference is off by {error:e}");
}

pub(super) fn inner_product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn added(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
