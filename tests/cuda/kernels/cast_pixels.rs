//! Pixels to numbers.

use ops::{CastPixels, DType, Op, PixelScale};

use super::harness::Devices;
use super::numbers::Data;

/// All pixels, of one and of three channels, with and without missing samples: bitwise as on the CPU.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn pixels_are_cast() {
    let mut devices = Devices::new();
    let (mean, deviation) = ([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]);
    let normalised = |channels| PixelScale::Normalised { mean, deviation, channels };
    for scale in [PixelScale::Factor(1.0 / 255.0), normalised(1), normalised(3)] {
        let dims = [5, 3, 20, 13];
        let pixels = (0..dims.iter().product()).map(|i: usize| (i * 7 % 256) as f32).collect();
        let pixels = Data::new(DType::U8, &dims, pixels);
        let weights = Data::new(DType::F32, &[5], vec![1.0, 0.0, 2.0, 1.0, 0.0]);
        let op = Op::CastPixels(CastPixels { scale });
        for inputs in [vec![pixels.clone()], vec![pixels.clone(), weights.clone()]] {
            let (found, expected) = (devices.cuda(&op, &inputs), devices.cpu(&op, &inputs));
            assert_eq!((found[0].ty, &found[0].numbers), (expected[0].ty, &expected[0].numbers));
        }
    }
}
