//! Dropout.

use ops::{DType, Dropout, DropoutMask, Op};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// B, rows per sample and columns: fewer than a group of random numbers, odd, whole vectors that end within a group,
/// and more than a block processes.
const SHAPES: [[usize; 3]; 5] = [[1, 1, 1], [3, 5, 33], [2, 3, 40], [2, 7, 256], [3, 67, 101]];

/// Seeds with varied bits that f32 represents exactly.
pub(crate) fn seeds(samples: usize) -> Data {
    let word = |i: i32| (i.wrapping_mul(0x5851_F42D).wrapping_add(0x1405_7B7E) & !0xFF) as f32;
    Data::new(DType::I32, &[samples, 2], (0..2 * samples as i32).map(word).collect())
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn dropout_matches_the_cpu_for_all_types() {
    let mut devices = Devices::new();
    for [batch, rows, columns] in SHAPES {
        let operand = |dtype, seed| Data::random(dtype, &[batch, rows, columns], 2.0, seed);
        for (rate, site) in [(0.1, 0), (0.75, 7)] {
            let dropped = DropoutMask::at_rate(rate, site).unwrap();
            let plain = Dropout { dropped, residual: false, stream: false, to: None };
            for (x, y) in NUMBERS.into_iter().flat_map(|x| NUMBERS.map(|y| (x, y))) {
                let mut inputs = vec![operand(x, 1), seeds(batch)];
                let op = Dropout { to: (x != y).then_some(y), ..plain };
                devices.check(&Op::Dropout(op), &Op::Dropout(plain), &inputs);
                inputs.push(operand(y, 2));
                let op = Op::Dropout(Dropout { residual: true, ..plain });
                devices.check(&op, &op, &inputs);
            }
        }
    }
}
