//! Quantization and dequantization of weights against the formats' definitions, in f64.
#![allow(unsafe_code)] // Operands are addresses; these buffers outlive the launch.

use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::{Operand, Workers, run};
use ops::{
    CodeFormat, DType, Dequantize, DynamicMap, NF4, NF4_BLOCK, Op, Processor, QUANTIZED_BLOCK, Quantize,
    TensorType, WorkspaceLimits,
};

use super::harness::Data;

const SINGLE: CodeFormat = CodeFormat::Nf4 { double: false };
const DOUBLE: CodeFormat = CodeFormat::Nf4 { double: true };

/// A single number, ends within a block and within a byte, rows shorter than a block, and several blocks of scales.
const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 65], [5, 64], [7, 9], [40, 513]];

/// A buffer aligned like device memory, with a guard after it.
struct GuardedBuffer {
    storage: Vec<u8>,
    start: usize,
    ty: TensorType,
}

const UNTOUCHED: u8 = 0xA5;

impl GuardedBuffer {
    fn new(ty: TensorType) -> GuardedBuffer {
        let storage = vec![UNTOUCHED; ty.bytes() as usize + 2 * 64];
        let start = storage.as_ptr().align_offset(64);
        GuardedBuffer { storage, start, ty }
    }

    fn from_bytes(ty: TensorType, bytes: &[u8]) -> GuardedBuffer {
        let mut memory = GuardedBuffer::new(ty);
        let start = memory.start;
        memory.storage[start..start + bytes.len()].copy_from_slice(bytes);
        memory
    }

    fn operand(&mut self) -> Operand {
        // Derived from the whole storage, so that a write into the guard is detected instead of undefined behaviour.
        Operand { address: self.storage.as_mut_ptr().wrapping_add(self.start), ty: self.ty }
    }

    /// The contents.
    fn bytes(self) -> Vec<u8> {
        let (contents, guard) = self.storage[self.start..].split_at(self.ty.bytes() as usize);
        assert!(guard.iter().all(|&byte| byte == UNTOUCHED), "write past the end of {}", self.ty);
        contents.to_vec()
    }
}

/// The outputs of an operation.
fn launch(
    op: &Op,
    inputs: &[(TensorType, Vec<u8>)],
    level: Level,
    threads: usize,
) -> Vec<(TensorType, Vec<u8>)> {
    let types: Vec<TensorType> = inputs.iter().map(|(ty, _)| *ty).collect();
    let output_types = op.outputs(&types).unwrap();
    let mut memory: Vec<GuardedBuffer> =
        inputs.iter().map(|(ty, bytes)| GuardedBuffer::from_bytes(*ty, bytes)).collect();
    let mut outputs: Vec<GuardedBuffer> = output_types.iter().map(|&ty| GuardedBuffer::new(ty)).collect();
    let limits = WorkspaceLimits { processor: Processor::Cpu, threads, product_bytes_per_thread: 0 };
    let bytes = op.workspace(&types, &output_types, &limits);
    let mut scratch = GuardedBuffer::new(TensorType::f32(&[bytes as usize / 4]));
    let workspace = (bytes > 0).then(|| (scratch.operand().address, bytes as usize));
    let ins: Vec<Operand> = memory.iter_mut().map(GuardedBuffer::operand).collect();
    let outs: Vec<Operand> = outputs.iter_mut().map(GuardedBuffer::operand).collect();
    let workers = Workers::with_level(threads, level).unwrap();
    // SAFETY: all operands have the declared types, are aligned and disjoint, and outlive the launch.
    unsafe { run(op, &ins, &outs, workspace, &workers) };
    drop(scratch.bytes());
    output_types.into_iter().zip(outputs.into_iter().map(GuardedBuffer::bytes)).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_ne_bytes(*bytes))).collect()
}

/// Whether `found` is the nearest of all values to a number, up to rounding.
fn is_nearest(number: f64, found: f64, all: impl Iterator<Item = f64>) -> bool {
    let nearest = all.map(|other| (other - number).abs()).fold(f64::INFINITY, f64::min);
    (found - number).abs() <= nearest + 1e-6
}

/// The stored scales of blocks.
fn scales(format: CodeFormat, stored: &[(TensorType, Vec<u8>)]) -> Vec<f64> {
    match format {
        DOUBLE => {
            let outer = f32s(&stored[2].1);
            let scale = |(index, &code): (usize, &u8)| {
                outer[0] + DynamicMap::Signed.share(code) * outer[1 + index / QUANTIZED_BLOCK]
            };
            stored[1].1.iter().enumerate().map(scale).collect()
        }
        _ => f32s(&stored[1].1),
    }
}

