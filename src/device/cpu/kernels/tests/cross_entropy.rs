//! Cross-entropy loss.

use crate::cpu::kernels::simd::Level;
use ops::{CrossEntropy, LossTerms, Op, RowSlice, TensorType};

use super::harness::{Data, FLOATS, LaunchOptions, assert_gradient, cases, check_variants, launch};
use super::reference;

#[test]
fn cross_entropy_matches_the_reference() {
    let shapes = [[1, 1, 1], [1, 1, 2], [3, 23, 257], [2, 50, 40], [1, 3, 1030]];
    // Plain, soft-capped, or with smoothed labels.
    let choices = [(None, 0.0), (Some(10.0), 0.0), (None, 0.3)];
    let lens = [shapes.len(), FLOATS.len(), choices.len(), 2, 2, 2, 2];
    for ([shape, dtype, choice, flags @ ..], variants) in cases(3, lens) {
        let ([batch, sequence, vocabulary], dtype) = (shapes[shape], FLOATS[dtype]);
        let [gradient, accumulate, scaled, weighted] = flags.map(|flag| flag > 0);
        let (cap, smoothing) = choices[choice];
        let logits = Data::random(&[batch, sequence, vocabulary], 1).map(|x| 20.0 * x + 5.0).stored_as(dtype);
        let targets = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(ty, numbers) = &targets else { unreachable!("tokens are i32") };
        let classes: Vec<usize> = numbers.iter().map(|&number| number as usize).collect();
        // Each sample has its own weight, and some rows are masked.
        let weights: Vec<f32> = (0..batch).map(|sample| 0.5 + sample as f32).collect();
        let row_weight = |row: usize| match row % 3 == 1 {
            _ if !weighted => 1.0,
            true => 0.0,
            false => f64::from(weights[row / sequence]),
        };
        let masked = numbers.iter().enumerate().map(|(row, &target)| if row % 3 == 1 { -1 } else { target });
        let masked = Data::I32(*ty, masked.collect());
        let row_weights: Vec<f64> = (0..classes.len()).map(row_weight).collect();
        let (loss, dlogits) =
            reference::cross_entropy(&logits.to_f64(), &classes, &row_weights, (cap, smoothing), 0.25);
        let scale = if scaled { 4096.0 } else { 1.0 };
        let mut inputs = vec![logits, if weighted { masked } else { targets.clone() }];
        inputs.extend(weighted.then(|| Data::F32(TensorType::f32(&[batch]), weights.clone())));
        let mut expected = vec![vec![loss + if accumulate { 1.5 } else { 0.0 }]];
        if gradient {
            expected.push(dlogits.iter().map(|dlogit| dlogit * scale).collect());
        }
        inputs.extend(scaled.then(|| Data::scalar(scale as f32)));
        inputs.extend(accumulate.then(|| Data::scalar(1.5)));
        let terms = LossTerms { weight: 0.25, weighted, gradient, accumulate, scaled, ..LossTerms::PLAIN };
        let op = CrossEntropy {
            cap: cap.map(|cap| cap as f32),
            smoothing: smoothing as f32,
            ..CrossEntropy::of(terms)
        };
        check_variants(variants, Op::CrossEntropy(op), &inputs, &expected);
    }
}

