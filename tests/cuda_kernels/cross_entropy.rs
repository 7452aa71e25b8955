//! Softmax and cross-entropy.

use runner::ops::{CrossEntropy, DType, Op};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

#[test]
fn cross_entropy_and_its_gradient() {
    let mut devices = Devices::new();
    // Rows that begin at any alignment, and rows that keep a block busy.
    for [rows, vocabulary] in [[1, 1], [1, 2], [23, 7], [50, 40], [33, 257], [3, 8195], [1, 50_304]] {
        let targets = Data::tokens(&[rows], |i| (i * i * 7 + i * 3) % vocabulary);
        for (dtype, flags) in NUMBERS.into_iter().flat_map(|dtype| (0..8).map(move |flags| (dtype, flags))) {
            let (gradient, accumulate, scaled) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
            let logits = Data::random(dtype, &[rows, vocabulary], 20.0, 1).map(|x| x + 5.0);
            let mut inputs = vec![logits, targets.clone()];
            inputs.extend(scaled.then(|| Data::scalar(1024.0)));
            inputs.extend(accumulate.then(|| Data::scalar(1.5)));
            let op = Op::CrossEntropy(CrossEntropy {
                weight: 0.25,
                gradient,
                accumulate,
                scaled,
                ..CrossEntropy::PLAIN
            });
            devices.check(&op, &op, &inputs);
        }
    }
}

/// A step whose logits are too large for half precision must be seen to be bad.
#[test]
fn infinite_logits_show() {
    let mut devices = Devices::new();
    let op = CrossEntropy { gradient: true, ..CrossEntropy::PLAIN };
    for dtype in NUMBERS {
        for bad in [f32::INFINITY, f32::NAN] {
            let mut logits = Data::random(dtype, &[2, 1000], 1.0, 1);
            logits.numbers[1500] = bad;
            let inputs = [logits, Data::tokens(&[2], |i| i)];
            let [loss, dlogits] = devices.cuda(&Op::CrossEntropy(op), &inputs).try_into().unwrap();
            assert!(loss.numbers[0].is_nan(), "{dtype}: the loss is {}", loss.numbers[0]);
            assert!(dlogits.numbers[1500].is_nan());
            assert!(dlogits.numbers[..1000].iter().all(|number| number.is_finite()));
        }
    }
}

/// Masked classes have no probability, and no gradient.
#[test]
fn logits_of_minus_infinity_are_passed_over() {
    let mut devices = Devices::new();
    let op = Op::CrossEntropy(CrossEntropy { gradient: true, ..CrossEntropy::PLAIN });
    let mut logits = Data::random(DType::F32, &[1, 9000], 1.0, 1);
    logits.numbers[..8000].fill(f32::NEG_INFINITY);
    let outputs = devices.cuda(&op, &[logits.clone(), Data::tokens(&[1], |_| 8500)]);
    let rest = Data::new(DType::F32, &[1, 1000], logits.numbers[8000..].to_vec());
    let alone = devices.cuda(&op, &[rest, Data::tokens(&[1], |_| 500)]);
    assert!(outputs[1].numbers[..8000].iter().all(|&number| number == 0.0));
    assert!((outputs[0].numbers[0] - alone[0].numbers[0]).abs() < 1e-5);
}
