//! Quantization and dequantization of weights.

use ops::{CodeFormat, DType, Dequantize, Op, Quantize};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

const FORMATS: [CodeFormat; 3] =
    [CodeFormat::Int8, CodeFormat::Nf4 { double: false }, CodeFormat::Nf4 { double: true }];

/// One number, ends within an NF4 block and within a byte, more blocks than share a second-level scale, and rows longer
/// than a thread block processes.
const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 65], [5, 64], [40, 513], [7, 3000]];

/// The first row is all zeros if there are several rows.
fn weight(dims: &[usize], seed: u64) -> Data {
    let mut weight = Data::random(DType::F32, dims, 0.1, seed);
    if dims[0] > 1 {
        weight.numbers[..dims[1]].fill(0.0);
    }
    weight
}

/// Asserts that codes and scales agree. A scale near the boundary between two codes may get either code.
fn assert_alike(found: &Data, expected: &Data, label: &str) {
    assert_eq!((found.ty, found.numbers.len()), (expected.ty, expected.numbers.len()));
    let mut differing = 0;
    for (index, (&found, &expected_value)) in found.numbers.iter().zip(&expected.numbers).enumerate() {
        let slack = match expected.ty.dtype {
            DType::U4 => 0.0,
            DType::U8 => 1.0,
            DType::F32 => 1e-6 * expected_value.abs(),
            _ => expected_value.abs() / 127.0,
        };
        assert!(
            (found - expected_value).abs() <= slack,
            "{label} at {index}: {found} instead of {expected_value}"
        );
        differing += usize::from(found != expected_value && expected.ty.dtype == DType::U8);
    }
    assert!(differing <= 1 + expected.numbers.len() / 100, "{label}: {differing} codes differ");
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn quantization_and_dequantization_match_the_cpu() {
    let mut devices = Devices::new();
    for (seed, dims) in (1..).zip(SIZES) {
        for format in FORMATS {
            let label = format!("{format:?} of {dims:?}");
            let quantize = Op::Quantize(Quantize { format });
            let inputs = [weight(&dims, seed)];
            let stored = devices.cpu(&quantize, &inputs);
            let found = devices.cuda(&quantize, &inputs);
            assert_eq!(found.len(), stored.len());
            for (found, expected) in found.iter().zip(&stored) {
                assert_alike(found, expected, &label);
            }
            for to in NUMBERS {
                let dequantize = Op::Dequantize(Dequantize { format, to });
                let expected = devices.cpu(&dequantize, &stored);
                assert_alike(
                    &devices.cuda(&dequantize, &stored)[0],
                    &expected[0],
                    &format!("{label} as {to}"),
                );
            }
        }
    }
}
