//! Maximum and average pooling.

use ops::{AvgPool, AvgPoolBackward, DType, MaxPool, MaxPoolBackward, Op, TensorType, Window};

use super::harness::{Data, FLOATS, LaunchOptions, added, cases, check, check_variants, launch};
use crate::cpu::kernels::simd::Level;

/// Images [B, H, W, C] and their windows: overlapping and with gaps, with padding, global; more channels than a buffer.
const CASES: [([usize; 4], Window); 7] = [
    ([1, 1, 1, 1], window([1, 1], 1, 0)),
    ([2, 6, 8, 3], window([2, 2], 2, 0)),
    ([3, 7, 5, 40], window([3, 3], 2, 1)),
    ([2, 5, 4, 17], window([3, 2], 1, 1)),
    ([1, 9, 8, 5], window([2, 1], 3, 0)),
    ([2, 4, 6, 530], window([4, 6], 1, 0)),
    ([3, 15, 17, 7], window([15, 17], 1, 0)),
];

const fn window(kernel: [usize; 2], stride: usize, padding: usize) -> Window {
    Window { kernel, stride, padding }
}

/// Calls `visit(output element, cell, input element)` for each cell of a window that lies within the image; returns the
/// output's shape.
fn for_each_cell(
    [batch, height, width, channels]: [usize; 4],
    window: &Window,
    mut visit: impl FnMut(usize, usize, usize),
) -> [usize; 4] {
    let Window { kernel, stride, padding } = *window;
    let [rows, columns] = window.output([height, width]).expect("the window fits");
    for element in 0..batch * rows * columns * channels {
        let (channel, place) = (element % channels, element / channels);
        let (image, row, column) = (place / (rows * columns), place / columns % rows, place % columns);
        for cell in 0..kernel[0] * kernel[1] {
            let down = (row * stride + cell / kernel[1]).checked_sub(padding).filter(|&down| down < height);
            let across =
                (column * stride + cell % kernel[1]).checked_sub(padding).filter(|&across| across < width);
            if let (Some(down), Some(across)) = (down, across) {
                visit(element, cell, ((image * height + down) * width + across) * channels + channel);
            }
        }
    }
    [batch, rows, columns, channels]
}

#[test]
fn max_pool_matches_the_reference() {
    for ([case, dtype, accumulate], variants) in cases(3, [CASES.len(), FLOATS.len(), 2]) {
        let ((shape, window), dtype) = (CASES[case], FLOATS[dtype]);
        // Quarters, so that equal maxima are frequent.
        let x = Data::random(&shape, 1).map(|x| (x * 4.0).round() / 4.0).stored_as(dtype);
        let [mut y, mut places, mut from] = [const { Vec::new() }; 3];
        let values = x.to_f64();
        let pooled = for_each_cell(shape, &window, |output, cell, input| {
            if output == y.len() {
                y.push(values[input]);
                places.push(cell as f64);
                from.push(input as f64);
            } else if values[input] > y[output] {
                (y[output], places[output], from[output]) = (values[input], cell as f64, input as f64);
            }
        });
        check_variants(variants, Op::MaxPool(MaxPool { window }), &[x], &[y, places.clone()]);

        let dy = Data::random(&pooled, 2).stored_as(dtype);
        let mut dx = vec![0.0; shape.iter().product()];
        for (dy, &from) in dy.to_f64().iter().zip(&from) {
            dx[from as usize] += dy;
        }
        let codes = places.iter().map(|&place| place as u8).collect();
        let mut inputs = vec![dy, Data::Codes(TensorType::new(DType::U8, &pooled), codes)];
        let accumulate = accumulate > 0;
        if accumulate {
            let partial = Data::random(&shape, 3).stored_as(dtype);
            dx = added(&dx, &partial.to_f64());
            inputs.push(partial);
        }
        let op = MaxPoolBackward { window, size: [shape[1], shape[2]], accumulate };
        check_variants(variants, Op::MaxPoolBackward(op), &inputs, &[dx]);
    }
}