/// The slices' gradients are bitwise equal to those of the whole; the loss differs only by the order of sums.
#[test]
fn sliced_cross_entropy_matches_the_whole() {
    let (rows, vocabulary) = (100, 67);
    let mut targets = Data::tokens(&[4, 25], vocabulary);
    if let Data::I32(_, targets) = &mut targets {
        targets.iter_mut().step_by(7).for_each(|target| *target = -1);
    }
    let weights = Data::F32(TensorType::f32(&[4]), vec![0.5, 2.0, 1.0, 0.75]);
    for (level, dtype) in Level::available().flat_map(|level| FLOATS.map(|dtype| (level, dtype))) {
        let logits = Data::random(&[rows, vocabulary], 1).map(|x| 20.0 * x + 5.0);
        let Data::F32(_, values) = &logits else { unreachable!("f32 data") };
        let run = |terms: LossTerms, previous: Option<f32>| {
            let range = terms.rows.range(rows);
            let part = values[range.start * vocabulary..range.end * vocabulary].to_vec();
            let part = Data::F32(TensorType::f32(&[range.len(), vocabulary]), part).stored_as(dtype);
            let terms = LossTerms { accumulate: previous.is_some(), ..terms };
            let op = Op::CrossEntropy(CrossEntropy::of(terms));
            let mut inputs = vec![part, targets.clone(), weights.clone()];
            inputs.extend(previous.map(Data::scalar));
            launch(&op, &inputs, LaunchOptions { threads: 2, level, alias: true })
        };
        let whole = LossTerms { weight: 0.25, weighted: true, gradient: true, ..LossTerms::PLAIN };
        let expected = run(whole, None);
        // One slice, slices with a smaller last one, and slices of one row.
        for count in [1, 3, 7, 100] {
            let (mut loss, mut gradient) = (None, Vec::new());
            for slice in RowSlice::all(count) {
                let outputs = run(LossTerms { rows: slice, ..whole }, loss);
                loss = Some(outputs[0][0]);
                gradient.extend_from_slice(&outputs[1]);
            }
            let context = format!("{dtype} at {level:?} in {count} slices");
            assert!(gradient == expected[1], "{context}: different gradient");
            let (loss, whole) = (loss.expect("there is a slice"), expected[0][0]);
            assert!(count > 1 || loss == whole, "{context}: different bits");
            assert!((loss - whole).abs() < 1e-6 * whole, "{context}: {loss} for {whole}");
        }
    }
}

#[test]
fn cross_entropy_reference_matches_numeric_gradient() {
    let logits = Data::random(&[3, 9], 1).map(|x| 4.0 * x).to_f64();
    for choice in [(None, 0.0), (Some(3.0), 0.0), (None, 0.2)] {
        let loss =
            |logits: &[f64]| reference::cross_entropy(logits, &[4, 0, 8], &[1.0, 0.0, 2.0], choice, 0.5);
        assert_gradient(&loss(&logits).1, &logits, |logits| loss(logits).0);
    }
}

/// The first of equal logits is the largest, and masked rows do not count.
#[test]
fn accuracy_is_the_weighted_share_of_rows_whose_largest_logit_is_the_target() {
    let rows = [
        // Right; wrong; a tie with an earlier and with a later logit; masked; NaN.
        ([0.5, 2.0, 1.0], 1),
        ([0.5, 2.0, 1.0], 2),
        ([3.0, 3.0, 1.0], 1),
        ([3.0, 3.0, 1.0], 0),
        ([1.0, 0.0, 0.0], -1),
        ([f32::NAN, 9.0, 0.0], 1),
    ];
    let logits = Data::F32(TensorType::f32(&[6, 3]), rows.iter().flat_map(|row| row.0).collect());
    let targets = Data::I32(TensorType::i32(&[6]), rows.iter().map(|row| row.1).collect());
    let weights = Data::F32(TensorType::f32(&[6]), vec![1.0, 1.0, 1.0, 2.0, 0.0, 1.0]);
    for (level, dtype) in Level::available().flat_map(|level| FLOATS.map(|dtype| (level, dtype))) {
        let run = |slice: RowSlice, previous: Option<[f32; 2]>| {
            let terms =
                LossTerms { rows: slice, weighted: true, accumulate: previous.is_some(), ..LossTerms::PLAIN };
            let op = Op::CrossEntropy(CrossEntropy { accuracy: true, ..CrossEntropy::of(terms) });
            let Data::F32(_, numbers) = &logits else { unreachable!("f32 data") };
            let range = slice.range(6);
            let part = numbers[3 * range.start..3 * range.end].to_vec();
            let part = Data::F32(TensorType::f32(&[range.len(), 3]), part).stored_as(dtype);
            let mut inputs = vec![part, targets.clone(), weights.clone()];
            inputs.extend(previous.map(|numbers| Data::F32(TensorType::f32(&[2]), numbers.to_vec())));
            let outputs = launch(&op, &inputs, LaunchOptions { threads: 2, level, alias: true });
            [outputs[0][0] as f32, outputs[0][1] as f32]
        };
        let expected = (1.0 + 2.0) / 6.0;
        assert_eq!(run(RowSlice::WHOLE, None)[1], expected, "{dtype} at {level:?}");
        let slices = RowSlice::all(2).fold(None, |previous, slice| Some(run(slice, previous)));
        assert_eq!(slices.map(|[_, accuracy]| accuracy), Some(expected), "{dtype} at {level:?} in slices");
    }
}
