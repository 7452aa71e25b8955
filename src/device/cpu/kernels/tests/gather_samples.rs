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
        let codes: Vec<u8> = numbers.iter().map(|&number| number as u8).collect();
        let floats: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
        let samples = [
            Data::Codes(TensorType::new(DType::U8, &dims), codes),
            Data::I32(TensorType::i32(&dims), numbers.clone()),
            Data::F32(TensorType::f32(&dims), floats.clone()).stored_as(DType::F16),
            Data::F32(TensorType::f32(&dims), floats),
        ];
        for (samples, mask) in samples.into_iter().zip([Some(255.0), Some(-1.0), None, None]) {
            // All bits of a float would be NaN.
            for masks in [false, true].into_iter().take(1 + usize::from(mask.is_some())) {
                let missing = mask.filter(|_| masks).unwrap_or(0.0);
                let number = |place: u64, at: usize| {
                    let first = usize::try_from(place).ok().and_then(|place| place.checked_mul(elements));
                    let number = first.and_then(|first| numbers.get(first + at));
                    number.map_or(missing, |&number| f64::from(number))
                };
                let expected: Vec<f64> = places
                    .iter()
                    .flat_map(|&place| (0..elements).map(move |at| (place, at)))
                    .map(|(place, at)| number(place, at))
                    .collect();
                let op = Op::GatherSamples(GatherSamples { masks });
                check(op, &[samples.clone(), place.clone()], std::slice::from_ref(&expected));
            }
        }
    }
}
