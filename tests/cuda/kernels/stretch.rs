//! Gathering samples: slices of a long row of tokens.

use ops::{DType, GatherTokens, Op};

use super::harness::Devices;
use super::numbers::Data;

/// Samples at the beginning, at the end and beyond it, shorter and longer than a block.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn samples_are_gathered_from_the_row() {
    const TOKENS: usize = 2000;
    let mut devices = Devices::new();
    let tokens: Vec<f32> = (0..TOKENS).map(|i| (i * i % 251) as f32).collect();
    // The last sample is absent: only the sign bit of its upper word is set.
    let places = [(0, 0.0), (1000, 0.0), (1990, 0.0), (1999, 0.0), (3000, 0.0), (5, i32::MIN as f32)];
    let words = places.iter().flat_map(|&(lower, upper)| [lower as f32, upper]).collect();
    let place = Data::new(DType::I32, &[places.len(), 2], words);
    for dtype in [DType::U8, DType::U16, DType::I32] {
        for (later, length, masks) in [(0, 1, false), (1, 37, true), (1, 600, false)] {
            let op = Op::GatherTokens(GatherTokens { later, masks, length });
            let inputs = [Data::new(dtype, &[TOKENS], tokens.clone()), place.clone()];
            let (found, expected) = (devices.cuda(&op, &inputs), devices.cpu(&op, &inputs));
            assert_eq!((found[0].ty, &found[0].numbers), (expected[0].ty, &expected[0].numbers));
        }
    }
}
