//! Softmax over rows.

use ops::{Op, Softmax, SoftmaxBackward};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Rows and columns: rows of a warp, the longest of them, and rows of a block.
const SHAPES: [[usize; 2]; 6] = [[1, 1], [3, 7], [37, 40], [9, 1024], [5, 1025], [2, 3000]];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn softmax_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    for shape in SHAPES {
        for dtype in NUMBERS {
            let softmax = Op::Softmax(Softmax);
            devices.check(&softmax, &softmax, &[Data::random(dtype, &shape, 6.0, 1)]);
            let backward = Op::SoftmaxBackward(SoftmaxBackward);
            let [dy, y] = [2, 3].map(|seed| Data::random(dtype, &shape, 1.0, seed));
            devices.check(&backward, &backward, &[dy, y]);
        }
    }
}