/// As in PyTorch: the maximum of minus infinities is the first cell within the image, and a later NaN replaces an
/// earlier one.
#[test]
fn max_pool_prefers_nan_and_the_first_of_equals() {
    const LOW: f32 = f32::NEG_INFINITY;
    let op = Op::MaxPool(MaxPool { window: window([2, 2], 2, 1) });
    let rows = [[LOW, LOW, 7.0, 7.0], [f32::NAN, 3.0, f32::NAN, 7.0], [f32::NAN, LOW, 7.0, LOW]];
    let x = Data::F32(TensorType::f32(&[1, 3, 4, 1]), rows.concat());
    for level in Level::available() {
        let options = LaunchOptions { threads: 1, level, alias: false };
        let [y, places] = launch(&op, std::slice::from_ref(&x), options).try_into().expect("two outputs");
        // Windows at rows -1 and 1, columns -1, 1 and 3.
        assert_eq!(places, [3.0, 3.0, 2.0, 3.0, 1.0, 0.0]);
        assert!(y[3].is_nan() && y[4].is_nan(), "{y:?}");
        assert_eq!([y[0], y[1], y[2], y[5]], [LOW, 7.0, 7.0, 7.0]);
    }
}

#[test]
fn average_pool_matches_the_reference() {
    for ([case, dtype, accumulate], variants) in cases(3, [CASES.len(), FLOATS.len(), 2]) {
        let ((shape, window), dtype) = (CASES[case], FLOATS[dtype]);
        let cells = window.cells() as f64;
        let x = Data::random(&shape, 1).map(|x| x + 0.3).stored_as(dtype);
        let values = x.to_f64();
        let mut y = Vec::new();
        let pooled = for_each_cell(shape, &window, |output, _, input| {
            y.resize(output + 1, 0.0);
            y[output] += values[input] / cells;
        });
        check_variants(variants, Op::AvgPool(AvgPool { window }), &[x], &[y]);

        let dy = Data::random(&pooled, 2).stored_as(dtype);
        let slopes = dy.to_f64();
        let mut dx = vec![0.0; shape.iter().product()];
        for_each_cell(shape, &window, |output, _, input| dx[input] += slopes[output] / cells);
        let mut inputs = vec![dy];
        let accumulate = accumulate > 0;
        if accumulate {
            let partial = Data::random(&shape, 3).stored_as(dtype);
            dx = added(&dx, &partial.to_f64());
            inputs.push(partial);
        }
        let op = AvgPoolBackward { window, size: [shape[1], shape[2]], accumulate };
        check_variants(variants, Op::AvgPoolBackward(op), &inputs, &[dx]);
    }
}

/// A sequence as an image of one column has the same bits.
#[test]
fn mean_of_a_sequence_is_that_of_an_image_of_one_column() {
    let (window, size) = (Window::column(9), [9, 1]);
    let shapes = [[2, 9, 35].as_slice(), &[2, 9, 1, 35]];
    let pooled = [[2, 35].as_slice(), &[2, 1, 1, 35]];
    let options = LaunchOptions { threads: 2, level: Level::Portable, alias: false };
    for dtype in FLOATS {
        let run = |op: Op, dims: &[usize]| launch(&op, &[Data::random(dims, 1).stored_as(dtype)], options);
        let means = shapes.map(|dims| run(Op::AvgPool(AvgPool { window }), dims));
        assert_eq!(means[0], means[1]);
        let op = AvgPoolBackward { window, size, accumulate: false };
        let gradients = pooled.map(|dims| run(Op::AvgPoolBackward(op), dims));
        assert_eq!(gradients[0], gradients[1]);
    }
}

/// Padding may be wider than half the kernel: a window may then contain padding only.
#[test]
fn average_of_padding_is_zero() {
    let window = window([2, 2], 1, 2);
    let x = Data::random(&[1, 1, 1, 2], 1);
    let values = x.to_f64();
    let mut y = vec![0.0; 16 * 2];
    for_each_cell([1, 1, 1, 2], &window, |output, _, input| y[output] += values[input] / 4.0);
    check(Op::AvgPool(AvgPool { window }), &[x], &[y]);
}
