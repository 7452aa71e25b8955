//! Losses of single elements.

use ops::{DType, ElementwiseLoss, LossFunction, LossTerms, Op, RowSlice};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn losses_of_elements_match_the_cpu() {
    let mut devices = Devices::new();
    // Samples, rows of each, and columns: fewer and more than a block has threads.
    for [samples, rows, columns] in [[1, 1, 1], [3, 23, 5], [2, 50, 40], [3, 1, 1500]] {
        let all_rows = samples * rows;
        let targets = Data::random(DType::F32, &[all_rows, columns], 1.0, 2);
        let weights = Data::random(DType::F32, &[samples], 1.0, 3).map(|x| (1.5 + x).floor());
        for (dtype, flags) in NUMBERS.into_iter().flat_map(|dtype| (0..32).map(move |flags| (dtype, flags))) {
            let [gradient, accumulate, scaled, weighted, sliced] =
                [1, 2, 4, 8, 16].map(|flag| flags & flag > 0);
            let slice = RowSlice { index: 0, of: if sliced { all_rows.min(3) } else { 1 } };
            let x = Data::random(dtype, &[slice.range(all_rows).len(), columns], 6.0, 1);
            let mut others = Vec::new();
            others.extend(weighted.then(|| weights.clone()));
            others.extend(scaled.then(|| Data::scalar(1024.0)));
            others.extend(accumulate.then(|| Data::scalar(1.5)));
            let terms = LossTerms {
                weight: 0.25,
                rows: slice,
                weighted,
                gradient,
                accumulate,
                scaled,
                ..LossTerms::PLAIN
            };
            for function in LossFunction::ALL {
                let function = function.with_rows(rows);
                let op = Op::ElementwiseLoss(ElementwiseLoss::of(function, terms));
                let targets = (!function.is_sum()).then(|| targets.clone());
                let inputs: Vec<Data> =
                    [x.clone()].into_iter().chain(targets).chain(others.iter().cloned()).collect();
                devices.check(&op, &op, &inputs);
            }
        }
    }
}
