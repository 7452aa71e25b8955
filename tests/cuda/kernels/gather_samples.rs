//! Gathering samples from all samples of a data set.

use ops::{DType, GatherSamples, Op};

use super::harness::Devices;
use super::numbers::Data;

/// The first, the last, a repeated and a missing sample, and one beyond the end; shorter and longer than a block.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn samples_are_gathered_from_the_data() {
    const SAMPLES: usize = 5;
    let mut devices = Devices::new();
    let places = [(0, 0.0), (4, 0.0), (2, 0.0), (2, 0.0), (1, i32::MIN as f32), (5, 0.0)];
    let words = places.iter().flat_map(|&(lower, upper)| [lower as f32, upper]).collect();
    let place = Data::new(DType::I32, &[places.len(), 2], words);
    for dtype in [DType::U8, DType::U16, DType::I32, DType::F16, DType::F32] {
        for sample in [&[][..], &[3], &[3, 20, 11]] {
            let dims = [&[SAMPLES], sample].concat();
            let numbers = (0..dims.iter().product()).map(|i: usize| (i * i % 251) as f32).collect();
            let inputs = [Data::new(dtype, &dims, numbers), place.clone()];
            // All bits of a float would be NaN, which equals nothing.
            let masks = if dtype.is_float() { &[false][..] } else { &[false, true] };
            for &masks in masks {
                let op = Op::GatherSamples(GatherSamples { masks });
                let (found, expected) = (devices.cuda(&op, &inputs), devices.cpu(&op, &inputs));
                assert_eq!((found[0].ty, &found[0].numbers), (expected[0].ty, &expected[0].numbers));
            }
        }
    }
}
