//! Softmax over rows.

use ops::{Op, Softmax, SoftmaxBackward};

use super::harness::{Data, FLOATS, assert_gradient, cases, check_variants, inner_product};

/// Rows and columns: one column, fewer and more than a vector, more than a buffer, more rows than a task.
const SHAPES: [[usize; 2]; 5] = [[1, 1], [3, 7], [37, 40], [2, 1301], [200, 17]];

fn reference(x: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.chunks(columns).flat_map(|row| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(move |x| x.exp() / sum)
    });
    rows.collect()
}

fn reference_backward(dy: &[f64], y: &[f64], columns: usize) -> Vec<f64> {
    let rows = dy.chunks(columns).zip(y.chunks(columns)).flat_map(|(dy, y)| {
        let along = inner_product(dy, y);
        dy.iter().zip(y).map(move |(dy, y)| y * (dy - along))
    });
    rows.collect()
}

#[test]
fn softmax_matches_the_reference() {
    for ([shape, dtype], variants) in cases(3, [SHAPES.len(), FLOATS.len()]) {
        let ([rows, columns], dtype) = (SHAPES[shape], FLOATS[dtype]);
        let x = Data::random(&[rows, columns], 1).map(|x| 6.0 * x).stored_as(dtype);
        let y = reference(&x.to_f64(), columns);
        check_variants(variants, Op::Softmax(Softmax), &[x], &[y]);
        // Not a probability, so that no gradient cancels.
        let [dy, y] = [2, 3].map(|seed| Data::random(&[rows, columns], seed).stored_as(dtype));
        let dx = reference_backward(&dy.to_f64(), &y.to_f64(), columns);
        check_variants(variants, Op::SoftmaxBackward(SoftmaxBackward), &[dy, y], &[dx]);
    }
}

#[test]
fn softmax_reference_matches_numeric_gradient() {
    let [x, dy] = [1, 2].map(|seed| Data::random(&[3, 7], seed).to_f64());
    let dx = reference_backward(&dy, &reference(&x, 7), 7);
    assert_gradient(&dx, &x, |x| inner_product(&reference(x, 7), &dy));
}
