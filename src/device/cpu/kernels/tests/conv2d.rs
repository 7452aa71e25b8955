//! Convolutions and transposition.

use ops::{
    Conv2d, Conv2dInputGradient, Conv2dWeightGradient, Convolution, DType, Op, Shape, TensorType, Transpose,
    Window,
};

use super::harness::{Data, FLOATS, added, cases, check_variants};

/// Samples, height, width, input channels, output channels, groups, kernel, stride, padding.
const SHAPES: [[usize; 9]; 8] = [
    [1, 1, 1, 1, 1, 1, 1, 1, 0],
    [2, 5, 4, 3, 7, 1, 3, 1, 1],
    [3, 7, 8, 2, 5, 1, 3, 2, 1],
    [2, 6, 6, 9, 4, 1, 1, 1, 0],
    [2, 6, 5, 9, 4, 1, 1, 2, 0],
    [1, 9, 11, 4, 6, 2, 5, 2, 2],
    [2, 4, 4, 6, 6, 6, 3, 1, 1],
    [1, 4, 4, 2, 3, 1, 2, 3, 4],
];

/// Slices of one patch, of a few patches, and of all.
const SLICES: [u64; 3] = [1, 700, 1 << 30];

/// A convolution in f64: its operands, and what its kernels compute.
struct Case {
    convolution: Convolution,
    size: [usize; 2],
    x: Data,
    weight: Data,
    dy: Data,
    y: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

impl Case {
    fn new(shape: [usize; 9], dtype: DType, slice_bytes: u64, bias: bool) -> Case {
        let [samples, height, width, channels, features, groups, kernel, stride, padding] = shape;
        let window = Window { kernel: [kernel; 2], stride, padding };
        let output = window.output([height, width]).expect("the window fits");
        let of_group = channels / groups;
        let x = Data::random(&[samples, height, width, channels], 1).stored_as(dtype);
        let weight = Data::random(&[features, of_group, kernel, kernel], 2).stored_as(dtype);
        let dy = Data::random(&[samples, output[0], output[1], features], 3).stored_as(dtype);
        let [x64, weight64, dy64] = [&x, &weight, &dy].map(Data::to_f64);
        let (mut y, mut dx) = (vec![0.0; dy64.len()], vec![0.0; x64.len()]);
        let (mut dweight, mut dbias) = (vec![0.0; weight64.len()], vec![0.0; features]);
        for (index, &dy) in dy64.iter().enumerate() {
            let (feature, row) = (index % features, index / features);
            let place = [row / output[1] % output[0], row % output[1]];
            let sample = row / output[1] / output[0];
            dbias[feature] += dy;
            for cell in 0..kernel * kernel {
                let at = [cell / kernel, cell % kernel];
                let pixel = [0, 1].map(|axis| (place[axis] * stride + at[axis]).wrapping_sub(padding));
                if pixel[0] >= height || pixel[1] >= width {
                    continue;
                }
                for channel in 0..of_group {
                    let input = feature / (features / groups) * of_group + channel;
                    let of_x = ((sample * height + pixel[0]) * width + pixel[1]) * channels + input;
                    let of_weight = (feature * of_group + channel) * kernel * kernel + cell;
                    y[index] += x64[of_x] * weight64[of_weight];
                    dx[of_x] += dy * weight64[of_weight];
                    dweight[of_weight] += dy * x64[of_x];
                }
            }
        }
        let convolution = Convolution { window, groups, bias, slice_bytes, tf32: false };
        Case { convolution, size: [height, width], x, weight, dy, y, dx, dweight, dbias }
    }
}

#[test]
fn convolution_matches_the_reference() {
    for ([shape, dtype, slices, bias], variants) in cases(3, [SHAPES.len(), FLOATS.len(), SLICES.len(), 2]) {
        let (dtype, bias) = (FLOATS[dtype], bias > 0);
        let mut case = Case::new(SHAPES[shape], dtype, SLICES[slices], bias);
        let features = case.dbias.len();
        let mut inputs = vec![case.x, case.weight];
        if bias {
            inputs.push(Data::random(&[features], 4).stored_as(dtype));
            let bias = inputs[2].to_f64();
            case.y.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % features]);
        }
        check_variants(variants, Op::Conv2d(Conv2d(case.convolution)), &inputs, &[case.y]);
    }
}

