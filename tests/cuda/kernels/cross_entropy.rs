//! Softmax and cross-entropy.

use ops::{CrossEntropy, DType, LossTerms, Op, RowSlice};

use super::harness::{Devices, Exactness, difference};
use super::numbers::{Data, NUMBERS};

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn cross_entropy_and_its_gradient_match_the_cpu() {
    let mut devices = Devices::new();
    // Rows of any alignment, and long rows that occupy a whole block.
    for [rows, vocabulary] in [[1, 1], [1, 2], [23, 7], [50, 40], [33, 257], [3, 8195], [1, 50_304]] {
        let targets = Data::tokens(&[rows], |i| (i * i * 7 + i * 3) % vocabulary);
        // All rows of one sample, or one sample per row; some targets are masked.
        let samples = if rows % 2 == 0 { 1 } else { rows };
        let weights = Data::random(DType::F32, &[samples], 1.0, 2).map(|x| 1.5 + x);
        let mut masked = targets.clone();
        masked.numbers.iter_mut().skip(1).step_by(3).for_each(|target| *target = -1.0);
        for (dtype, flags) in NUMBERS.into_iter().flat_map(|dtype| (0..48).map(move |flags| (dtype, flags))) {
            let [gradient, accumulate, scaled, weighted] = [1, 2, 4, 8].map(|flag| flags & flag > 0);
            // Plain, soft-capped, or with smoothed labels.
            let (cap, smoothing) = [(None, 0.0), (Some(10.0), 0.0), (None, 0.3)][flags / 16];
            let accuracy = !gradient && cap.is_none();
            let logits = Data::random(dtype, &[rows, vocabulary], 20.0, 1).map(|x| x + 5.0);
            let mut inputs = vec![logits, if weighted { masked.clone() } else { targets.clone() }];
            inputs.extend(weighted.then(|| weights.clone()));
            inputs.extend(scaled.then(|| Data::scalar(1024.0)));
            let so_far = if accuracy { vec![1.5, 0.5] } else { vec![1.5] };
            inputs.extend(accumulate.then(|| Data::new(DType::F32, &[so_far.len()], so_far)));
            let terms =
                LossTerms { weight: 0.25, weighted, gradient, accumulate, scaled, ..LossTerms::PLAIN };
            let op = Op::CrossEntropy(CrossEntropy { terms, cap, smoothing, accuracy });
            devices.check(&op, &op, &inputs);
        }
    }
}

/// Slices of the rows, the last one smaller: each matches the CPU, and together they match the whole. Gradients are
/// identical bit for bit if rows are whole vectors; otherwise the summation order depends on the alignment.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn slices_add_up_to_the_whole() {
    let mut devices = Devices::new();
    for ([rows, vocabulary], of) in [([23, 7], 4), ([50, 40], 7), ([33, 257], 2), ([5, 8200], 3)] {
        let mut targets = Data::tokens(&[rows], |i| (i * i * 7 + i * 3) % vocabulary);
        targets.numbers.iter_mut().step_by(4).for_each(|target| *target = -1.0);
        let weights = Data::random(DType::F32, &[rows], 1.0, 2).map(|x| 1.5 + x);
        for (dtype, flags) in NUMBERS.into_iter().flat_map(|dtype| (0..4).map(move |flags| (dtype, flags))) {
            let (gradient, scaled) = (flags & 1 > 0, flags & 2 > 0);
            let logits = Data::random(dtype, &[rows, vocabulary], 20.0, 1).map(|x| x + 5.0);
            let whole = LossTerms { weight: 0.25, weighted: true, gradient, scaled, ..LossTerms::PLAIN };
            let loss = |terms: LossTerms| Op::CrossEntropy(CrossEntropy::of(terms));
            let operands = |slice: RowSlice, so_far: Option<Data>| {
                let part = slice.range(rows);
                let numbers = logits.numbers[part.start * vocabulary..part.end * vocabulary].to_vec();
                let mut inputs = vec![
                    Data::new(dtype, &[part.len(), vocabulary], numbers),
                    targets.clone(),
                    weights.clone(),
                ];
                inputs.extend(scaled.then(|| Data::scalar(1024.0)));
                inputs.extend(so_far);
                inputs
            };
            let mut so_far: Option<Data> = None;
            let mut rows_of_gradient = Vec::new();
            for slice in RowSlice::all(of) {
                let inputs = operands(slice, so_far.clone());
                let op = loss(LossTerms { rows: slice, accumulate: so_far.is_some(), ..whole });
                devices.check(&op, &op, &inputs);
                let mut outputs = devices.cuda(&op, &inputs).into_iter();
                so_far = outputs.next();
                rows_of_gradient.extend(outputs.flat_map(|dlogits| dlogits.bits()));
            }
            let outputs = devices.cuda(&loss(whole), &operands(RowSlice::WHOLE, None));
            let sum = so_far.expect("there are slices");
            let wrong = difference(&sum, &outputs[0].numbers, Exactness::default());
            assert_eq!(wrong, None, "the loss of {rows} rows of {dtype} in {of} slices");
            let gradient: Vec<u32> = outputs[1..].iter().flat_map(Data::bits).collect();
            let whole_vectors = (vocabulary as u64 * dtype.bytes()).is_multiple_of(16);
            assert!(!whole_vectors || rows_of_gradient == gradient, "{dtype} in {of} slices: different bits");
        }
    }
}

