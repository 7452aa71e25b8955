//! Elements left out by chance.

use crate::cpu::kernels::simd::Level;
use ops::{Dropout, Dropped, Op};

use super::harness::{Data, How, added, assert_slope, cases, check_in, inner_product, launch, pairs};
use super::reference;

/// Rows shorter and longer than the numbers that are made at a time, and no multiple of them.
const SHAPES: [[usize; 3]; 4] = [[1, 1, 1], [3, 5, 33], [2, 4, 64], [2, 3, 1100]];

fn dropped() -> Dropped {
    Dropped::at_rate(0.3, 4).unwrap()
}

#[test]
fn what_is_dropped_matches_the_reference() {
    let pairs: Vec<_> = pairs().collect();
    for ([shape, pair], ways) in cases(3, [SHAPES.len(), pairs.len()]) {
        let (dims, (from, to)) = (SHAPES[shape], pairs[pair]);
        let [samples, rows, channels] = dims;
        let inputs = [Data::random(&dims, 1).stored_as(from), Data::seeds(samples)];
        let left = reference::dropout(dropped(), &inputs[0].to_f64(), rows, channels);
        let op = Dropout { dropped: dropped(), residual: false, to: (from != to).then_some(to) };
        check_in(ways, Op::Dropout(op), &inputs, std::slice::from_ref(&left));
        let residual = Data::random(&dims, 2).stored_as(to);
        let expected = added(&left, &residual.to_f64());
        let inputs = [inputs.to_vec(), vec![residual]].concat();
        check_in(ways, Op::Dropout(Dropout { residual: true, to: None, ..op }), &inputs, &[expected]);
    }
}

/// The gradient of what is kept grows as that does, and there is none of what is not.
#[test]
fn the_reference_is_its_own_slope() {
    let x = Data::random(&[2, 3, 40], 1).to_f64();
    let dy = Data::random(&[2, 3, 40], 2).to_f64();
    let of = |x: &[f64]| reference::dropout(dropped(), x, 3, 40);
    assert_slope(&of(&dy), &x, |x| inner_product(&of(x), &dy));
}

#[test]
fn as_many_are_dropped_as_should_be() {
    let (samples, rows, channels) = (4, 50, 100);
    let ones = Data::random(&[samples, rows, channels], 1).map(|_| 1.0);
    let run = |dropped: Dropped| {
        let op = Op::Dropout(Dropout { dropped, residual: false, to: None });
        let how = How { threads: 2, level: Level::best(), share: false };
        launch(&op, &[ones.clone(), Data::seeds(samples)], how).swap_remove(0)
    };
    let count = samples * rows * channels;
    for rate in [0.1, 0.5, 0.9] {
        let dropped = Dropped::at_rate(rate, 0).unwrap();
        let made = run(dropped);
        assert!(made.iter().all(|&value| value == 0.0 || value == dropped.factor()));
        let zeros = made.iter().filter(|&&value| value == 0.0).count() as f64;
        // Six standard deviations of a binomial.
        let most = 6.0 * (count as f64 * rate * (1.0 - rate)).sqrt();
        assert!((zeros - rate * count as f64).abs() < most, "{zeros} of {count} at {rate}");
    }
    // Of two sites, half of the elements are dropped by one and not by the other where each drops half.
    let [a, b] = [0, 1].map(|site| run(Dropped::at_rate(0.5, site).unwrap()));
    let other = a.iter().zip(&b).filter(|(a, b)| a != b).count() as f64;
    assert!((other - count as f64 / 2.0).abs() < 3.0 * (count as f64).sqrt(), "{other} of {count}");
}
