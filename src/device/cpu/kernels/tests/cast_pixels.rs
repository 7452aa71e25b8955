//! Conversion of pixels to numbers.

use ops::{CastPixels, DType, Op, PixelScale, TensorType};

use super::harness::{Data, check};

const SCALES: [PixelScale; 3] = [
    PixelScale::Factor(0.25),
    PixelScale::Normalised { mean: [0.5, 0.0, 0.0], deviation: [0.25, 1.0, 1.0], channels: 1 },
    PixelScale::Normalised { mean: [0.5, 0.25, 0.125], deviation: [0.5, 2.0, 1.0], channels: 3 },
];

/// Samples of several channels, in one row or not, of which one is missing.
#[test]
fn pixels_become_numbers_of_their_channel() {
    for scale in SCALES {
        for dims in [&[2, 3, 5, 7][..], &[3, 6], &[1, 3]] {
            let ty = TensorType::new(DType::U8, dims);
            let pixels: Vec<u8> = (0..ty.elements()).map(|i| (i * i % 256) as u8).collect();
            let weights: Vec<f32> = (0..dims[0]).map(|sample| if sample == 1 { 0.0 } else { 1.5 }).collect();
            let length = ty.elements() / dims[0];
            let plane = length / scale.channels();
            let expected = |has_weights: bool| -> Vec<f64> {
                let number = |(at, &pixel): (usize, &u8)| {
                    let (sample, channel) = (at / length, at % length / plane);
                    let pixel = f64::from(pixel);
                    match scale {
                        _ if has_weights && sample == 1 => 0.0,
                        PixelScale::Factor(factor) => pixel * f64::from(factor),
                        PixelScale::Normalised { mean, deviation, .. } => {
                            (pixel / 255.0 - f64::from(mean[channel])) / f64::from(deviation[channel])
                        }
                    }
                };
                pixels.iter().enumerate().map(number).collect()
            };
            let pixels = Data::Codes(ty, pixels.clone());
            let weights = Data::F32(TensorType::f32(&dims[..1]), weights);
            let op = Op::CastPixels(CastPixels { scale });
            check(op.clone(), std::slice::from_ref(&pixels), &[expected(false)]);
            check(op, &[pixels, weights], &[expected(true)]);
        }
    }
}
