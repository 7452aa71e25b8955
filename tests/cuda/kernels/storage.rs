//! Weights as codes, and back.

use ops::{CodeFormat, DType, Dequantize, Op, Quantize};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

const FORMATS: [CodeFormat; 3] =
    [CodeFormat::Int8, CodeFormat::Nf4 { double: false }, CodeFormat::Nf4 { double: true }];

/// One number, ends within a block, within a byte, and more blocks than share a scale; and more than one block of threads
/// takes of a row.
const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 65], [5, 64], [40, 513], [7, 3000]];

/// The first row, or all that there is of it, has no largest number.
fn weight(dims: &[usize], seed: u64) -> Data {
    let mut weight = Data::random(DType::F32, dims, 0.1, seed);
    if dims[0] > 1 {
        weight.numbers[..dims[1]].fill(0.0);
    }
    weight
}

/// Scales are quantized with shares that each device makes for itself: one that is half way between two may become either.
fn assert_alike(found: &Data, expected: &Data, place: &str) {
    assert_eq!((found.ty, found.numbers.len()), (expected.ty, expected.numbers.len()));
    let mut others = 0;
    for (index, (&found, &wanted)) in found.numbers.iter().zip(&expected.numbers).enumerate() {
        let slack = match expected.ty.dtype {
            DType::U4 => 0.0,
            DType::U8 => 1.0,
            DType::F32 => 1e-6 * wanted.abs(),
            _ => wanted.abs() / 127.0,
        };
        assert!((found - wanted).abs() <= slack, "{place} at {index}: {found} for {wanted}");
        others += usize::from(found != wanted && expected.ty.dtype == DType::U8);
    }
    assert!(others <= 1 + expected.numbers.len() / 100, "{place}: {others} codes are others");
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn weights_become_codes_and_codes_numbers() {
    let mut devices = Devices::new();
    for (seed, dims) in (1..).zip(SIZES) {
        for format in FORMATS {
            let place = format!("{format:?} of {dims:?}");
            let quantize = Op::Quantize(Quantize { format });
            let inputs = [weight(&dims, seed)];
            let stored = devices.expected_of_same(&quantize, &inputs);
            let found = devices.cuda(&quantize, &inputs);
            assert_eq!(found.len(), stored.len());
            for (found, expected) in found.iter().zip(&stored) {
                assert_alike(found, expected, &place);
            }
            for to in NUMBERS {
                let dequantize = Op::Dequantize(Dequantize { format, to });
                let expected = devices.expected_of_same(&dequantize, &stored);
                assert_alike(
                    &devices.cuda(&dequantize, &stored)[0],
                    &expected[0],
                    &format!("{place} as {to}"),
                );
            }
        }
    }
}
