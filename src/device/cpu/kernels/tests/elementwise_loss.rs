//! Losses of single elements.

use ops::{ElementwiseLoss, LossFunction, LossTerms, Op, RowSlice, TensorType};

use super::harness::{Data, FLOATS, assert_gradient, cases, check_variants};

/// The loss and its gradient: samples have weights, and rows are all or a slice.
#[test]
fn losses_of_elements_match_the_reference() {
    // Samples, rows of each, and columns: one element, and more than a buffer.
    let shapes = [[1, 1, 1], [3, 23, 5], [2, 50, 1], [2, 1, 2100]];
    let lens = [shapes.len(), FLOATS.len(), LossFunction::ALL.len(), 2, 2, 2, 2, 2];
    for ([shape, dtype, function, flags @ ..], variants) in cases(3, lens) {
        let [samples, rows, columns] = shapes[shape];
        let function = LossFunction::ALL[function].with_rows(rows);
        let [gradient, accumulate, scaled, weighted, sliced] = flags.map(|flag| flag > 0);
        let all_rows = samples * rows;
        let slice = if sliced { RowSlice { index: 0, of: all_rows.min(3) } } else { RowSlice::WHOLE };
        let part = slice.range(all_rows);
        let x = Data::random(&[part.len(), columns], 1).map(|x| 6.0 * x).stored_as(FLOATS[dtype]);
        let targets = Data::random(&[samples, rows, columns], 2);
        let weights: Vec<f32> = (0..samples).map(|sample| sample as f32 * 1.5).collect();
        let scale = if scaled { 4096.0 } else { 1.0 };
        let factor = if function.is_sum() { 0.25 } else { 0.25 / (all_rows * columns) as f64 };
        let (mut loss, mut slopes) = (if accumulate { 1.5 } else { 0.0 }, Vec::new());
        for (element, (x, target)) in x.to_f64().into_iter().zip(targets.to_f64()).enumerate() {
            let weight = match f64::from(weights[element / columns / rows]) {
                _ if !weighted => 1.0,
                // A sum counts samples with a weight.
                weight if function.is_sum() => f64::from(u8::from(weight != 0.0)),
                weight => weight,
            };
            let (value, slope) = function.value_and_slope(x, target);
            loss += value * weight * factor;
            slopes.push(slope * weight * factor * scale);
        }
        let mut inputs = vec![x];
        inputs.extend((!function.is_sum()).then_some(targets));
        inputs.extend(weighted.then(|| Data::F32(TensorType::f32(&[samples]), weights)));
        inputs.extend(scaled.then(|| Data::scalar(scale as f32)));
        inputs.extend(accumulate.then(|| Data::scalar(1.5)));
        let expected = if gradient { vec![vec![loss], slopes] } else { vec![vec![loss]] };
        let terms = LossTerms {
            weight: 0.25,
            rows: slice,
            weighted,
            gradient,
            accumulate,
            scaled,
            ..LossTerms::PLAIN
        };
        let op = Op::ElementwiseLoss(ElementwiseLoss::of(function, terms));
        check_variants(variants, op, &inputs, &expected);
    }
}

#[test]
fn slopes_of_losses_match_numeric_derivatives() {
    let x: Vec<f64> = (-40..40).map(|i| f64::from(i) / 7.0).collect();
    for function in LossFunction::ALL {
        let slopes: Vec<f64> = x.iter().map(|&x| function.value_and_slope(x, 0.3).1).collect();
        assert_gradient(&slopes, &x, |x: &[f64]| x.iter().map(|&x| function.value_and_slope(x, 0.3).0).sum());
    }
}
