//! Weights as codes, and back, against what the formats say, in f64.
#![allow(unsafe_code)] // Operands are addresses; the buffers here outlive the launch.

use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::{Operand, Workers, run};
use ops::{
    CodeFormat, DType, Dequantize, DynamicMap, NF4, NF4_BLOCK, Op, Processor, QUANTIZED_BLOCK, Quantize,
    TensorType, WorkspaceLimits,
};

use super::harness::Data;

const SINGLE: CodeFormat = CodeFormat::Nf4 { double: false };
const DOUBLE: CodeFormat = CodeFormat::Nf4 { double: true };

/// One number, ends within a block and within a byte, a row with less than a block, and more blocks than share a scale.
const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 65], [5, 64], [7, 9], [40, 513]];

/// Memory that begins where devices' does, and has some more behind it.
struct Memory {
    storage: Vec<u8>,
    start: usize,
    ty: TensorType,
}

const UNTOUCHED: u8 = 0xA5;

impl Memory {
    fn new(ty: TensorType) -> Memory {
        let storage = vec![UNTOUCHED; ty.bytes() as usize + 2 * 64];
        let start = storage.as_ptr().align_offset(64);
        Memory { storage, start, ty }
    }

    fn holding(ty: TensorType, bytes: &[u8]) -> Memory {
        let mut memory = Memory::new(ty);
        let start = memory.start;
        memory.storage[start..start + bytes.len()].copy_from_slice(bytes);
        memory
    }

    fn operand(&mut self) -> Operand {
        // Of the whole storage, so that a kernel that writes behind it is found, not undefined.
        Operand { address: self.storage.as_mut_ptr().wrapping_add(self.start), ty: self.ty }
    }

    /// What it holds.
    fn bytes(self) -> Vec<u8> {
        let (held, behind) = self.storage[self.start..].split_at(self.ty.bytes() as usize);
        assert!(behind.iter().all(|&byte| byte == UNTOUCHED), "nothing is written behind {}", self.ty);
        held.to_vec()
    }
}

/// The outputs of an operation, on some threads.
fn launch(
    op: &Op,
    inputs: &[(TensorType, Vec<u8>)],
    level: Level,
    threads: usize,
) -> Vec<(TensorType, Vec<u8>)> {
    let types: Vec<TensorType> = inputs.iter().map(|(ty, _)| *ty).collect();
    let output_types = op.outputs(&types).unwrap();
    let mut memory: Vec<Memory> = inputs.iter().map(|(ty, bytes)| Memory::holding(*ty, bytes)).collect();
    let mut outputs: Vec<Memory> = output_types.iter().map(|&ty| Memory::new(ty)).collect();
    let limits = WorkspaceLimits { processor: Processor::Cpu, threads, product_bytes_per_thread: 0 };
    let bytes = op.workspace(&types, &output_types, &limits);
    let mut scratch = Memory::new(TensorType::f32(&[bytes as usize / 4]));
    let workspace = (bytes > 0).then(|| (scratch.operand().address, bytes as usize));
    let ins: Vec<Operand> = memory.iter_mut().map(Memory::operand).collect();
    let outs: Vec<Operand> = outputs.iter_mut().map(Memory::operand).collect();
    let workers = Workers::with_level(threads, level).unwrap();
    // SAFETY: all operands have their types, are aligned, apart, and live until it is done.
    unsafe { run(op, &ins, &outs, workspace, &workers) };
    drop(scratch.bytes());
    output_types.into_iter().zip(outputs.into_iter().map(Memory::bytes)).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_ne_bytes(*bytes))).collect()
}

/// What is not nearest to a number of all that it could stand for.
fn is_nearest(number: f64, found: f64, all: impl Iterator<Item = f64>) -> bool {
    let nearest = all.map(|other| (other - number).abs()).fold(f64::INFINITY, f64::min);
    (found - number).abs() <= nearest + 1e-6
}

/// The scales of blocks, as they are stored.
fn scales(format: CodeFormat, stored: &[(TensorType, Vec<u8>)]) -> Vec<f64> {
    match format {
        DOUBLE => {
            let of_scales = f32s(&stored[2].1);
            let scale = |(index, &code): (usize, &u8)| {
                of_scales[0] + DynamicMap::Signed.share(code) * of_scales[1 + index / QUANTIZED_BLOCK]
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
    let of_blocks: Vec<f64> = weight.chunks(NF4_BLOCK).map(largest).collect();
    let stored_scales = scales(format, stored);
    if format == DOUBLE {
        let of_scales = f32s(&stored[2].1);
        let mean = of_blocks.iter().sum::<f64>() / of_blocks.len() as f64;
        assert!((of_scales[0] - mean).abs() <= 1e-7 * mean);
        let shares = || (0..=255).map(|code| DynamicMap::Signed.share(code));
        for (index, (scale, &code)) in of_blocks.iter().zip(&stored[1].1).enumerate() {
            let of_scale = of_scales[1 + index / QUANTIZED_BLOCK];
            let share = if of_scale > 0.0 { (scale - of_scales[0]) / of_scale } else { 0.0 };
            assert!(is_nearest(share, DynamicMap::Signed.share(code), shares()), "{share} became {code}");
        }
    } else {
        assert_eq!(stored_scales, of_blocks);
    }
    let numbers = weight.iter().enumerate().map(|(index, number)| {
        let code = codes[index / 2] >> (4 * (index % 2)) & 15;
        let (share, scale) = (f64::from(NF4[usize::from(code)]), of_blocks[index / NF4_BLOCK]);
        let shares = NF4.iter().map(|&share| f64::from(share));
        if scale > 0.0 {
            assert!(is_nearest(number / scale, share, shares), "{number} of {scale} became {share}");
        }
        share * stored_scales[index / NF4_BLOCK]
    });
    numbers.collect()
}

#[test]
fn codes_are_the_nearest_and_stand_for_what_the_formats_say() {
    for (seed, dims) in (1..).zip(SIZES) {
        let ty = TensorType::f32(&dims);
        let weight = Data::random(&dims, seed);
        let Data::F32(_, mut weight) = weight else { unreachable!("numbers in f32") };
        if dims[0] > 1 {
            // A row of which the largest is no number's scale.
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

/// To the nearest, once.
#[test]
fn codes_become_numbers_of_16_bits() {
    let ty = TensorType::f32(&[4, 100]);
    let Data::F32(_, weight) = Data::random(&[4, 100], 9) else { unreachable!("numbers in f32") };
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
                Data::Half(_, bits) => bits,
                other => panic!("not of 16 bits: {:?}", other.ty()),
            };
            let halves: Vec<u8> = bits.iter().flat_map(|half| half.to_ne_bytes()).collect();
            assert_eq!(numbers(to), halves, "{format:?} as {to}");
        }
    }
}
