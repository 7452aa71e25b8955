//! Stretches of a long row of tokens.

use runner::ops::{DType, Op, Stretch};

use super::harness::Devices;
use super::numbers::Data;

/// From the front, at the end and beyond it, shorter and longer than a block.
#[test]
fn samples_are_stretches_of_the_row() {
    const TOKENS: usize = 2000;
    let mut devices = Devices::new();
    let tokens: Vec<f32> = (0..TOKENS).map(|i| (i * i % 251) as f32).collect();
    let places = [0, 1000, 1990, 1999, 3000];
    let words = places.iter().flat_map(|&place| [place as f32, 0.0]).collect();
    let place = Data::new(DType::I32, &[places.len(), 2], words);
    for dtype in [DType::U8, DType::U16, DType::I32] {
        for (later, length) in [(0, 1), (1, 37), (1, 600)] {
            let op = Op::Stretch(Stretch { later, length });
            let inputs = [Data::new(dtype, &[TOKENS], tokens.clone()), place.clone()];
            let (found, expected) = (devices.cuda(&op, &inputs), devices.expected_of_same(&op, &inputs));
            assert_eq!((found[0].ty, &found[0].numbers), (expected[0].ty, &expected[0].numbers));
        }
    }
}
