//! Elementwise operations and initialisation.

use ops::{
    Activate, Activation, ActivationBackward, Add, AddColumns, ColumnPlace, DType, Deviation, Fill,
    Frequencies, Gated, GatedBackward, Normal, Op, Rotary, Scale, Scaling, TakeColumns, TensorType,
};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// One element, less and more than a vector, and more than a block processes.
const SIZES: [usize; 5] = [1, 7, 40, 8192, 20_003];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn additions_and_activations_match_the_cpu() {
    let mut devices = Devices::new();
    for elements in SIZES {
        let operand = |dtype, scale, seed| Data::random(dtype, &[elements], scale, seed);
        for dtype in NUMBERS {
            let activated = Activation::ALL.into_iter().flat_map(|activation| {
                [
                    Op::ActivationBackward(ActivationBackward { activation }),
                    Op::Add(Add { activation: Some(activation), stream: false }),
                ]
            });
            for op in activated.chain([Op::Add(Add::PLAIN)]) {
                devices.check(&op, &op, &[operand(dtype, 1.0, 1), operand(dtype, 12.0, 2)]);
            }
            for activation in Activation::ALL {
                let op = Op::Activate(Activate { activation });
                devices.check(&op, &op, &[operand(dtype, 4.0, 1)]);
            }
            let scale = Op::Scale(Scale { factor: 1.5 });
            devices.check(&scale, &scale, &[operand(dtype, 1.0, 1)]);
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn ranges_of_columns_match_the_cpu() {
    let mut devices = Devices::new();
    // Rows, width, number of columns, and their place: with and without vectors.
    for ([rows, width, columns], place) in [
        ([1, 1, 1], ColumnPlace::Start),
        ([3, 40, 16], ColumnPlace::FromEnd(2)),
        ([5, 4101, 2100], ColumnPlace::FromEnd(1)),
        ([17, 96, 90], ColumnPlace::Start),
    ] {
        for dtype in NUMBERS {
            let [x, part] = [width, columns].map(|columns| Data::random(dtype, &[rows, columns], 1.0, 1));
            let take = Op::TakeColumns(TakeColumns { place, columns });
            devices.check(&take, &take, std::slice::from_ref(&x));
            let add = Op::AddColumns(AddColumns { place });
            devices.check(&add, &add, &[x, part]);
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn gates_match_the_cpu() {
    let mut devices = Devices::new();
    for [rows, width] in [[1, 1], [3, 40], [2, 1030], [67, 513], [17, 520]] {
        for (dtype, activation) in NUMBERS.into_iter().flat_map(|dtype| Activation::ALL.map(|a| (dtype, a))) {
            let both = Data::random(dtype, &[rows, 2 * width], 6.0, 1);
            let gated = Op::Gated(Gated { activation });
            devices.check(&gated, &gated, std::slice::from_ref(&both));
            let backward = Op::GatedBackward(GatedBackward { activation });
            let dy = Data::random(dtype, &[rows, width], 1.0, 2);
            devices.check(&backward, &backward, &[dy, both]);
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn rotary_matches_the_cpu() {
    let mut devices = Devices::new();
    let scaling = Some(Scaling { factor: 8.0, low: 1.0, high: 4.0, original: 64 });
    // B, T, rotated heads, D, rotated channels, and channels after the rotated heads.
    for [batch, sequence, rotated, head, channels, rest] in [
        [1, 1, 1, 2, 2, 0],
        [3, 37, 4, 20, 20, 41],
        [2, 300, 3, 256, 256, 64],
        [1, 3, 90, 48, 48, 16],
        [2, 9, 3, 21, 6, 42],
        [2, 9, 3, 80, 32, 160],
    ] {
        for (dtype, inverse) in NUMBERS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
            let scaling = scaling.filter(|_| inverse);
            let frequencies = Frequencies { base: 1e4, scaling, divisors: Vec::new() };
            let op = Op::Rotary(Rotary { rotated, head, channels, frequencies, inverse });
            let qkv = Data::random(dtype, &[batch, sequence, rotated * head + rest], 1.0, 1);
            devices.check(&op, &op, &[qkv]);
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn gelu_slope_is_exact_for_large_arguments() {
    let x = vec![-1e9, -100.0, -20.0, 0.0, 20.0, 100.0, 1e9];
    let inputs = [vec![1.0; 7], x].map(|numbers| Data::new(DType::F32, &[7], numbers));
    let slope = Op::ActivationBackward(ActivationBackward { activation: Activation::GeluTanh });
    let slopes = Devices::new().cuda(&slope, &inputs);
    assert_eq!(slopes[0].numbers, [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]);
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn constants_and_random_numbers_match_the_cpu() {
    let mut devices = Devices::new();
    for elements in [1, 2, 3, 4, 5, 1024, 10_007] {
        for dtype in NUMBERS {
            let full = TensorType::f32(&[elements]);
            let fill = |output| Op::Fill(Fill { output, value: 1.3 });
            let deviation = Deviation::Fixed(0.02);
            let normal =
                |output| Op::Normal(Normal { output, deviation, seed: 0x1234_5678_9ABC_DEF0, site: 7 });
            let output = TensorType { dtype, ..full };
            devices.check(&fill(output), &fill(full), &[]);
            devices.check(&normal(output), &normal(full), &[]);
        }
    }
}
