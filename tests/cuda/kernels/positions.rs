//! Learned positions.

use ops::{AddPositions, DType, Op, PositionsGradient};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Samples [B, T, C]: one element, odd rows, whole vectors, more samples than a block of column sums.
const CASES: [[usize; 3]; 4] = [[1, 1, 1], [3, 5, 7], [4, 6, 64], [300, 3, 8]];

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn positions_and_their_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    let op = Op::AddPositions(AddPositions);
    for shape in CASES {
        for dtype in NUMBERS {
            let x = Data::random(dtype, &shape, 1.0, 1);
            let table = Data::random(dtype, &shape[1..], 1.0, 2);
            devices.check(&op, &op, &[x.clone(), table.clone()]);
            for gradients in NUMBERS {
                for accumulate in [false, true] {
                    let mut inputs = vec![x.clone()];
                    inputs.extend(accumulate.then(|| table.stored_as(gradients)));
                    let op = PositionsGradient { gradients, accumulate };
                    let reference = PositionsGradient { gradients: DType::F32, accumulate };
                    devices.check(&Op::PositionsGradient(op), &Op::PositionsGradient(reference), &inputs);
                }
            }
        }
    }
}
