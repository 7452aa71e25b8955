//! Dropout.

use crate::cpu::kernels::simd::Level;
use ops::{Dropout, DropoutMask, Op};

use super::harness::{
    Data, LaunchOptions, added, assert_gradient, cases, check_variants, float_pairs, inner_product, launch,
};
use super::reference;

/// Rows shorter and longer than a vector of random numbers, and not multiples of one.
const SHAPES: [[usize; 3]; 4] = [[1, 1, 1], [3, 5, 33], [2, 4, 64], [2, 3, 1100]];

fn dropped() -> DropoutMask {
    DropoutMask::at_rate(0.3, 4).unwrap()
}

#[test]
fn dropout_matches_the_reference() {
    let pairs: Vec<_> = float_pairs().collect();
    for ([shape, pair], variants) in cases(3, [SHAPES.len(), pairs.len()]) {
        let (dims, (from, to)) = (SHAPES[shape], pairs[pair]);
        let [samples, rows, channels] = dims;
        let inputs = [Data::random(&dims, 1).stored_as(from), Data::seeds(samples)];
        let y = reference::dropout(dropped(), &inputs[0].to_f64(), rows, channels);
        let op =
            Dropout { dropped: dropped(), residual: false, stream: false, to: (from != to).then_some(to) };
        check_variants(variants, Op::Dropout(op), &inputs, std::slice::from_ref(&y));
        let residual = Data::random(&dims, 2).stored_as(to);
        let expected = added(&y, &residual.to_f64());
        let inputs = [inputs.to_vec(), vec![residual]].concat();
        check_variants(
            variants,
            Op::Dropout(Dropout { residual: true, to: None, ..op }),
            &inputs,
            &[expected],
        );
    }
}

/// Dropout is linear: its gradient is the same dropout, applied to dy.
#[test]
fn dropout_gradient_is_the_same_dropout() {
    let x = Data::random(&[2, 3, 40], 1).to_f64();
    let dy = Data::random(&[2, 3, 40], 2).to_f64();
    let drop_elements = |x: &[f64]| reference::dropout(dropped(), x, 3, 40);
    assert_gradient(&drop_elements(&dy), &x, |x| inner_product(&drop_elements(x), &dy));
}

#[test]
fn fraction_of_dropped_elements_matches_the_rate() {
    let (samples, rows, channels) = (4, 50, 100);
    let ones = Data::random(&[samples, rows, channels], 1).map(|_| 1.0);
    let run = |dropped: DropoutMask| {
        let op = Op::Dropout(Dropout { dropped, residual: false, stream: true, to: None });
        let options = LaunchOptions { threads: 2, level: Level::best(), alias: false };
        launch(&op, &[ones.clone(), Data::seeds(samples)], options).swap_remove(0)
    };
    let count = samples * rows * channels;
    for rate in [0.1, 0.5, 0.9] {
        let dropped = DropoutMask::at_rate(rate, 0).unwrap();
        let output = run(dropped);
        assert!(output.iter().all(|&value| value == 0.0 || value == dropped.factor()));
        let zeros = output.iter().filter(|&&value| value == 0.0).count() as f64;
        // Six standard deviations of a binomial distribution.
        let most = 6.0 * (count as f64 * rate * (1.0 - rate)).sqrt();
        assert!((zeros - rate * count as f64).abs() < most, "{zeros} of {count} at {rate}");
    }
    // Two independent sites that each drop half of the elements differ in half of them.
    let [a, b] = [0, 1].map(|site| run(DropoutMask::at_rate(0.5, site).unwrap()));
    let other = a.iter().zip(&b).filter(|(a, b)| a != b).count() as f64;
    assert!((other - count as f64 / 2.0).abs() < 3.0 * (count as f64).sqrt(), "{other} of {count}");
}
