//! Operations on each element by itself, and where values come from.

use runner::ops::{Activation, Add, DType, Deviation, Fill, GeluBackward, Normal, Op, Scale, TensorType};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// One element, less and more than a vector, and more than a block takes.
const SIZES: [usize; 5] = [1, 7, 40, 8192, 20_003];

#[test]
fn add_and_gelu_backward() {
    let mut devices = Devices::new();
    for elements in SIZES {
        let operand = |dtype, scale, seed| Data::random(dtype, &[elements], scale, seed);
        for dtype in NUMBERS {
            let gelu = Some(Activation::GeluTanh);
            for op in [Op::GeluBackward(GeluBackward), Op::Add(Add::PLAIN), Op::Add(Add { activation: gelu })]
            {
                devices.check(&op, &op, &[operand(dtype, 1.0, 1), operand(dtype, 12.0, 2)]);
            }
            let scale = Op::Scale(Scale { factor: 1.5 });
            devices.check(&scale, &scale, &[operand(dtype, 1.0, 1)]);
        }
    }
}

#[test]
fn the_slope_of_gelu_far_out() {
    let x = vec![-1e9, -100.0, -20.0, 0.0, 20.0, 100.0, 1e9];
    let inputs = [vec![1.0; 7], x].map(|numbers| Data::new(DType::F32, &[7], numbers));
    let slopes = Devices::new().cuda(&Op::GeluBackward(GeluBackward), &inputs);
    assert_eq!(slopes[0].numbers, [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]);
}

#[test]
fn constants_and_random_numbers() {
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
