//! Casts between floating-point types, bit for bit.

use ops::{Cast, DType, Op};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS, rounded, value_of};

/// Asserts that each number was rounded to the nearest number of the type.
fn assert_rounded(cast: &Data, numbers: &[f32]) {
    for (&found, &number) in cast.numbers.iter().zip(numbers) {
        let expected = rounded(number, cast.ty.dtype);
        let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        assert!(same, "{number:e} became {found:e} as {}, not {expected:e}", cast.ty.dtype);
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn many_tensors_are_cast_in_one_launch() {
    let mut devices = Devices::new();
    // More tensors than a launch table holds, of every type, with all alignments of their ends.
    let inputs: Vec<Data> = (0..140)
        .map(|index| {
            let elements = [1, 7, 8, 100, 8192, 8199, 17_000][index % 7];
            Data::random(NUMBERS[index % 3], &[elements], 100.0, index as u64)
        })
        .collect();
    for to in NUMBERS {
        let outputs = devices.cuda(&Op::Cast(Cast { to }), &inputs);
        for (output, input) in outputs.iter().zip(&inputs) {
            assert_eq!(output.ty.dtype, to);
            assert_rounded(output, &input.numbers);
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn every_16_bit_number_survives_f32() {
    let mut devices = Devices::new();
    for dtype in [DType::BF16, DType::F16] {
        let all: Vec<f32> = (0..=u16::MAX).map(|bits| value_of(bits, dtype)).collect();
        let narrow = Data::new(dtype, &[all.len()], all.clone());
        let wide = devices.cuda(&Op::Cast(Cast { to: DType::F32 }), &[narrow]);
        assert_rounded(&wide[0], &all);
        let back = devices.cuda(&Op::Cast(Cast { to: dtype }), &wide);
        assert_rounded(&back[0], &all);
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn ties_round_to_even_and_overflow_to_infinity() {
    let mut devices = Devices::new();
    for dtype in [DType::BF16, DType::F16] {
        let all = (0..u16::MAX).map(|bits| [value_of(bits, dtype), value_of(bits + 1, dtype)]);
        let finite = all.filter(|[a, b]| a.is_finite() && b.is_finite());
        let ties = finite.map(|[a, b]| ((f64::from(a) + f64::from(b)) / 2.0) as f32);
        let large = [65519.0, 65520.0, -70_000.0, 1e30, f32::MAX, f32::INFINITY, f32::NAN];
        let numbers: Vec<f32> = ties.chain(large).collect();
        let wide = Data::new(DType::F32, &[numbers.len()], numbers.clone());
        let narrow = devices.cuda(&Op::Cast(Cast { to: dtype }), &[wide]);
        assert_rounded(&narrow[0], &numbers);
    }
}