/// Logits that overflow half precision must give a NaN loss, so that the step is detected.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn non_finite_logits_give_a_nan_loss() {
    let mut devices = Devices::new();
    let terms = LossTerms { gradient: true, ..LossTerms::PLAIN };
    let op = Op::CrossEntropy(CrossEntropy::of(terms));
    for dtype in NUMBERS {
        for bad in [f32::INFINITY, f32::NAN] {
            let mut logits = Data::random(dtype, &[2, 1000], 1.0, 1);
            logits.numbers[1500] = bad;
            let inputs = [logits, Data::tokens(&[2], |i| i)];
            let [loss, dlogits] = devices.cuda(&op, &inputs).try_into().unwrap();
            assert!(loss.numbers[0].is_nan(), "{dtype}: the loss is {}", loss.numbers[0]);
            assert!(dlogits.numbers[1500].is_nan());
            assert!(dlogits.numbers[..1000].iter().all(|number| number.is_finite()));
        }
    }
}

/// Masked classes have no probability, and no gradient.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn minus_infinity_logits_are_masked() {
    let mut devices = Devices::new();
    let terms = LossTerms { gradient: true, ..LossTerms::PLAIN };
    let op = Op::CrossEntropy(CrossEntropy::of(terms));
    let mut logits = Data::random(DType::F32, &[1, 9000], 1.0, 1);
    logits.numbers[..8000].fill(f32::NEG_INFINITY);
    let outputs = devices.cuda(&op, &[logits.clone(), Data::tokens(&[1], |_| 8500)]);
    let rest = Data::new(DType::F32, &[1, 1000], logits.numbers[8000..].to_vec());
    let alone = devices.cuda(&op, &[rest, Data::tokens(&[1], |_| 500)]);
    assert!(outputs[1].numbers[..8000].iter().all(|&number| number == 0.0));
    assert!((outputs[0].numbers[0] - alone[0].numbers[0]).abs() < 1e-5);
}

/// The first of equal logits is the largest.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn accuracy_counts_rows_whose_largest_logit_is_the_target() {
    let mut devices = Devices::new();
    let op = Op::CrossEntropy(CrossEntropy { accuracy: true, ..CrossEntropy::of(LossTerms::PLAIN) });
    for dtype in NUMBERS {
        // The largest logit, twice: the target is the first of them, the second, or neither.
        for (target, expected) in [(700, 1.0), (900, 0.0), (3, 0.0)] {
            let mut logits = Data::random(dtype, &[1, 1000], 1.0, 1);
            [700, 900].into_iter().for_each(|place| logits.numbers[place] = 4.0);
            let outputs = devices.cuda(&op, &[logits, Data::tokens(&[1], |_| target)]);
            assert_eq!(outputs[0].numbers[1], expected, "{dtype} of class {target}");
        }
    }
}