fn check_codes(
    format: CodeFormat,
    weight: &[f64],
    columns: usize,
    stored: &[(TensorType, Vec<u8>)],
) -> Vec<f64> {
    let codes = &stored[0].1;
    let largest = |numbers: &[f64]| numbers.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
    if format == CodeFormat::Int8 {
        let steps = f32s(&stored[1].1);
        let rows = weight.chunks(columns).zip(codes.chunks(columns)).zip(steps);
        let numbers = rows.flat_map(|((weight, codes), step)| {
            assert_eq!(step, f64::from(largest(weight) as f32 / 127.0));
            let number = move |(&number, &code): (&f64, &u8)| {
                let steps = f64::from(code) - 128.0;
                assert!(
                    (number - steps * step).abs() <= 0.500_001 * step,
                    "{number} became {steps} of {step}"
                );
                steps * step
            };
            weight.iter().zip(codes).map(number)
        });
        return numbers.collect();
    }
    let block_scales: Vec<f64> = weight.chunks(NF4_BLOCK).map(largest).collect();
    let stored_scales = scales(format, stored);
    if format == DOUBLE {
        let outer = f32s(&stored[2].1);
        let mean = block_scales.iter().sum::<f64>() / block_scales.len() as f64;
        assert!((outer[0] - mean).abs() <= 1e-7 * mean);
        let shares = || (0..=255).map(|code| DynamicMap::Signed.share(code));
        for (index, (scale, &code)) in block_scales.iter().zip(&stored[1].1).enumerate() {
            let outer_scale = outer[1 + index / QUANTIZED_BLOCK];
            let share = if outer_scale > 0.0 { (scale - outer[0]) / outer_scale } else { 0.0 };
            assert!(is_nearest(share, DynamicMap::Signed.share(code), shares()), "{share} became {code}");
        }
    } else {
        assert_eq!(stored_scales, block_scales);
    }
    let numbers = weight.iter().enumerate().map(|(index, number)| {
        let code = codes[index / 2] >> (4 * (index % 2)) & 15;
        let (share, scale) = (f64::from(NF4[usize::from(code)]), block_scales[index / NF4_BLOCK]);
        let shares = NF4.iter().map(|&share| f64::from(share));
        if scale > 0.0 {
            assert!(is_nearest(number / scale, share, shares), "{number} of {scale} became {share}");
        }
        share * stored_scales[index / NF4_BLOCK]
    });
    numbers.collect()
}

#[test]
fn quantize_finds_nearest_codes_and_dequantize_decodes_them() {
    for (seed, dims) in (1..).zip(SIZES) {
        let ty = TensorType::f32(&dims);
        let weight = Data::random(&dims, seed);
        let Data::F32(_, mut weight) = weight else { unreachable!("f32 data") };
        if dims[0] > 1 {
            // A row of zeros, whose scale is 0.
            weight[..dims[1]].fill(0.0);
        }
        let bytes: Vec<u8> = weight.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let exact: Vec<f64> = weight.iter().map(|&number| f64::from(number)).collect();
        for format in [CodeFormat::Int8, SINGLE, DOUBLE] {
            let quantize = Op::Quantize(Quantize { format });
            let stored = launch(&quantize, &[(ty, bytes.clone())], Level::Portable, 1);
            let expected = check_codes(format, &exact, dims[1], &stored);
            let dequantize = Op::Dequantize(Dequantize { format, to: DType::F32 });
            for (level, threads) in Level::available().flat_map(|level| [(level, 1), (level, 3)]) {
                assert_eq!(launch(&quantize, &[(ty, bytes.clone())], level, threads), stored, "{level:?}");
                let [(_, found)] = &launch(&dequantize, &stored, level, threads)[..] else {
                    panic!("one output")
                };
                for (found, expected) in f32s(found).into_iter().zip(&expected) {
                    assert!((found - expected).abs() <= 3e-7 * expected.abs(), "{found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn dequantize_to_16_bits_rounds_once_to_nearest() {
    let ty = TensorType::f32(&[4, 100]);
    let Data::F32(_, weight) = Data::random(&[4, 100], 9) else { unreachable!("f32 data") };
    let bytes: Vec<u8> = weight.iter().flat_map(|number| number.to_ne_bytes()).collect();
    for format in [CodeFormat::Int8, SINGLE, DOUBLE] {
        let stored = launch(&Op::Quantize(Quantize { format }), &[(ty, bytes.clone())], Level::best(), 2);
        let numbers = |to| {
            let op = Op::Dequantize(Dequantize { format, to });
            launch(&op, &stored, Level::best(), 2).swap_remove(0).1
        };
        let wide = f32s(&numbers(DType::F32)).into_iter().map(|number| number as f32).collect();
        for to in [DType::BF16, DType::F16] {
            let bits = match Data::F32(ty, Vec::clone(&wide)).stored_as(to) {
                Data::Bits16(_, bits) => bits,
                other => panic!("not of 16 bits: {:?}", other.ty()),
            };
            let halves: Vec<u8> = bits.iter().flat_map(|half| half.to_ne_bytes()).collect();
            assert_eq!(numbers(to), halves, "{format:?} as {to}");
        }
    }
}
