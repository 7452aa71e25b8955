//! Gathering samples from all samples of a data set.

use ops::{DType, GatherSamples, Op, TensorType};

use super::harness::{Data, check};

/// The first, the last and a repeated sample, a missing one, and one beyond the end.
#[test]
fn samples_are_copied_from_the_data() {
    const SAMPLES: usize = 5;
    let places: [u64; 6] = [0, 4, 2, 2, 1 << 63 | 1, 5];
    let words = places.iter().flat_map(|&place| [place as u32 as i32, (place >> 32) as i32]);
    let place = Data::I32(TensorType::i32(&[places.len(), 2]), words.collect());
    for sample in [&[][..], &[3], &[2, 1, 3]] {
        let dims = [&[SAMPLES], sample].concat();
        let elements: usize = sample.iter().product();
        let numbers: Vec<i32> = (0..(SAMPLES * elements) as i32).map(|i| i * i % 251).collect();
        let floats = numbers.iter().map(|&number| number as f32 / 4.0).collect();
        let all = [
            (
                Data::Codes(TensorType::new(DType::U8, &dims), numbers.iter().map(|&n| n as u8).collect()),
                255.0,
                1.0,
            ),
            (
                Data::Bits16(TensorType::new(DType::U16, &dims), numbers.iter().map(|&n| n as u16).collect()),
                65535.0,
                1.0,
            ),
            (Data::I32(TensorType::i32(&dims), numbers.clone()), -1.0, 1.0),
            (Data::F32(TensorType::f32(&dims), floats), f64::NAN, 4.0),
        ];
        for (samples, mask, divisor) in all {
            for masks in [false, true] {
                if masks && mask.is_nan() {
                    continue;
                }
                let expected = places.iter().flat_map(|&place| {
                    (0..elements)
                        .map(move |at| (place as usize).checked_mul(elements).map(|first| first + at))
                });
                let missing = if masks { mask } else { 0.0 };
                let number = |at: Option<usize>| {
                    at.and_then(|at| numbers.get(at)).map_or(missing, |&number| f64::from(number) / divisor)
                };
                let expected: Vec<f64> = expected.map(number).collect();
                let op = Op::GatherSamples(GatherSamples { masks });
                check(op, &[samples.clone(), place.clone()], std::slice::from_ref(&expected));
            }
        }
    }
}