#[test]
fn input_gradient_matches_the_reference() {
    for ([shape, dtype, slices, accumulate], variants) in
        cases(3, [SHAPES.len(), FLOATS.len(), SLICES.len(), 2])
    {
        let (dtype, accumulate) = (FLOATS[dtype], accumulate > 0);
        // Each slice rounds the sums in 16 bits.
        let slice_bytes = if dtype == DType::F32 { SLICES[slices] } else { u64::MAX };
        let case = Case::new(SHAPES[shape], dtype, slice_bytes, false);
        let (mut dx, mut inputs) = (case.dx, vec![case.dy, case.weight]);
        if accumulate {
            let previous = Data::random(case.x.ty().shape.dims(), 5).stored_as(dtype);
            dx = added(&dx, &previous.to_f64());
            inputs.push(previous);
        }
        let op = Conv2dInputGradient { convolution: case.convolution, size: case.size, accumulate };
        check_variants(variants, Op::Conv2dInputGradient(op), &inputs, &[dx]);
    }
}

#[test]
fn weight_gradient_matches_the_reference() {
    for ([shape, dtype, slices, bias, accumulate, narrow], variants) in
        cases(3, [SHAPES.len(), FLOATS.len(), SLICES.len(), 2, 2, 2])
    {
        let (dtype, bias, accumulate) = (FLOATS[dtype], bias > 0, accumulate > 0);
        let gradients = if narrow > 0 { dtype } else { DType::F32 };
        let case = Case::new(SHAPES[shape], dtype, SLICES[slices], bias);
        let previous = [Data::random(case.weight.ty().shape.dims(), 5), Data::random(&[case.dbias.len()], 6)];
        let mut expected = vec![case.dweight, case.dbias];
        expected.truncate(1 + usize::from(bias));
        let mut inputs = vec![case.x, case.dy];
        for (expected, previous) in expected.iter_mut().zip(previous).filter(|_| accumulate) {
            let previous = previous.stored_as(gradients);
            *expected = added(expected, &previous.to_f64());
            inputs.push(previous);
        }
        let op = Conv2dWeightGradient { convolution: case.convolution, gradients, accumulate };
        check_variants(variants, Op::Conv2dWeightGradient(op), &inputs, &expected);
    }
}

#[test]
fn samples_are_transposed() {
    // Rows and columns: single ones, and more than a block.
    let sizes = [[1, 1], [1, 5], [5, 1], [3, 4], [70, 33], [33, 64]];
    for ([sizes_of, dtype, accumulate], variants) in cases(4, [sizes.len(), FLOATS.len(), 2]) {
        let ([rows, columns], dtype) = (sizes[sizes_of], FLOATS[dtype]);
        let x = Data::random(&[3, rows, columns], 1).stored_as(dtype);
        let of_x = x.to_f64();
        let mut y: Vec<f64> = (0..of_x.len())
            .map(|index| {
                let (sample, within) = (index / (rows * columns), index % (rows * columns));
                of_x[sample * rows * columns + within % rows * columns + within / rows]
            })
            .collect();
        let mut inputs = vec![x];
        let sample = Shape::new(&[columns, rows]);
        if accumulate > 0 {
            let ty = TensorType::f32(&[3, columns, rows]);
            inputs.push(Data::random(ty.shape.dims(), 2).stored_as(dtype));
            y = added(&y, &inputs[1].to_f64());
        }
        let op = Transpose { rows, sample, accumulate: accumulate > 0 };
        check_variants(variants, Op::Transpose(op), &inputs, &[y]);
    }
}
