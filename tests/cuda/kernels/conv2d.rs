//! Convolutions and the transposition of samples.

use ops::{
    Conv2d, Conv2dInputGradient, Conv2dWeightGradient, Convolution, DType, Op, Shape, Transpose, Window,
};

use super::harness::{Devices, half_unit};
use super::linear::Rounding;
use super::numbers::{Data, NUMBERS};

/// Samples, height, width, input channels, output channels, groups, kernel, stride, padding.
const SHAPES: [[usize; 9]; 6] = [
    [2, 5, 4, 3, 7, 1, 3, 1, 1],
    [3, 7, 8, 2, 5, 1, 3, 2, 1],
    [2, 6, 6, 16, 8, 1, 1, 1, 0],
    [2, 6, 5, 9, 4, 1, 1, 2, 0],
    [1, 9, 11, 4, 6, 2, 5, 2, 2],
    [2, 4, 4, 40, 40, 40, 3, 1, 1],
];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn convolutions_and_their_gradients_match_the_cpu() {
    let mut devices = Devices::new();
    for [samples, height, width, channels, features, groups, kernel, stride, padding] in SHAPES {
        let window = Window { kernel: [kernel; 2], stride, padding };
        let output = window.output([height, width]).expect("the window fits");
        for dtype in NUMBERS {
            let data = |dims: &[usize], seed| Data::random(dtype, dims, 1.0, seed);
            let x = data(&[samples, height, width, channels], 1);
            let weight = data(&[features, channels / groups, kernel, kernel], 2);
            let dy = data(&[samples, output[0], output[1], features], 3);
            for (bias, accumulate, slice_bytes) in
                [(false, true, 900), (true, false, 900), (true, true, 1 << 30)]
            {
                let convolution = Convolution { window, groups, bias, slice_bytes, tf32: false };
                let mut inputs = vec![x.clone(), weight.clone()];
                inputs.extend(bias.then(|| data(&[features], 4)));
                let op = Op::Conv2d(Conv2d(convolution));
                match half_unit(dtype).filter(|_| bias) {
                    None => drop(devices.check(&op, &op, &inputs)),
                    Some(unit) => {
                        let inner = weight.numbers.len() / features;
                        let rounding = Rounding { unit, bias: Some(inputs[2].numbers.clone()), inner };
                        devices
                            .check_outputs(&op, &op, &inputs, |_, _, y, x| rounding.wrong_sum(y, &x.numbers));
                    }
                }

                // Each slice rounds the sums in 16 bits.
                let slice_bytes = if dtype == DType::F32 { slice_bytes } else { u64::MAX };
                let whole = Convolution { slice_bytes, ..convolution };
                let op = Conv2dInputGradient { convolution: whole, size: [height, width], accumulate };
                let mut inputs = vec![dy.clone(), weight.clone()];
                inputs.extend(accumulate.then(|| data(&[samples, height, width, channels], 5)));
                let op = Op::Conv2dInputGradient(op);
                devices.check(&op, &op, &inputs);

                for gradients in [DType::F32, dtype] {
                    let previous = |dims: &[usize], seed| Data::random(gradients, dims, 1.0, seed);
                    let mut inputs = vec![x.clone(), dy.clone()];
                    if accumulate {
                        inputs.push(previous(&[features, channels / groups, kernel, kernel], 6));
                        inputs.extend(bias.then(|| previous(&[features], 7)));
                    }
                    let op = |gradients| {
                        Op::Conv2dWeightGradient(Conv2dWeightGradient { convolution, gradients, accumulate })
                    };
                    devices.check(&op(gradients), &op(DType::F32), &inputs);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn transposed_samples_match_the_cpu() {
    let mut devices = Devices::new();
    for [samples, rows, columns] in [[1, 1, 5], [3, 7, 1], [2, 33, 70], [3, 64, 32]] {
        for (dtype, accumulate) in NUMBERS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
            let mut inputs = vec![Data::random(dtype, &[samples, rows, columns], 1.0, 1)];
            inputs.extend(accumulate.then(|| Data::random(dtype, &[samples, columns, rows], 1.0, 2)));
            let op = Op::Transpose(Transpose { rows, sample: Shape::new(&[columns, rows]), accumulate });
            devices.check(&op, &op, &inputs);
        }
    }
}
