//! Maximum and average pooling.

use ops::{AvgPool, AvgPoolBackward, DType, MaxPool, MaxPoolBackward, Op, Window};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Images [B, H, W, C] and their windows: overlapping and with gaps, with padding, global.
const CASES: [([usize; 4], Window); 6] = [
    ([1, 1, 1, 1], window([1, 1], 1, 0)),
    ([2, 6, 8, 3], window([2, 2], 2, 0)),
    ([3, 7, 5, 40], window([3, 3], 2, 1)),
    ([2, 5, 4, 17], window([3, 2], 1, 1)),
    ([1, 9, 8, 5], window([2, 1], 3, 0)),
    ([3, 15, 17, 7], window([15, 17], 1, 0)),
];

const fn window(kernel: [usize; 2], stride: usize, padding: usize) -> Window {
    Window { kernel, stride, padding }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn pooling_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for (shape, window) in CASES {
        let size = [shape[1], shape[2]];
        for dtype in NUMBERS {
            // Quarters, so that equal maxima are frequent.
            let x = Data::random(dtype, &shape, 1.0, 1).map(|x| (x * 4.0).round() / 4.0);
            let partial = Data::random(dtype, &shape, 1.0, 3);
            let max = Op::MaxPool(MaxPool { window });
            let average = Op::AvgPool(AvgPool { window });
            let places = devices.check(&max, &max, std::slice::from_ref(&x)).swap_remove(1);
            let y = devices.check(&average, &average, &[x]).swap_remove(0);
            let dy = Data::random(dtype, y.ty.shape.dims(), 1.0, 2);
            for accumulate in [false, true] {
                let mut inputs = vec![dy.clone(), places.clone()];
                inputs.extend(accumulate.then(|| partial.clone()));
                let op = Op::MaxPoolBackward(MaxPoolBackward { window, size, accumulate });
                devices.check(&op, &op, &inputs);
                inputs.remove(1);
                let op = Op::AvgPoolBackward(AvgPoolBackward { window, size, accumulate });
                devices.check(&op, &op, &inputs);
            }
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn mean_of_sequences_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for [batch, positions, channels] in [[1, 1, 1], [3, 7, 5], [2, 64, 48]] {
        let (window, size) = (Window::column(positions), [positions, 1]);
        for dtype in NUMBERS {
            let x = Data::random(dtype, &[batch, positions, channels], 1.0, 1);
            let op = Op::AvgPool(AvgPool { window });
            devices.check(&op, &op, std::slice::from_ref(&x));
            for accumulate in [false, true] {
                let mut inputs = vec![Data::random(dtype, &[batch, channels], 1.0, 2)];
                inputs.extend(accumulate.then(|| x.clone()));
                let op = Op::AvgPoolBackward(AvgPoolBackward { window, size, accumulate });
                devices.check(&op, &op, &inputs);
            }
        }
    }
}

/// As in PyTorch: the maximum of minus infinities is the first cell within the image, and a later NaN replaces an
/// earlier one.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn max_pool_prefers_nan_and_the_first_of_equals() {
    const LOW: f32 = f32::NEG_INFINITY;
    let op = Op::MaxPool(MaxPool { window: window([2, 2], 2, 1) });
    let rows = [[LOW, LOW, 7.0, 7.0], [f32::NAN, 3.0, f32::NAN, 7.0], [f32::NAN, LOW, 7.0, LOW]];
    let x = Data::new(DType::F32, &[1, 3, 4, 1], rows.concat());
    let mut devices = Devices::new();
    let found = devices.cuda(&op, std::slice::from_ref(&x));
    let expected = devices.cpu(&op, &[x]);
    assert_eq!(found[1].numbers, expected[1].numbers);
    let numbers = found[0].numbers.iter().zip(&expected[0].numbers);
    assert!(
        numbers.clone().all(|(found, expected)| found == expected || found.is_nan() && expected.is_nan())
    );
    assert_eq!(numbers.filter(|(found, _)| found.is_nan()).count(), 2);
}
